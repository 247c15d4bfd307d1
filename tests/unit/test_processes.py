import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from bench.launch.processes import kill_marked, marked

MARKER = "ZEROSTAGE_TEST"
SLEEP = "import time; time.sleep(300)"
# child -> grandchild in a session of its own -> great-grandchild; the child ends, so that they are orphans.
TREE = """
import os, subprocess, sys, time
level = int(sys.argv[1])
with open(os.path.join(sys.argv[2], f"level{level}.part"), "w") as stream:
    stream.write(str(os.getpid()))
os.rename(stream.name, stream.name.removesuffix(".part"))
if level < 3:
    argv = [sys.executable, "-c", os.environ["TREE"], str(level + 1), sys.argv[2]]
    subprocess.Popen(argv, start_new_session=level == 1)
if level != 1:
    time.sleep(300)
"""


def wait_until(condition: Callable[[], object]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("waited for 30 s")


@pytest.fixture
def marker() -> Iterator[str]:
    value = uuid.uuid4().hex
    yield value
    for process in marked(MARKER, value):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def start(code: str, *arguments: object, **env: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], env={**os.environ, **env})


@pytest.fixture
def tree(tmp_path: Path, marker: str) -> tuple[subprocess.Popen[bytes], list[int]]:
    child = start(TREE, 1, tmp_path, TREE=TREE, **{MARKER: marker})
    wait_until(lambda: (tmp_path / "level3").exists())
    child.wait(30)
    return child, [int((tmp_path / f"level{level}").read_text()) for level in (2, 3)]


def test_whole_tree_is_killed_and_nobody_else(marker: str, tree: tuple[subprocess.Popen[bytes], list[int]]) -> None:
    child, orphans = tree
    assert psutil.Process(orphans[0]).ppid() not in (os.getpid(), child.pid)
    assert os.getsid(orphans[0]) == orphans[0]
    direct = start(SLEEP, **{MARKER: marker})
    strangers = [start(SLEEP), start(SLEEP, **{MARKER: "another"}), start(SLEEP, OTHER=marker)]
    try:
        wait_until(lambda: len(marked(MARKER, marker)) == 3)
        assert {process.pid for process in marked(MARKER, marker)} == {direct.pid, *orphans}
        assert kill_marked(MARKER, marker) == 3
        direct.wait(30)  # psutil reaped it, so its exit status is lost
        assert marked(MARKER, marker) == []
        assert [stranger.poll() for stranger in strangers] == [None, None, None]
    finally:
        for stranger in strangers:
            stranger.kill()
            stranger.wait()


def test_process_that_ignores_the_polite_signals_is_killed(marker: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = f"""
import signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
open({str(ready)!r}, "w").close()
time.sleep(300)
"""
    stubborn = start(code, **{MARKER: marker})
    wait_until(ready.exists)
    assert kill_marked(MARKER, marker) == 1
    stubborn.wait(30)


def test_nothing_to_kill() -> None:
    assert kill_marked(MARKER, uuid.uuid4().hex) == 0
