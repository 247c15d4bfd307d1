"""All checks of one emulated row. Nothing was computed, so there is no loss and no time to judge."""

from typing import Any

from bench.plan import PlannedCell
from bench.record import Comm, Finding, Memory, Offload, Practice
from bench.validity import settings, sharding
from bench.validity.examine import predicted, same_model, steady
from bench.validity.known_bad import known_bad

# Values that DeepSpeed reads of a normal step: no overflow, finite norms, ranks that agree. Whoever else decides by
# content that is not there may have decided otherwise than a real run.
_EXPECTED_READERS = (
    "deepspeed.runtime.utils.has_overflow_serial",
    "deepspeed.runtime.utils.get_weight_norm",
    "deepspeed.runtime.utils.is_invalid_grad_norm",
    "deepspeed.runtime.zero.stage_1_and_2.has_overflow",
    "deepspeed.runtime.zero.stage_1_and_2.update_offload_overflow_tracker",
    "deepspeed.runtime.zero.stage_1_and_2.complete_grad_norm_calculation_for_cpu_offload",
    "deepspeed.runtime.zero.stage3.has_overflow",
    "deepspeed.runtime.zero.stage3.complete_grad_norm_calculation_for_cpu_offload",
    "deepspeed.runtime.zero.utils.",
)


def _guesses(found: list[dict[str, Any]]) -> list[Finding]:
    unknown = [guess for guess in found if not guess["reader"].startswith(_EXPECTED_READERS)]
    return [
        Finding(
            check="guesses",
            verdict="suspect",
            text=f"{guess['reader']} read {guess['value']}, from {guess['origin']}, of content that is not there: "
            "what it decides by that may differ in a real run",
        )
        for guess in unknown
    ]


def examine_emulated(
    planned: PlannedCell,
    result: dict[str, Any],
    comm: Comm,
    practice: Practice | None,
    counted: Memory,
    offloaded: Offload | None,
) -> list[Finding]:
    """Return what the checks find in ``result``, the emulated rank's."""
    cell = planned.cell
    assert cell.emulation is not None
    found = sharding.check(cell, result)
    found += settings.differences(cell, result["effective"])
    found += settings.other_releases(planned.stack, result["stack"])
    found += known_bad(result["stack"], cell, result["effective"] | {"backend": result["backend"]})
    found += same_model(result, planned.params.total if planned.params else None)
    if result["skipped_steps"]:
        text = f"{result['skipped_steps']} optimizer steps were skipped"
        found.append(Finding(check="applied steps", verdict="suspect", text=text))
    found += steady(result) + predicted(result["stack"], comm, practice, counted, offloaded, cell.emulation.rank)
    allocator = result["emulated"]["allocator"]
    capacity = cell.emulation.gpu_memory_bytes / 2**30
    if (asked := allocator["out_of_memory_bytes"]) is not None:
        text = f"does not fit in {capacity:g} GiB: the modelled allocator finds no room for {asked / 2**20:,.1f} MiB"
        found.append(Finding(check="capacity", verdict="note", text=text))
    return found + _guesses(result["emulated"]["guesses"])
