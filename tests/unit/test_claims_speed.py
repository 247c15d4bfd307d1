"""Claims on speed: only times of two or more GPUs in three launches count, and they can go either way."""

import pytest

from bench.claims.document import REFERENCE
from bench.claims.judge import verdicts
from bench.claims.rule import selection
from bench.claims.show import read
from bench.record import Timing


@pytest.fixture(scope="module")
def rows():
    """One row of each stage that differs in nothing else."""
    found = {}
    for row in read([REFERENCE]):
        cell = row.cell
        if (cell.dtype, cell.gradient_accumulation_steps, row.requested_stack) == ("bf16", 1, "deepspeed==0.19.8"):
            found[cell.strategy_name] = row
    return {name: found[name] for name in ("z0", "z1", "z2", "z3")}


def on_gpus(rows, times, no_room=()):
    """Return the rows as if timed on GPUs: ``times`` are the step times of each launch, by stage."""
    made = []
    for name, each in times.items():
        for repeat, step_time_s in enumerate(each):
            timing = rows[name].timing.model_copy(update={"step_time_s": step_time_s, "suspect_reasons": []})
            update = {"device": "cuda", "repeat": repeat, "timing": timing, "validity": "valid", "findings": []}
            made.append(rows[name].model_copy(update=update))
    return made + [without_a_launch(rows[name]) for name in no_room]


def without_a_launch(row, status="oom", reason="CUDA out of memory"):
    """Return the row as the runner keeps a failed one: it knows neither its releases nor its GPU."""
    empty = {"timing": None, "throughput": None, "memory": None, "comm": None, "shards": [], "findings": []}
    empty |= {"device": "cuda", "device_name": None, "stack": {}, "effective": {}, "validity": "unchecked"}
    return row.model_copy(update=empty | {"status": status, "reason": reason})


def words(rows):
    found = {verdict.id: verdict.word for verdict in verdicts(rows)}
    return found["fits-rule"], found["just-use-3"]


def test_the_times_of_a_cpu_say_nothing(rows):
    assert isinstance(rows["z1"].timing, Timing)
    assert words(rows.values()) == ("not-yet-measured", "not-yet-measured")
    assert "that fit is fastest is not measured" in selection(list(rows.values()))[-1]["en"]


@pytest.mark.parametrize(
    ("times", "no_room", "expected"),
    [
        # stage 0 fastest: as the rule says; of a model that fits at stage 0 the other claim says nothing
        (
            {"z0": (1.0, 1.1, 1.2), "z1": (2, 2.1, 2.2), "z2": (3, 3.1, 3.2), "z3": (4, 4.1, 4.2)},
            (),
            ("confirmed", None),
        ),
        # stage 1, which the rule leaves out, is fastest
        ({"z0": (2.0, 2.1, 2.2), "z1": (1, 1.1, 1.2), "z2": (3, 3.1, 3.2), "z3": (4, 4.1, 4.2)}, (), ("refuted", None)),
        # launches of stages 0 and 1 overlap: not separated
        ({"z0": (1.0, 1.3, 1.2), "z1": (1.1, 1.2, 1.4), "z2": (3, 3, 3), "z3": (4, 4, 4)}, (), (None, None)),
        # two launches are too few
        ({"z0": (1.0, 1.1), "z1": (2, 2.1), "z2": (3, 3.1), "z3": (4, 4.1)}, (), (None, None)),
        # a stage that nobody looked at
        ({"z0": (1.0, 1.1, 1.2), "z1": (2, 2.1, 2.2), "z3": (4, 4.1, 4.2)}, (), (None, None)),
        # no room for stage 0, stage 3 fastest: against the one claim, for the other
        ({"z1": (2, 2.1, 2.2), "z2": (3, 3.1, 3.2), "z3": (1, 1.1, 1.2)}, ("z0",), ("refuted", "confirmed")),
        ({"z1": (2, 2.1, 2.2), "z2": (1, 1.1, 1.2), "z3": (3, 3.1, 3.2)}, ("z0",), ("confirmed", "refuted")),
        # room for stage 3 alone
        ({"z3": (1, 1.1, 1.2)}, ("z0", "z1", "z2"), ("confirmed", "confirmed")),
    ],
)
def test_times_of_gpus_decide(rows, times, no_room, expected):
    assert words(on_gpus(rows, times, no_room)) == tuple(word or "not-yet-measured" for word in expected)


def test_times_that_are_in_doubt_do_not_count(rows):
    times = {"z0": (1.0, 1.1, 1.2), "z1": (2, 2.1, 2.2), "z2": (3, 3.1, 3.2), "z3": (4, 4.1, 4.2)}
    timed = on_gpus(rows, times)
    assert words(timed)[0] == "confirmed"
    for update in (
        {"timing": timed[0].timing.model_copy(update={"suspect_reasons": ["another process was on the GPU"]})},
        {"validity": "invalid"},
        {"device": "cpu"},
    ):
        doubted = [row.model_copy(update=update) if row.cell.strategy == "z0" else row for row in timed]
        assert words(doubted)[0] == "not-yet-measured"


def test_the_rule_names_the_fastest_once_it_is_timed(rows):
    times = {"z0": (2.0, 2.1, 2.2), "z1": (1, 1.1, 1.2), "z2": (3, 3.1, 3.2), "z3": (4, 4.1, 4.2)}
    last = selection(on_gpus(rows, times))[-1]
    assert last["en"].startswith("Fastest beside llama-tiny/z1/w2")
    assert "z1 1,100 ms" in last["en"]


NO_Z0 = {"z1": (2, 2.1, 2.2), "z2": (3, 3.1, 3.2), "z3": (1, 1.1, 1.2)}


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        ("oom", "CUDA out of memory", "confirmed"),
        ("skipped", "known misfit: parameters, gradients and Adam states alone need 112.0 GiB", "confirmed"),
        # no word on memory
        ("skipped", "zero_hpz_partition_size 3 does not divide world_size 8", "not-yet-measured"),
        ("crashed", "exit status 1", "not-yet-measured"),
    ],
)
def test_no_room_is_for_want_of_memory_alone(rows, status, reason, expected):
    timed = [*on_gpus(rows, NO_Z0), without_a_launch(rows["z0"], status, reason)]
    assert words(timed)[1] == expected


def test_launches_on_two_kinds_of_gpu_or_two_releases_of_torch_are_not_added_up(rows):
    timed = on_gpus(rows, NO_Z0, ["z0"])
    assert words(timed)[1] == "confirmed"
    for update in ({"device_name": "another GPU"}, {"stack": rows["z3"].stack | {"torch": "2.0"}}):
        apart = [row.model_copy(update=update) if row.repeat == 2 else row for row in timed]
        assert words(apart) == ("not-yet-measured", "not-yet-measured")


def test_a_row_without_room_counts_where_it_is_known_on_which_gpu(rows):
    here = on_gpus(rows, NO_Z0, ["z0"])
    elsewhere = [row.model_copy(update={"device_name": "another GPU"}) for row in on_gpus(rows, NO_Z0)]
    assert words([*here, *elsewhere])[1] == "not-yet-measured"
