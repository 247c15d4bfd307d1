"""What an emulated rank left -> what its record has instead of times."""

from typing import Any

from bench.plan import PlannedCell
from bench.record import Emulation, verdict
from bench.validity.emulated import examine_emulated

# What stands in a record in place of the device.
EMULATED = "emulated"
NOT_KNOWN = [
    "what CUDA and cuBLAS keep for themselves: context, workspaces, kernels' own temporaries",
    "NCCL's buffers",
    "other attention kernels: PyTorch's CPU kernel saves what it saves, not what a GPU's would",
    "reserved bytes where several streams share the allocator",
    "what PyTorch's allocator of pinned host memory rounds up",
    "time",
]


def emulated(planned: PlannedCell, result: dict[str, Any], counted: dict[str, Any], trace: str) -> dict[str, Any]:
    """Return the fields of the record; ``counted``: those of the counting pass, ``trace``: the name of the file."""
    target, found = planned.cell.emulation, result["emulated"]
    assert target is not None
    findings = examine_emulated(
        planned, result, counted["comm"], counted["practice"], counted["memory"], counted["offload"]
    )
    return counted | {
        "validity": verdict(findings),
        "findings": findings,
        "device_name": f"a GPU of {target.gpu_memory_bytes / 2**30:g} GiB, {target.accelerator_path} path",
        "effective": result["effective"],
        "emulation": Emulation(
            fits=found["allocator"]["out_of_memory_bytes"] is None,
            allocator=found["allocator"],
            guesses=found["guesses"],
            flops_per_step=found["flops_per_step"],
            trace=trace,
            not_known=NOT_KNOWN,
        ),
    }
