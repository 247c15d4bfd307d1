"""The runner is killed in the middle of the matrix: nothing is lost, nothing is left, the rest is measured."""

import contextlib
import signal
import subprocess
import sys
import time

import psutil
import pytest
from conftest import zerostage

from bench.launch.processes import RUN_MARKER, marked
from bench.store import read_records

pytestmark = pytest.mark.ranks


def default_signals():
    """What a runner started in a terminal has; a test run started with nohup or & ignores some of them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


# Of a cell of two ranks: with fork, the agents carry a rank's number too.
PROCESSES = {"fork": 4, "process": 2}


def start(path, isolation="fork"):
    argv = [sys.executable, "-m", "bench", "run", str(path), "--results", str(path.parent / "runs")]
    argv += ["--isolation", isolation]
    return subprocess.Popen(
        argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=default_signals
    )


def wait_for(condition, seconds=240):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def ranks(run):
    found = []
    for process in marked(RUN_MARKER, str(run.resolve())):
        with contextlib.suppress(psutil.Error):  # one of those that DeepSpeed starts for a moment
            if process.environ().get("RANK") and "python" in process.name():
                found.append(process)
    return found


@pytest.mark.parametrize("isolation", ["fork", pytest.param("process", marks=pytest.mark.slow)])
def test_kill_9_of_the_runner_loses_no_row_and_leaves_no_rank(scenario_file, isolation):
    path = scenario_file({"strategy": ["z0", "z1", "z2"], "world_size": 2}, steps=60)
    run = path.parent / "runs" / path.stem
    runner = start(path, isolation)
    wait_for(lambda: len(list(run.glob("records/*.json"))) == 1 and len(ranks(run)) == PROCESSES[isolation])
    runner.kill()
    runner.communicate()
    (kept,) = (run / "records").glob("*.json")
    before = kept.read_bytes()
    orphans = ranks(run)
    if isolation == "fork":  # agents see the runner go, and take their ranks and launchers with them
        wait_for(lambda: marked(RUN_MARKER, str(run.resolve())) == [], seconds=30)
    else:
        assert orphans  # they outlive the runner, so the next start has something to end

    done = zerostage("run", path, "--results", path.parent / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("processes that an interrupted run had left behind" in done.stdout) == (isolation == "process")
    assert "1 of 3 rows are there already" in done.stdout
    assert not any(process.is_running() for process in orphans)
    assert kept.read_bytes() == before
    assert {record.status for record in read_records(run)} == {"completed"}
    assert len(read_records(run)) == 3
    assert marked(RUN_MARKER, str(run.resolve())) == []


@pytest.mark.parametrize(
    ("number", "isolation"),
    [
        (signal.SIGINT, "fork"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in [(signal.SIGINT, "process"), (signal.SIGTERM, "fork"), (signal.SIGHUP, "fork")]
        ),
    ],
)
def test_ctrl_c_ends_every_process_and_says_how_to_go_on(scenario_file, number, isolation):
    path = scenario_file({"strategy": "z0", "world_size": 2}, steps=2000)
    run = path.parent / "runs" / path.stem
    runner = start(path, isolation)
    wait_for(lambda: len(ranks(run)) == PROCESSES[isolation])
    runner.send_signal(number)
    time.sleep(0.02)
    runner.send_signal(number)  # an impatient user; the second must not break into the clean-up
    _, errors = runner.communicate(timeout=60)
    assert runner.returncode == 130
    assert errors == "interrupted: finished cells are kept, the same command goes on from there\n"
    assert marked(RUN_MARKER, str(run.resolve())) == []
    assert list(run.glob("records/*.json")) == []


def test_two_runners_on_one_folder_are_refused(scenario_file):
    path = scenario_file({"strategy": "z0", "world_size": 1})
    run = path.parent / "runs" / path.stem
    first = start(path)
    wait_for(lambda: len(ranks(run)) == 1)
    second = zerostage("run", path, "--results", path.parent / "runs")
    assert second.returncode == 2
    assert f"process {first.pid}" in second.stderr
    first.communicate(timeout=240)
    assert first.returncode == 0
