"""Which ``zero_optimization`` key has an effect at which stage, and why not at the others.

Read from DeepSpeed 0.19.8; every reason names the file below ``deepspeed/`` that it was read from. A key is in
``applies`` of a stage when that stage's optimizer reads it on a path that a cell of this release can take (no
offload). The table in docs/zero-stages.md is this module's (``python -m bench.zero.applicability``).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from bench.zero.stages import STRATEGIES, ZERO_KEYS_ANY_STAGE, ZERO_KEYS_STAGE_3

STAGE_0 = (
    "stage 0 has no ZeRO optimizer to read it; its gradients are all-reduced in buckets of 5e8 elements, a constant "
    "(runtime/engine.py, MEMORY_OPT_ALLREDUCE_SIZE)"
)
NO_DEEPSPEED = "torch DDP and FSDP2 run without DeepSpeed"
ONLY_STAGE_3 = "only the stage 3 optimizer is given it (runtime/engine.py, _configure_zero_optimizer)"
NOT_STAGE_3 = "the stage 3 optimizer is not given it (runtime/engine.py, _configure_zero_optimizer)"
NEVER_READ = "no optimizer reads it (runtime/engine.py, zero_allgather_partitions, has no caller)"
ONE_GATHER = (
    "the updated parameters are gathered in one call per parameter group wherever torch has all_gather_into_tensor "
    "(runtime/utils.py, all_gather_dp_groups)"
)
NOT_GATHERED_SO = (
    "stage 3 gathers by module, as stage3_prefetch_bucket_size and the live and reuse limits allow "
    "(deepspeedai/DeepSpeed#6420)"
)
OFFLOAD_ONLY = "it is read only with optimizer offload (runtime/zero/stage_1_and_2.py, the norm for CPU offload)"


@dataclass(frozen=True)
class Key:
    """One key: the stages where it has an effect, what that is, and the reasons for the other ZeRO stages."""

    name: str
    applies: frozenset[int]
    effect: str
    reasons: dict[int, str]


def _key(name: str, applies: Iterable[int], effect: str, reasons: dict[int, str] | None = None) -> Key:
    stages = frozenset(applies)
    default = dict.fromkeys({1, 2, 3} - stages, ONLY_STAGE_3 if 3 in stages else NOT_STAGE_3)
    return Key(name, stages, effect, default | (reasons or {}))


KEYS = {
    key.name: key
    for key in (
        _key("allgather_bucket_size", (), "none", {1: ONE_GATHER, 2: ONE_GATHER, 3: NOT_GATHERED_SO}),
        _key("allgather_partitions", (), "none", dict.fromkeys((1, 2, 3), NEVER_READ)),
        _key("contiguous_gradients", (1, 2, 3), "gradients are copied into one bucket as they appear"),
        _key("ignore_unused_parameters", (), "none", {1: OFFLOAD_ONLY, 2: OFFLOAD_ONLY, 3: NOT_STAGE_3}),
        _key("overlap_comm", (1, 2, 3), "reduces inside backward on a stream of its own; a second bucket at 1 and 2"),
        _key("reduce_bucket_size", (1, 2, 3), "elements that are reduced together"),
        _key("reduce_scatter", (1, 2, 3), "1, 2: by owner, still all-reduced; 3: false all-reduces each bucket"),
        _key("round_robin_gradients", (1, 2), "consecutive gradients belong to different ranks"),
        _key("use_multi_rank_bucket_allreduce", (1, 2), "false: one reduce per owner (with reduce_scatter)"),
        _key("stage3_allgather_sequential", (3,), "parameters are gathered one by one, prefetch bucket 1"),
        _key("stage3_max_live_parameters", (3,), "gathered elements up to which prefetching goes on"),
        _key("stage3_max_reuse_distance", (3,), "elements until the next use, below which nothing is released"),
        _key("stage3_model_persistence_threshold", (3,), "most elements that persist in all"),
        _key("stage3_module_granularity_threshold", (3,), "finer modules are gathered whole; 0 is off"),
        _key("stage3_param_persistence_threshold", (3,), "parameters up to this size are never released"),
        _key("stage3_prefetch_bucket_size", (3,), "elements that are gathered ahead"),
        _key("stage3_use_all_reduce_for_fetch_params", (3,), "several parameters at once are fetched by all_reduce"),
        _key("sub_group_size", (3,), "elements that the optimizer updates together"),
    )
}
assert KEYS.keys() == ZERO_KEYS_ANY_STAGE | ZERO_KEYS_STAGE_3


def why_ignored(key: str, strategy: str) -> str | None:
    """Return why ``key`` changes nothing under ``strategy``; ``None`` where it has an effect."""
    stage = STRATEGIES[strategy].zero_stage
    if stage is None:
        return NO_DEEPSPEED
    if key not in KEYS:  # of ZeRO++, offload or a configuration file: bench.zero.features and bench.configs judge those
        return None
    if stage in KEYS[key].applies:
        return None
    return STAGE_0 if stage == 0 else KEYS[key].reasons[stage]


def ignored_keys(keys: Iterable[str], strategy: str) -> list[str]:
    """Return a sentence for each of ``keys`` that is set and changes nothing under ``strategy``."""
    return [
        f"{key} is set and has no effect at {strategy}, for {why}"
        for key in sorted(keys)
        if (why := why_ignored(key, strategy)) is not None
    ]


def ignored_notes(keys: Iterable[str], strategies: Iterable[str]) -> list[str]:
    """Return the sentences for a whole scenario: keys and strategies that share a reason share a sentence."""
    shared: dict[tuple[str, str], list[str]] = {}
    present = set(strategies)
    names = [name for name in STRATEGIES if name in present]
    for key in sorted(keys):
        where: dict[str, list[str]] = {}
        for strategy in names:
            if why := why_ignored(key, strategy):
                where.setdefault(why, []).append(strategy)
        for why, found in where.items():
            shared.setdefault((why, ", ".join(found)), []).append(key)
    return [
        f"zero_optimization {', '.join(found)}: no effect at {where}, for {why}"
        for (why, where), found in shared.items()
    ]


def markdown() -> str:
    """Return the table of docs/zero-stages.md."""
    lines = ["| key | ddp, fsdp2, 0 | 1 | 2 | 3 | effect |", "|---|---|---|---|---|---|"]
    notes: dict[str, int] = {}
    for key in KEYS.values():
        marks = [
            "yes" if stage in key.applies else f"no ({notes.setdefault(key.reasons[stage], len(notes) + 1)})"
            for stage in (1, 2, 3)
        ]
        lines.append(f"| `{key.name}` | no | {' | '.join(marks)} | {key.effect} |")
    lines += ["", f"ddp, fsdp2: {NO_DEEPSPEED}. 0: {STAGE_0}."]
    lines += [f"{number}. {reason}" for reason, number in notes.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
