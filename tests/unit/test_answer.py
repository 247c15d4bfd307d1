"""Which strategy to take is said only where rows say it."""

import pytest
from made import failed, made, stored

from bench.analysis.answer import answers, table
from bench.analysis.comparison import comparison
from bench.analysis.frame import frame
from bench.record import Finding


def said(records, by):
    lines = comparison(frame(records), "gradient_accumulation_steps")
    return next((answer for answer in answers(lines) if answer.by.startswith(by)), None)


def launches(strategy, *steps_s, **changes):
    return [made(strategy, step_s=step_s, repeat=r, **changes) for r, step_s in enumerate(steps_s)]


def test_three_launches_apart_separate_two_strategies():
    answer = said(launches("z1", 0.10, 0.11, 0.12) + launches("z2", 0.13, 0.15, 0.14), "speed")
    assert (answer.strategy, answer.runner_up, answer.margin) == ("z1", "z2", "27% faster")
    assert "z1 100.0 to 120.0 ms (3 launches), z2 130.0 to 150.0 ms (3 launches)" in answer.why


@pytest.mark.parametrize(
    ("z1", "z2", "why"),
    [
        ((0.10, 0.11), (0.13, 0.15), "at least 3 launches of each are needed"),
        ((0.10, 0.11, 0.14), (0.13, 0.15, 0.16), "Launches overlap"),
    ],
)
def test_otherwise_speed_is_not_separated(z1, z2, why):
    answer = said(launches("z1", *z1) + launches("z2", *z2), "speed")
    assert (answer.strategy, answer.runner_up, answer.margin) == (None, None, "not separated")
    assert why in answer.why


def test_suspect_times_are_no_evidence_and_are_named():
    base = made("z3")
    late = base.timing.model_copy(update={"suspect_reasons": ["cores are shared"]})
    answer = said([*launches("z1", 0.1), made("z3", step_s=0.01, timing=late)], "speed")
    assert answer.strategy is None
    assert "Left aside, their times being suspect: z3" in answer.why


def test_times_of_cpu_ranks_are_called_that():
    answer = said(launches("z1", 0.1, 0.1, 0.1) + launches("z2", 0.2, 0.2, 0.2), "speed")
    assert answer.by == "speed of CPU ranks"
    assert "say nothing about GPUs" in answer.why
    on_gpus = [r.model_copy(update={"device": "cuda"}) for r in launches("z1", *[0.1] * 3) + launches("z2", *[0.2] * 3)]
    assert said(on_gpus, "speed").by == "speed"


def test_least_memory_names_all_that_are_equal_and_the_next():
    records = [made("z0", peak=400), made("z1", peak=200), made("z2", peak=200), made("z3", peak=300)]
    answer = said(records, "peak memory")
    assert (answer.strategy, answer.runner_up, answer.margin) == ("z1, z2", "z3", "33% less")


def test_what_failed_is_no_candidate_and_is_named():
    answer = said([failed("z0"), made("z1", peak=200), made("z2", peak=100)], "peak memory")
    assert answer.strategy == "z2"
    assert "Not candidates: z0: oom." in answer.why


def test_an_emulated_row_that_does_not_fit_is_no_candidate():
    emulated = stored("v3-emulated")

    def row(strategy, peak, fits):
        cell = emulated.cell.model_copy(update={"strategy": strategy})
        memory = emulated.memory.model_copy(update={"peak_allocated_bytes": peak})
        changes = {"cell": cell, "cell_id": cell.cell_id, "memory": memory, "validity": "valid", "findings": []}
        return emulated.model_copy(update=changes | {"emulation": emulated.emulation.model_copy(update={"fits": fits})})

    answer = said([row("z1", 10, False), row("z3", 20, True)], "peak memory")
    assert (answer.strategy, answer.provenance) == ("z3", "emulated")
    assert "z1 does not fit" in answer.why
    assert said([row("z1", 10, False), row("z3", 20, False)], "peak memory").margin == "none fits"


def test_one_rank_sends_nothing_so_nothing_is_said_of_traffic():
    assert said([made("z0", 1), made("z1", 1)], "traffic") is None
    assert said([made("z0"), made("z1", sent=750.0)], "traffic").margin == "33% less"


def test_one_strategy_alone_is_no_choice():
    assert said([made("z1")], "") is None
    assert table([]) == []


def test_stacks_are_answered_each_by_itself():
    stacks = ("deepspeed==0.17.5", "deepspeed==0.18.0")
    records = [
        made(strategy, peak=peak + number, requested_stack=stack)
        for number, stack in enumerate(stacks)
        for strategy, peak in (("z0", 400), ("z1", 200))
    ]
    lines = comparison(frame(records), "gradient_accumulation_steps")
    found = [answer for answer in answers(lines) if answer.by == "peak memory"]
    assert [answer.strategy for answer in found] == ["z1", "z1"]
    assert [answer.group.rpartition(", ")[2] for answer in found] == list(stacks)


def test_a_lead_of_less_than_a_percent_is_said_in_bytes():
    assert said([made("z1", peak=100_000), made("z2", peak=100_064)], "peak memory").margin == "64 B less"


def test_launches_that_failed_are_said_of_what_is_taken_and_what_it_leads():
    fast = [*launches("z1", 0.10, 0.11, 0.12), failed("z1", repeat=3), failed("z1", repeat=4, status="crashed")]
    records = [*fast, *launches("z2", 0.13, 0.15, 0.14, peak=2000), failed("z2", repeat=3), failed("z3")]
    speed, memory = said(records, "speed"), said(records, "peak memory")
    assert speed.strategy == memory.strategy == "z1"
    assert "z1 100.0 to 120.0 ms (3 launches) (2 of 5 oom/crashed), z2" in speed.why
    assert "Not candidates: z3: oom." in speed.why
    assert memory.why.startswith("z1 (2 of 5 oom/crashed) holds 0.00 MiB, z2 (1 of 4 oom) ")


@pytest.mark.parametrize(
    ("records", "margin"),
    [
        ([failed("z0"), failed("z1", status="host_oom")], "none fits"),
        ([failed("z0"), failed("z0", status="host_oom", repeat=1), failed("z1")], "none fits"),
        # a crash, a fault of the figures and a refusal say nothing of room
        ([failed("z0"), failed("z1", status="crashed")], "no row says"),
        ([failed("z0"), failed("z1", status="skipped")], "no row says"),
        ([failed("z0"), made("z1", validity="invalid")], "no row says"),
        ([failed("z0"), made("z1", findings=[Finding(check="a", verdict="suspect", text="b")])], "no row says"),
    ],
)
def test_none_fits_is_said_where_memory_ran_out_alone(records, margin):
    answer = said(records, "peak memory")
    assert (answer.strategy, answer.margin) == (None, margin)
    assert "Not candidates: z0: oom" in answer.why
