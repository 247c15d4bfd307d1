import inspect
from pathlib import Path

import pytest

from bench.zero.applicability import KEYS, ignored_keys, ignored_notes, why_ignored
from bench.zero.stages import STRATEGIES, zero_keys

# A key of the scenario -> the argument of the ZeRO optimizers that carries it, where its name differs.
ARGUMENT = {key: key.removeprefix("stage3_") for key in KEYS} | {
    "stage3_module_granularity_threshold": "zero_module_granularity_threshold"
}
# Read by deepspeed.zero.Init from the configuration, so no argument of the optimizer.
FROM_CONFIG = {"stage3_allgather_sequential", "stage3_use_all_reduce_for_fetch_params"}


def test_nothing_applies_without_zero() -> None:
    assert ignored_keys(KEYS, "ddp") != []
    for strategy in ("ddp", "fsdp2", "z0"):
        assert len(ignored_keys(KEYS, strategy)) == len(KEYS)


def test_what_the_plan_drops_has_no_effect() -> None:
    for strategy in STRATEGIES:
        dropped = KEYS.keys() - zero_keys(strategy)
        assert all(why_ignored(key, strategy) for key in dropped), strategy


@pytest.mark.parametrize(
    ("key", "strategy", "word"),
    [
        ("allgather_bucket_size", "z3", "#6420"),
        ("allgather_bucket_size", "z2", "all_gather_into_tensor"),
        ("allgather_partitions", "z1", "no caller"),
        ("reduce_bucket_size", "z0", "5e8"),
        ("round_robin_gradients", "z3", "not given it"),
        ("stage3_max_live_parameters", "z2", "only the stage 3 optimizer"),
        ("ignore_unused_parameters", "z2", "offload"),
    ],
)
def test_a_reason_says_why(key: str, strategy: str, word: str) -> None:
    (sentence,) = ignored_keys([key], strategy)
    assert key in sentence
    assert strategy in sentence
    assert word in sentence


def test_a_key_with_an_effect_is_not_named() -> None:
    assert ignored_keys(["reduce_bucket_size", "overlap_comm"], "z2") == []
    assert ignored_keys(["stage3_prefetch_bucket_size", "sub_group_size"], "z3") == []


def test_a_scenario_hears_each_reason_once() -> None:
    keys = ["reduce_bucket_size", "stage3_max_live_parameters", "stage3_prefetch_bucket_size"]
    notes = ignored_notes(keys, iter(["z3", "z2", "z1", "z0", "z2"]))
    assert len(notes) == 2
    assert notes[0].startswith("zero_optimization reduce_bucket_size, stage3_max_live_parameters, ")
    assert " stage3_max_live_parameters, stage3_prefetch_bucket_size: no effect at z1, z2, for only " in notes[1]
    assert ignored_notes(keys, ["z3"]) == []


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_installed_release_hands_over_what_the_table_says(stage: int) -> None:
    """A key that applies must reach the optimizer of its stage; one said not to be given must not."""
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    optimizer = DeepSpeedZeroOptimizer_Stage3 if stage == 3 else DeepSpeedZeroOptimizer
    taken = set(inspect.signature(optimizer.__init__).parameters)
    for key in KEYS.values():
        if key.name in FROM_CONFIG:
            continue
        if stage in key.applies:
            assert ARGUMENT[key.name] in taken, key.name
        elif "given it" in key.reasons[stage] or "no caller" in key.reasons[stage]:
            assert ARGUMENT[key.name] not in taken, key.name


def test_nothing_of_the_installed_release_reads_what_is_said_to_be_unread() -> None:
    import deepspeed

    root = Path(deepspeed.__file__).parent
    readers = [
        path.name
        for path in (root / "runtime").rglob("*.py")
        if "zero_allgather_partitions()" in path.read_text() or "zero_config.allgather_partitions" in path.read_text()
    ]
    assert readers == ["engine.py"]
    assert "self.zero_allgather_partitions()" not in (root / "runtime" / "engine.py").read_text()
