"""The strategies a cell can ask for, and what each shards.

Definitions follow DeepSpeed's own documentation
(https://www.deepspeed.ai/docs/config-json/, ``zero_optimization.stage``): "Stage 0, 1, 2, and 3 refer to
disabled, optimizer state partitioning, optimizer+gradient state partitioning, and
optimizer+gradient+parameter partitioning".
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Strategy:
    """A named ZeRO configuration, or a baseline of torch alone (``zero_stage`` is then ``None``)."""

    name: str
    zero_stage: int | None
    shards: frozenset[str]
    definition: str


_OPTIMIZER, _GRADIENTS, _PARAMETERS = "optimizer states", "gradients", "parameters"

STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        Strategy("ddp", None, frozenset(), "torch DistributedDataParallel, no DeepSpeed; z0's precision recipe"),
        Strategy(
            "fsdp2",
            None,
            frozenset({_OPTIMIZER, _GRADIENTS, _PARAMETERS}),
            "torch fully_shard (FSDP2), no DeepSpeed, not ZeRO; shards what stage 3 shards, z0's precision recipe",
        ),
        Strategy("z0", 0, frozenset(), "DeepSpeed stage 0: ZeRO disabled, everything replicated"),
        Strategy("z1", 1, frozenset({_OPTIMIZER}), "ZeRO stage 1: optimizer states sharded"),
        Strategy("z2", 2, frozenset({_OPTIMIZER, _GRADIENTS}), "ZeRO stage 2: stage 1 + gradients sharded"),
        Strategy(
            "z3",
            3,
            frozenset({_OPTIMIZER, _GRADIENTS, _PARAMETERS}),
            "ZeRO stage 3: stage 2 + parameters sharded",
        ),
    )
}


@dataclass(frozen=True)
class Variant:
    """A strategy with settings of its own: keys of ``zero_optimization``, and others of a DeepSpeed configuration."""

    name: str
    strategy: str
    definition: str
    zero_optimization: dict[str, Any] = field(default_factory=dict)
    deepspeed: dict[str, Any] = field(default_factory=dict)


_CPU = {"device": "cpu", "pin_memory": True}
_OWNERS_ONLY = {"use_multi_rank_bucket_allreduce": False}

VARIANTS = {
    variant.name: variant
    for variant in (
        Variant(
            "z1-bf16-optimizer",
            "z1",
            "stage 1 with gradients added up in fp32, which selects DeepSpeed's BF16_Optimizer (in bf16)",
            deepspeed={"data_types": {"grad_accum_dtype": "fp32"}},
        ),
        Variant("z1-multi-rank-off", "z1", "gradients reduced to their owners: the paper's 2 psi", _OWNERS_ONLY),
        Variant("z1-offload", "z1", "stage 1, optimizer states and step on the CPU", {"offload_optimizer": _CPU}),
        Variant("z2-multi-rank-off", "z2", "gradients reduced to their owners: the paper's 2 psi", _OWNERS_ONLY),
        Variant("z2-offload", "z2", "stage 2, optimizer states and step on the CPU", {"offload_optimizer": _CPU}),
        Variant("z3-offload", "z3", "stage 3, optimizer states and step on the CPU", {"offload_optimizer": _CPU}),
        Variant(
            "z3-offload-param",
            "z3",
            "stage 3, optimizer states and step on the CPU, and parameters when not in use",
            {"offload_optimizer": _CPU, "offload_param": _CPU},
        ),
        # The size of the secondary group is that of a node, which the cell knows, unless a scenario sets it.
        Variant("zpp-hpz", "z3", "stage 3 with ZeRO++'s secondary shards within each node (hpZ)"),
    )
}
HPZ = "zpp-hpz"


def strategy_names() -> list[str]:
    """Return every name that a scenario can ask for, each stage's variants after it."""
    return [name for base in STRATEGIES for name in (base, *(v.name for v in VARIANTS.values() if v.strategy == base))]


# The keys of DeepSpeed's ``zero_optimization`` section that a scenario may set, as DeepSpeed 0.19 spells
# them (tests/unit/test_ds_config.py compares this list with the installed release). ``stage`` is the
# strategy's, and so is offload; a configuration file may set all that DeepSpeed knows.
ZERO_KEYS_ANY_STAGE = frozenset(
    {
        "allgather_bucket_size",
        "allgather_partitions",
        "contiguous_gradients",
        "ignore_unused_parameters",
        "overlap_comm",
        "reduce_bucket_size",
        "reduce_scatter",
        "round_robin_gradients",
        "use_multi_rank_bucket_allreduce",
    }
)
ZERO_KEYS_STAGE_3 = frozenset(
    {
        "stage3_allgather_sequential",
        "stage3_max_live_parameters",
        "stage3_max_reuse_distance",
        "stage3_model_persistence_threshold",
        "stage3_module_granularity_threshold",
        "stage3_param_persistence_threshold",
        "stage3_prefetch_bucket_size",
        "stage3_use_all_reduce_for_fetch_params",
        "sub_group_size",
    }
)
# ZeRO++: the ranks of one secondary group (hpZ).
HPZ_KEY = "zero_hpz_partition_size"


def zero_keys(strategy: str) -> frozenset[str]:
    """Return a scenario's ``zero_optimization`` keys that can matter to ``strategy`` (none without a stage above 0)."""
    stage = STRATEGIES[strategy].zero_stage
    if not stage:
        return frozenset()
    return ZERO_KEYS_ANY_STAGE | ZERO_KEYS_STAGE_3 if stage == 3 else ZERO_KEYS_ANY_STAGE
