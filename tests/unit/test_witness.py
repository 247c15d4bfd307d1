"""What only a look at the living machine can say: counters of the OOM killer, stacks on a signal."""

import contextlib
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from bench.hang import threads
from bench.launch import witness
from bench.launch.processes import LAUNCH_MARKER, kill_marked


def files(root: Path, content: dict[str, str]) -> Path:
    for name, text in content.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V1 = "12:memory:/user/job7\n3:cpu,cpuacct:/\n0::/\n"
V2 = "0::/user.slice/job7.scope\n"
EVENTS = "low 0\nhigh 0\nmax 8\noom 2\noom_kill {}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"


@pytest.mark.parametrize(
    ("membership", "cgroups", "counted"),
    [
        (V1, {"memory/user/job7/memory.oom_control": CONTROL.format(3)}, ("cgroup", 3)),
        # In a container: the path is the host's, the mounted root is the container's own.
        (V1, {"memory/memory.oom_control": CONTROL.format(4)}, ("cgroup", 4)),
        (V2, {"user.slice/job7.scope/memory.events": EVENTS.format(5)}, ("cgroup", 5)),
        (V2, {"memory.events": EVENTS.format(6)}, ("cgroup", 6)),
        # The root of v2 has no memory.events, an old kernel's v1 no count: the whole machine's then.
        (V2, {}, ("machine", 7)),
        (V1, {"memory/user/job7/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n"}, ("machine", 7)),
    ],
)
def test_counter_is_the_cgroups_own_where_there_is_one(
    tmp_path: Path, membership: str, cgroups: dict[str, str], counted: tuple[str, int]
) -> None:
    proc = files(tmp_path / "proc", {"self/cgroup": membership, "vmstat": "pgfault 99\noom_kill 7\n"})
    assert witness.oom_kills(files(tmp_path / "cgroups", cgroups), proc) == counted


def test_no_counter_is_no_evidence(tmp_path: Path) -> None:
    assert witness.oom_kills(tmp_path, tmp_path) is None


def test_kills_are_those_between_two_readings() -> None:
    assert witness.kills_between(("cgroup", 2), ("cgroup", 3)) == (
        "the kernel's OOM killer ended 1 process(es) of this cgroup meanwhile"
    )
    assert witness.kills_between(("cgroup", 2), ("cgroup", 2)) is None
    assert witness.kills_between(("cgroup", 2), ("machine", 9)) is None
    assert witness.kills_between(None, ("machine", 9)) is None


# A package of that name, as the ranks are found by it; two ranks, a child of one, a launcher that names the module.
RANK = """
import faulthandler, os, signal, sys, time
from pathlib import Path
file = open(Path(sys.argv[1]) / f"stacks.rank{os.environ['RANK']}.txt", "w")
if os.environ["RANK"] != "2":
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
if os.environ["RANK"] == "0" and os.fork() == 0:
    time.sleep(300)
def spin():
    while True:
        pass
def wait():
    time.sleep(300)
Path(sys.argv[1], f"ready{os.environ['RANK']}").touch()
spin() if os.environ["RANK"] == "1" else wait()
"""


def test_living_ranks_write_their_stacks_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files(tmp_path, {"bench/__init__.py": "", "bench/worker/__init__.py": "", "bench/worker/main.py": RANK})
    launch = uuid.uuid4().hex
    env = {**os.environ, "PYTHONPATH": str(tmp_path), LAUNCH_MARKER: launch}
    module = ["-m", "bench.worker.main", str(tmp_path)]
    started = [
        subprocess.Popen([sys.executable, *module], env={**env, "RANK": str(rank)}, cwd=tmp_path) for rank in range(3)
    ]
    sleep = [sys.executable, "-c", "import time; time.sleep(300)", "--module", *module[1:]]
    started.append(subprocess.Popen(sleep, env={**env, "RANK": "0"}))
    monkeypatch.setattr(witness, "PAUSE_S", 1.0)
    try:
        for _ in range(600):
            if all((tmp_path / f"ready{rank}").exists() for rank in range(3)):
                break
            time.sleep(0.05)
        found = {stack.rank: stack for stack in witness.rank_stacks(witness.ranks_of(launch), tmp_path)}
        assert [process.poll() for process in started] == [None] * 4  # nobody died of the signal
    finally:
        with contextlib.suppress(RuntimeError):
            kill_marked(LAUNCH_MARKER, launch)
        for process in started:
            process.wait(30)
    assert sorted(found) == [0, 1, 2]
    for rank, function in ((0, "wait"), (1, "spin")):
        for text in (found[rank].first, found[rank].second):
            (frames,) = threads(text)
            assert frames[0].function == function
    assert found[0].cpu_share < 0.05 < found[1].cpu_share
    assert (found[2].first, found[2].second) == ("", "")  # it has no handler (yet), so it got no signal


def test_no_ranks_no_stacks(tmp_path: Path) -> None:
    assert witness.rank_stacks(witness.ranks_of(uuid.uuid4().hex), tmp_path) == []
