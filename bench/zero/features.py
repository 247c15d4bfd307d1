"""What DeepSpeed cannot do with a configuration, and what a release or a machine lacks, before anything is launched.

Every reason names the file below ``deepspeed/`` (0.19.8, unless another release is named) that it was read from.
docs/zero-stages.md has the table (``python -m bench.zero.features``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from packaging.version import InvalidVersion, Version

from bench.zero.stages import HPZ_KEY, STRATEGIES


@dataclass(frozen=True)
class Asked:
    """What the rules see. ``device``: ``cpu``, ``cuda`` or ``emulated``; ``deepspeed``: the release, ``""`` unknown."""

    strategy: str
    zero_optimization: dict[str, Any]
    deepspeed_keys: dict[str, Any]
    world_size: int
    num_nodes: int
    dtype: str
    device: str
    deepspeed: str

    @property
    def stage(self) -> int:
        """The ZeRO stage; 0 also without DeepSpeed."""
        return STRATEGIES[self.strategy].zero_stage or 0

    def device_of(self, section: str) -> str:
        """Return the device of ``offload_optimizer`` or ``offload_param``, ``none`` without the section."""
        return str(self.zero_optimization.get(section, {}).get("device", "none"))

    @property
    def secondary(self) -> int:
        """Ranks of a secondary group of ZeRO++; 1 is none."""
        return int(self.zero_optimization.get(HPZ_KEY, 1))

    def since(self, release: str) -> bool:
        """Whether the release is ``release`` or newer; one that is not known is taken for new."""
        try:
            return Version(self.deepspeed) >= Version(release)
        except InvalidVersion:
            return True


@dataclass(frozen=True)
class Feature:
    """One rule. ``impossible``: no DeepSpeed can; ``unsupported``: this release or machine cannot."""

    name: str
    kind: Literal["impossible", "unsupported"]
    when: str
    holds: Callable[[Asked], bool]
    reason: str


_CPU_OPS = "its quantizer is a CUDA op (ops/op_builder, quantizer.py)"

FEATURES = (
    Feature(
        "offload_optimizer",
        "impossible",
        "stage 0",
        lambda a: a.device_of("offload_optimizer") != "none" and a.stage == 0,
        "the ZeRO optimizers do it, and stage 0 has none (runtime/engine.py, zero_use_cpu_optimizer)",
    ),
    Feature(
        "offload_optimizer to NVMe",
        "impossible",
        "stages 1, 2",
        lambda a: a.device_of("offload_optimizer") == "nvme" and a.stage in (1, 2),
        "stages 1 and 2 keep offloaded states in host memory whatever the device says, only stage 3 swaps to NVMe "
        "(runtime/zero/stage_1_and_2.py, cpu_offload)",
    ),
    Feature(
        "offload_param",
        "impossible",
        "stages 0, 1, 2",
        lambda a: a.device_of("offload_param") != "none" and a.stage < 3,
        "parameters are offloaded by stage 3 alone, below it every rank needs them whole (runtime/zero/config.py, "
        "offload_param)",
    ),
    Feature(
        "offload to NVMe",
        "unsupported",
        "this suite",
        lambda a: "nvme" in (a.device_of("offload_optimizer"), a.device_of("offload_param")),
        "NVMe offload needs DeepSpeed's async_io op (libaio) and a drive whose speed is part of the result, which no "
        "record describes yet",
    ),
    Feature(
        "zero_hpz_partition_size",
        "impossible",
        "stages 0, 1, 2",
        lambda a: a.secondary > 1 and a.stage < 3,
        "hpZ is a second sharding of parameters, which only stage 3 shards (runtime/engine.py, "
        "_configure_zero_optimizer)",
    ),
    Feature(
        "zero_hpz_partition_size",
        "impossible",
        "ranks not divisible by it",
        lambda a: a.secondary > 1 and a.world_size % min(a.secondary, a.world_size) != 0,
        "the ranks must be divisible by zero_hpz_partition_size (utils/groups.py, _create_zero_param_parallel_group)",
    ),
    Feature(
        "zero_hpz_partition_size",
        "impossible",
        "one group of all ranks",
        lambda a: a.secondary > 1 and a.secondary >= a.world_size,
        "the secondary group would be all ranks: hpZ within one node is stage 3 with each shard held twice",
    ),
    Feature(
        "zero_quantized_weights",
        "unsupported",
        "CPU, emulation",
        lambda a: bool(a.zero_optimization.get("zero_quantized_weights")) and a.device != "cuda",
        f"qwZ runs on CUDA alone: {_CPU_OPS}",
    ),
    Feature(
        "zero_quantized_nontrainable_weights",
        "unsupported",
        "CPU, emulation",
        lambda a: bool(a.zero_optimization.get("zero_quantized_nontrainable_weights")) and a.device != "cuda",
        f"quantized frozen weights run on CUDA alone: {_CPU_OPS}",
    ),
    Feature(
        "zero_quantized_gradients",
        "unsupported",
        "CPU, emulation",
        lambda a: bool(a.zero_optimization.get("zero_quantized_gradients")) and a.device != "cuda",
        f"qgZ runs on CUDA alone: {_CPU_OPS}",
    ),
    Feature(
        "MiCS (mics_shard_size)",
        "unsupported",
        "deepspeed 0.19.8 and later",
        lambda a: any(key.startswith("mics_") for key in a.zero_optimization) and a.since("0.19.8"),
        "MiCS has been removed from DeepSpeed (0.19.8, runtime/config.py, _REMOVED_ZERO_CONFIG_KEYS; "
        "deepspeedai/DeepSpeed#8489); an older release has it, but needs a model built under MiCS_Init",
    ),
    Feature(
        "MiCS (mics_shard_size)",
        "unsupported",
        "this suite, older releases",
        lambda a: any(key.startswith("mics_") for key in a.zero_optimization) and not a.since("0.19.8"),
        "MiCS needs a model built under deepspeed.zero.MiCS_Init, which this suite does not do (DeepSpeed has "
        "removed it since, deepspeedai/DeepSpeed#8489)",
    ),
    Feature(
        "LoCo (zeropp_loco_param)",
        "unsupported",
        "deepspeed 0.19.8 and later",
        lambda a: "zeropp_loco_param" in a.zero_optimization and a.since("0.19.8"),
        "LoCo has been removed from DeepSpeed (0.19.8, runtime/config.py, _REMOVED_ZERO_CONFIG_KEYS; "
        "deepspeedai/DeepSpeed#8489)",
    ),
    Feature(
        "grad_accum_dtype other than the model's",
        "impossible",
        "stage 0",
        lambda a: (
            a.strategy == "z0" and a.deepspeed_keys.get("data_types", {}).get("grad_accum_dtype") not in (None, a.dtype)
        ),
        "stage 0 accumulates gradients in the model's dtype and refuses another (runtime/engine.py, "
        "_do_optimizer_sanity_check)",
    ),
)


def _first(asked: Asked, kind: str) -> str | None:
    return next((f"{f.name}: {f.reason}" for f in FEATURES if f.kind == kind and f.holds(asked)), None)


def impossible(asked: Asked) -> str | None:
    """Return why no machine can run what is asked, ``None`` when one can."""
    return _first(asked, "impossible")


def unsupported(asked: Asked) -> str | None:
    """Return what this release or machine lacks, ``None`` when nothing."""
    return _first(asked, "unsupported")


def markdown() -> str:
    """Return the table of docs/zero-stages.md."""
    lines = ["| setting | where | refused as | reason |", "|---|---|---|---|"]
    status = {"impossible": "skipped", "unsupported": "unsupported"}
    lines += [f"| {f.name} | {f.when} | {status[f.kind]} | {f.reason} |" for f in FEATURES]
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
