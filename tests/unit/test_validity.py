from typing import Any

import pytest

from bench.cell import Cell
from bench.record import Finding, verdict
from bench.validity import ranks, settings, sharding

PSI = 1000


def cell(strategy: str, n: int = 4, **changes: Any) -> Cell:
    return Cell(model="llama-tiny", strategy=strategy, world_size=n, **changes)


def shards(parameters: int, gradients: int | None, optimizer_states: int, n: int = 4, tensors: int = 2) -> Any:
    held = {"parameters": parameters, "gradients": gradients, "optimizer_states": optimizer_states}
    return {"num_params": PSI, "num_tensors": tensors, "ranks": [{"shards": held}] * n}


@pytest.mark.parametrize(
    ("strategy", "held"),
    [
        ("ddp", (PSI, PSI, 3 * PSI)),
        ("z0", (PSI, None, 3 * PSI)),
        ("z1", (PSI, PSI, 3 * PSI // 4)),
        ("z1", (PSI, PSI // 4, 3 * PSI // 4)),
        ("z2", (PSI, PSI // 4, 3 * PSI // 4 + 6)),
        ("z3", (PSI // 4 + 2, PSI // 4 + 2, 3 * PSI // 4 + 6)),
    ],
)
def test_a_stage_that_shards_what_it_says_is_not_touched(strategy: str, held: Any) -> None:
    assert sharding.check(cell(strategy), shards(*held)) == []


@pytest.mark.parametrize(
    ("strategy", "held", "words"),
    [
        ("z1", (PSI, PSI, 3 * PSI), "z1 shards optimizer states, but they are not sharded: 3,000 of 3,000"),
        ("z2", (PSI, PSI, 3 * PSI // 4), "z2 shards gradients"),
        ("z3", (PSI, PSI // 4, 3 * PSI // 4), "z3 shards parameters"),
        ("z3", (PSI // 2, PSI // 4, 3 * PSI // 4), "z3 shards parameters"),
        ("z3", (PSI // 4 - 1, PSI // 4, 3 * PSI // 4), "parameters are missing"),
    ],
)
def test_a_stage_that_does_not_is_invalid(strategy: str, held: Any, words: str) -> None:
    (finding,) = sharding.check(cell(strategy), shards(*held))
    assert finding.verdict == "invalid"
    assert words in finding.text


def test_stage_0_that_shards_is_suspect() -> None:
    # bf16 stage 0 of deepspeed 0.7.5 to 0.17.5 is BF16_Optimizer (deepspeedai/DeepSpeed#7515)
    (finding,) = sharding.check(cell("z0"), shards(PSI, PSI, 3 * PSI // 4))
    assert finding.verdict == "suspect"
    assert finding.text.startswith("z0 does not shard optimizer states, but they are sharded")


def test_on_one_rank_there_is_nothing_to_shard() -> None:
    assert sharding.check(cell("z3", n=1), shards(PSI, PSI, 3 * PSI, n=1)) == []


def test_fp32_replicas_have_no_master_copy() -> None:
    assert sharding.check(cell("ddp", dtype="fp32"), shards(PSI, PSI, 2 * PSI)) == []


def rank(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "rank": number,
        "pid": 100 + number,
        "node": 0,
        "optimizer_steps": 18,
        "collectives": [{"num_bytes": 10, "count": 3}],
        "step_times_s": [1.0] * 10,
        "tokens_per_step": [128] * 10,
        "fingerprint": [3, 4],
        "witness_s": 10.1,
    } | changes


def checked(*found: dict[str, Any], skipped: int = 0) -> list[tuple[str, str, str]]:
    findings = ranks.check(cell("z1", n=2), {"ranks": list(found), "skipped_steps": skipped})
    return [(finding.check, finding.verdict, finding.text) for finding in findings]


def test_two_ranks_that_agree() -> None:
    assert cell("z1").total_steps == 18
    assert checked(rank(0), rank(1)) == []
    assert checked(rank(0, optimizer_steps=16), rank(1, optimizer_steps=16), skipped=2) == []


@pytest.mark.parametrize("pair", [(rank(0), rank(0)), (rank(0), rank(1, pid=100)), (rank(1), rank(0))])
def test_a_rank_counted_twice_or_in_anothers_place_is_invalid(pair: Any) -> None:
    ((check, found, _),) = checked(*pair)
    assert (check, found) == ("ranks", "invalid")


def test_the_same_process_number_on_two_nodes_is_two_processes() -> None:
    assert checked(rank(0), rank(1, pid=100, node=1)) == []


def test_ranks_that_moved_different_bytes_are_suspect() -> None:
    ((check, found, text),) = checked(rank(0), rank(1, collectives=[{"num_bytes": 10, "count": 2}]))
    assert (check, found, text.endswith("30, 20")) == ("ranks", "suspect", True)


@pytest.mark.parametrize("change", [{"tokens_per_step": [64] * 10}, {"tokens_per_step": [128] * 9}])
def test_timed_steps_that_were_fed_less_are_invalid(change: dict[str, Any]) -> None:
    ((check, found, text),) = checked(rank(0), rank(1, **change))
    assert (check, found) == ("ranks", "invalid")
    assert text.startswith("10 timed steps of 128 tokens per rank were asked for")


def test_replicas_that_end_apart_are_invalid_and_shards_have_no_fingerprint() -> None:
    ((check, found, _),) = checked(rank(0), rank(1, fingerprint=[3, 5]))
    assert (check, found) == ("ranks", "invalid")
    assert checked(rank(0, fingerprint=None), rank(1, fingerprint=None)) == []


def test_a_step_driven_but_not_taken_is_invalid() -> None:
    ((check, found, text),) = checked(rank(0), rank(1, optimizer_steps=17))
    assert (check, found) == ("applied steps", "invalid")
    assert "18 optimizer steps were driven, the optimizer's own count says [17, 18]" in text


@pytest.mark.parametrize(("walls", "doubted"), [((10.1, 10.1), False), ((10.1, 40.0), False), ((14.0, 20.0), True)])
def test_time_that_no_rank_accounts_for_is_named(walls: tuple[float, float], doubted: bool) -> None:
    found = [rank(number, witness_s=wall) for number, wall in enumerate(walls)]
    assert bool(ranks.clock(cell("z1", n=2), {"ranks": found})) is doubted


def test_settings_that_differ_are_named_and_those_unknown_are_not() -> None:
    asked = cell("z3", zero_optimization={"reduce_bucket_size": 10, "overlap_comm": False})
    effective = {"zero_stage": 3, "reduce_bucket_size": 500_000_000, "lr": 1e-3, "master_dtype": None}
    finding, unread = settings.differences(asked, effective)
    assert (finding.verdict, finding.text) == ("suspect", "asked for reduce_bucket_size 10, the engine runs 500000000")
    assert (unread.check, unread.verdict) == ("effective settings", "note")
    assert unread.text == "asked for overlap_comm False; this release keeps it nowhere that can be read back"


def test_a_setting_without_effect_needs_no_reading_back() -> None:
    asked = cell("z1", zero_optimization={"allgather_partitions": False, "sub_group_size": 10})
    assert settings.differences(asked, {"zero_stage": 1}) == []
    assert settings.differences(cell("ddp", zero_optimization={"overlap_comm": True}), {"zero_stage": None}) == []


def test_the_prefetch_bucket_that_deepspeed_sets_itself_is_no_difference() -> None:
    def found(sequential: bool) -> list[str]:
        zero = {"stage3_allgather_sequential": sequential, "stage3_prefetch_bucket_size": 100}
        effective = {"zero_stage": 3, "stage3_prefetch_bucket_size": 1}
        return [each.verdict for each in settings.differences(cell("z3", zero_optimization=zero), effective)]

    assert found(True) == ["note"]  # of stage3_allgather_sequential itself, which is kept in the configuration alone
    assert found(False) == ["suspect", "note"]


def test_the_verdict_is_the_worst_finding_and_a_note_lowers_nothing() -> None:
    def finding(word: Any) -> Finding:
        return Finding(check="x", verdict=word, text="y")

    assert verdict([]) == "valid"
    assert verdict([finding("note")]) == "valid"
    assert verdict([finding("unchecked"), finding("note")]) == "unchecked"
    assert verdict([finding("unchecked"), finding("suspect")]) == "suspect"
    assert verdict([finding("suspect"), finding("invalid")]) == "invalid"
