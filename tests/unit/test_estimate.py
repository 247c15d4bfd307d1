"""What earlier runs tell of the time that cells will take, and the time left while they run."""

import json
import os
import platform
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench import estimate, progress
from bench.environment import installed
from bench.plan import PlannedCell, Resources, plan
from bench.progress import MatrixProgress
from bench.record import Record, parse_record
from bench.scenario import Scenario
from bench.show import show_plan
from bench.store import record_name, supersede, write_record

STORED = Path(__file__).parents[1] / "data" / "records" / "v1-completed.json"
NOW = {"python": platform.python_version(), **installed()}
OLD = NOW | {"python": "3.1.4"}
OFFER = Resources(device="cpu", slots=8, memory_bytes=2**40, shared=True)


def cells(**matrix: Any) -> list[PlannedCell]:
    axes = {"model": "llama-tiny", "strategy": "z2", "world_size": 2} | matrix
    return plan(Scenario.model_validate({"matrix": axes, "warmup_steps": 2, "steps": 3}), OFFER)


def row(planned: PlannedCell, wall_s: float, *, day: int = 1, **changes: Any) -> Record:
    """A row whose ten steps (five of them counted) took 0.1 s each, and the rest of ``wall_s`` all else."""
    stored = parse_record(STORED.read_text(), STORED.name)
    assert stored.launch is not None
    assert stored.timing is not None
    launch = {name: changes.pop(name) for name in ("isolation", "agents_start_s") if name in changes}
    return stored.model_copy(
        update={
            "cell": planned.cell,
            "cell_id": planned.cell_id,
            "requested_stack": planned.stack,
            "stack": NOW,
            "timing": stored.timing.model_copy(update={"step_time_s": 0.1}),
            "launch": stored.launch.model_copy(
                update={"wall_time_s": wall_s, "started_at": f"2026-11-{day:02d}T10:00:00+00:00"} | launch
            ),
        }
        | changes
    )


def known(results: Path, *rows: Record) -> estimate.History:
    for number, each in enumerate(rows):
        write_record(results / f"run{number}", each)
    return estimate.history(results, "cpu")


def test_the_newest_run_of_a_cell_wins_wherever_it_lies(tmp_path: Path) -> None:
    (cell,) = cells()
    history = known(tmp_path, row(cell, 11.0, day=2), row(cell, 12.0, day=3), row(cell, 13.0, day=1))
    assert estimate.seconds(cell, history, "process") == 12.0
    assert estimate.is_known(cell, history)


def test_rows_put_aside_still_tell(tmp_path: Path) -> None:
    (cell,) = cells()
    assert estimate.seconds(cell, known(tmp_path, row(cell, 11.0)), "process") == 11.0
    assert supersede(tmp_path / "run0", {record_name(cell.cell_id, 0)}) == 1
    history = estimate.history(tmp_path, "cpu")
    assert estimate.is_known(cell, history)
    assert estimate.seconds(cell, history, "process") == 11.0


def test_a_newer_run_on_other_versions_counts_only_where_there_is_none_on_those_of_now(tmp_path: Path) -> None:
    (cell,) = cells()
    history = known(tmp_path, row(cell, 40.0, day=9, stack=OLD))
    assert estimate.seconds(cell, history, "process") == 40.0
    assert not estimate.is_known(cell, history)
    write_record(tmp_path / "now", row(cell, 11.0, day=1))
    history = estimate.history(tmp_path, "cpu")
    assert estimate.seconds(cell, history, "process") == 11.0
    assert estimate.is_known(cell, history)


def test_a_requested_stack_is_its_releases_over_what_is_installed(tmp_path: Path) -> None:
    here, there = cells(stack=["installed", "deepspeed==0.17.5"])
    assert here.cell_id == there.cell_id
    history = known(tmp_path, row(there, 30.0, day=9, stack=NOW | {"deepspeed": "0.17.5"}))
    assert estimate.is_known(there, history)
    # Of the installed stack it is not known, but no guess from another model's speed would be nearer.
    assert not estimate.is_known(here, history)
    assert estimate.seconds(here, history, "process") == 30.0
    write_record(tmp_path / "now", row(here, 11.0, day=1))
    history = estimate.history(tmp_path, "cpu")
    assert [estimate.seconds(each, history, "process") for each in (here, there)] == [11.0, 30.0]


def test_a_build_of_the_installed_release_is_the_same_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index's torch calls itself 2.13.0 as a package and 2.13.0+cu130 when it is imported."""
    monkeypatch.setattr(estimate, "installed", lambda: {"torch": "2.13.0"})
    (cell,) = cells()
    assert estimate.is_known(cell, known(tmp_path, row(cell, 11.0, stack=NOW | {"torch": "2.13.0+cu130"})))
    assert not estimate.is_known(cell, known(tmp_path / "b", row(cell, 11.0, stack=NOW | {"torch": "2.12.0+cu130"})))


def test_the_other_isolation_takes_the_steps_and_what_lies_outside_them_there(tmp_path: Path) -> None:
    cell, *others = cells(world_size=[1, 2, 4, 8])
    measured = {"building the engine": 0.5, "counting pass": 2.0, "timed pass": 1.0}
    forked = [row(other, wall_s, isolation="fork") for other, wall_s in zip(others, (2.5, 2.0, 9.0), strict=True)]
    # Ten steps of 0.1 s: 1.5, 1.0 and 8.0 s outside them.
    history = known(tmp_path, row(cell, 12.0, activity_s=measured), *forked)
    assert estimate.seconds(cell, history, "process") == 12.0
    assert estimate.seconds(cell, history, "fork") == pytest.approx(3.0 + 1.5)
    assert estimate.seconds(others[0], history, "fork") == 2.5
    assert estimate.seconds(others[0], history, "process") == pytest.approx(1.0 + 9.0)


def test_what_no_run_shows_is_assumed_and_said_to_be(tmp_path: Path) -> None:
    (cell,) = cells()
    nothing = estimate.history(tmp_path / "nowhere", "cpu")
    assert estimate.basis([cell], nothing) == "by an assumed start-up and speed"
    difference = estimate.seconds(cell, nothing, "process") - estimate.seconds(cell, nothing, "fork")
    assert difference == pytest.approx(25.0 - 2.0)
    assert estimate.agents_seconds(nothing) == 25.0
    history = known(tmp_path, row(cell, 12.0))
    assert estimate.seconds(cell, history, "fork") == pytest.approx(10 * 0.1 + 2.0)
    assert estimate.basis([cell], history, "fork") == "by their last run on this stack; start-up assumed"
    assert estimate.basis([cell], history, "process") == "by their last run on this stack"


def test_agents_start_once_per_stack_and_repeat_and_only_for_forks(tmp_path: Path) -> None:
    first, second, *_ = both = cells(stack=["installed", "deepspeed==0.17.5"])
    rows = [
        row(each, 2.0, isolation="fork", agents_start_s=start) for each, start in zip(both, (8.0, 6.0), strict=True)
    ]
    history = known(tmp_path, *rows, row(first, 2.0, isolation="fork", day=2))
    launches = [(first.stack, 0), (first.stack, 0), (second.stack, 0), (first.stack, 0), (first.stack, 1)]
    assert estimate.starts(launches, history, "fork") == [7.0, 0.0, 7.0, 0.0, 7.0]
    assert estimate.starts(launches, history, "fork", running=[(None, 0)]) == [0.0, 0.0, 7.0, 0.0, 7.0]
    assert estimate.starts(launches, history, "process") == [0.0] * 5
    assert estimate.reference_seconds([], history, "fork") == pytest.approx(1.0)
    # Where none was started yet, they take what a launch takes before its steps.
    assert estimate.agents_seconds(known(tmp_path / "processes", row(first, 12.0))) == pytest.approx(11.0)


def test_a_new_cell_takes_the_speed_of_plain_steps_and_the_cost_of_counted_ones(tmp_path: Path) -> None:
    """A row of few steps is mostly counting pass, whose instrumented steps must not pass for the model's speed."""
    cell, other = cells(seq_length=[64, 128])
    flops = estimate.flops_per_token(other.config, 64)
    assert flops is not None
    rate = flops * other.cell.train_batch_size * 64 / 2 / 0.1 / 1e12  # at which 64 tokens take 0.1 s on each of 2 ranks
    stored = parse_record(STORED.read_text(), STORED.name).throughput
    assert stored is not None
    history = known(
        tmp_path,
        row(
            other,
            12.5,
            activity_s={"counting pass": 2.0, "timed pass": 0.5},  # 0.4 s a counted step
            throughput=stored.model_copy(update={"tflops_per_gpu": rate}),
        ),
    )
    assert not estimate.is_known(cell, history)
    assert estimate.seconds(cell, history, "process") == pytest.approx(10.0 + 5 * 0.4 + 5 * 0.1)
    assert estimate.basis([cell, other], history, "process") == (
        "1 of 2 cells by their last run on this stack, 1 by the speed of other cells"
    )


def test_a_family_without_a_formula_takes_the_steps_of_other_rows(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "olmo", "hidden_size": 64, "vocab_size": 512}))
    unknown, (cell,) = cells(model=str(config))[0], cells()
    assert unknown.params is None
    nothing = estimate.history(tmp_path / "nowhere", "cpu")
    assert estimate.seconds(unknown, nothing, "fork") == pytest.approx(2.0 + 10 * estimate.ASSUMED_STEP_S)
    history = known(tmp_path / "results", row(cell, 12.0))
    assert estimate.seconds(unknown, history, "process") == pytest.approx(11.0 + 10 * 0.1)


@pytest.mark.parametrize(
    "text",
    [
        '{"status": "compl',
        "[]",
        "\xff",
        "[" * 100_000,
        '{"status": "completed", "device": "cpu", "schema_version": 2, "launch": null}',
    ],
)
def test_a_damaged_record_tells_nothing_and_hides_no_other(tmp_path: Path, text: str) -> None:
    (cell,) = cells()
    write_record(tmp_path / "run", row(cell, 11.0))
    (tmp_path / "run" / "records" / "torn-r0.json").write_bytes(text.encode("latin-1"))
    (tmp_path / "run" / "records" / "gone-r0.json").symlink_to(tmp_path / "nowhere")
    assert estimate.seconds(cell, estimate.history(tmp_path, "cpu"), "process") == 11.0


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "timeout"},
        {"device": "cuda"},
        {"schema_version": 99},
    ],
)
def test_other_devices_failures_and_newer_schemas_tell_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    (cell,) = cells()
    assert not known(tmp_path, row(cell, 900.0, **changes)).runs


def test_a_store_beyond_the_limit_is_read_from_its_newest_rows_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "_READ_AT_MOST", 2)
    some = cells(world_size=[1, 2, 4])
    for number, each in enumerate(some):
        write_record(tmp_path / "run", row(each, 11.0))
        path = tmp_path / "run" / "records" / f"{record_name(each.cell_id, 0)}.json"
        os.utime(path, (10.0 - number, 10.0 - number))
    assert estimate.history(tmp_path, "cpu").runs.keys() == {each.cell_id for each in some[:2]}


def test_plan_says_what_its_time_rests_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = {"matrix": {"model": "llama-tiny", "strategy": ["z1", "z2"]}, "repeat": 3}
    path = tmp_path / "made.yaml"
    path.write_text(json.dumps(scenario))
    first, second = plan(Scenario.model_validate(scenario), OFFER)
    monkeypatch.setattr("bench.environment.gpus", list)
    results = tmp_path / "results"
    rows = [row(first, 4.0, isolation="fork", agents_start_s=9.0), row(first, 4.0, isolation="fork", day=2)]
    write_record(results / "made", rows[0])
    write_record(results / "other", rows[1])
    write_record(results / "another", row(second, 6.0, isolation="fork", stack=OLD))
    console = Console(width=200)
    with console.capture() as captured:
        show_plan(path, results, [], 8, console)
    *_, counts, time = captured.get().splitlines()
    # One of the six launches has its row already: 2 x 4 s, 3 x 6 s, and agents of 9 s for each of 3 repeats.
    assert counts.startswith("2 cells x 3 launches, 0 cells skipped, 5 launches to run; 8 cpu slots")
    assert time == (
        "about 53 s, 1 of 2 cells by their last run on this stack, 1 by a run on another stack; "
        "reference runs come on top"
    )


# The time left


class Clock:
    """Stands in for the module ``time`` of bench.progress."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def finish(shown: MatrixProgress, clock: Clock, wall_s: float, status: str = "completed") -> None:
    shown.begin("a cell")
    clock.now += wall_s
    shown.end(row(cells()[0], wall_s, status=status))


def test_time_left_follows_the_pace_of_completed_launches(clock: Clock) -> None:
    shown = MatrixProgress(Console(quiet=True), [10.0, 20.0, 30.0])
    assert shown.left_s() == 60.0
    finish(shown, clock, 15.0)
    assert shown.left_s() == pytest.approx(1.5 * 50.0)
    shown.begin("the next")
    clock.now += 12.0
    assert shown.left_s() == pytest.approx(1.5 * 50.0 - 12.0)
    clock.now += 900.0  # it hangs: the last one still takes its time
    assert shown.left_s() == pytest.approx(1.5 * 30.0)


@pytest.mark.parametrize(("status", "wall_s"), [("timeout", 900.0), ("crashed", 1.0), ("oom", 3.0)])
def test_a_launch_that_did_not_complete_leaves_the_pace_alone(clock: Clock, status: str, wall_s: float) -> None:
    shown = MatrixProgress(Console(quiet=True), [10.0] * 4)
    finish(shown, clock, wall_s, status)
    assert shown.left_s() == 30.0
    finish(shown, clock, 12.0)
    assert shown.left_s() == pytest.approx(24.0)


def test_a_guess_that_was_wrong_says_nothing_of_what_is_known(clock: Clock) -> None:
    shown = MatrixProgress(Console(quiet=True), [10.0] * 4, known=[False, True, False, True])
    finish(shown, clock, 50.0)
    assert shown.left_s() == pytest.approx(10.0 + 50.0 + 10.0)
    finish(shown, clock, 11.0)
    assert shown.left_s() == pytest.approx(50.0 + 11.0)


def test_the_start_of_agents_is_of_no_pace(clock: Clock) -> None:
    shown = MatrixProgress(Console(quiet=True), [2.0] * 3, starts_s=[10.0, 0.0, 10.0])
    assert shown.left_s() == 26.0
    clock.now += 4.0
    assert shown.left_s() == 22.0
    clock.now += 300.0  # they take their time; then the cells still do
    assert shown.left_s() == 16.0
    shown.begin("a cell")
    assert shown.left_s() == 16.0
    finish(shown, clock, 4.0)
    assert shown.left_s() == pytest.approx(4.0 + 10.0 + 4.0)


def test_no_time_is_left_after_the_last_launch(clock: Clock) -> None:
    shown = MatrixProgress(Console(quiet=True), [2.0])
    finish(shown, clock, 2.0)
    assert shown.left_s() == 0.0
