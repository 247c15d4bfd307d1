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

from bench.errors import BuildError
from bench.launch import extensions
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


def locks(folder: Path, *names: str) -> list[Path]:
    found = [folder / name / "lock" for name in names]
    for lock in found:
        lock.parent.mkdir()
        lock.touch()
        os.utime(lock, (1, 1))
    return found


def test_stale_lock_is_removed_and_a_refreshed_one_spared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, retaken, released = locks(tmp_path, "old", "retaken", "released")
    other = tmp_path / "old" / "lock.so"
    other.touch()

    def meanwhile(seconds: float) -> None:
        assert seconds >= 1
        released.unlink()
        retaken.unlink()
        retaken.touch()

    monkeypatch.setattr(extensions.time, "sleep", meanwhile)
    extensions.clear_stale_locks(tmp_path)
    assert [lock.exists() for lock in (old, retaken, released, other)] == [False, True, False, True]


def test_folder_without_locks_costs_no_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions.time, "sleep", lambda seconds: pytest.fail("waited"))
    extensions.clear_stale_locks(tmp_path)
    extensions.clear_stale_locks(tmp_path / "absent")


def test_a_build_that_is_done_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launches of another run hold the folder's lock for minutes; a finished build must not need it."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    stack: dict[str, object] = {"torch": "1"}
    extensions.prepare(tmp_path, stack, ["true"], {}, run=tmp_path, log=tmp_path / "log")
    with extensions.in_use(tmp_path):
        extensions.prepare(tmp_path, stack, ["false"], {}, run=tmp_path, log=tmp_path / "log")


def test_a_failed_build_names_the_compilers_first_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    compiler = ["sh", "-c", "echo 'a.cpp:1:2: error: no such thing'; echo 'a.cpp:2:2: error: another'; exit 1"]
    for argv, cause in ((compiler, "a.cpp:1:2: error: no such thing"), (["false"], "exit status 1")):
        with pytest.raises(BuildError) as caught:
            extensions.prepare(tmp_path, {}, argv, {}, run=tmp_path, log=tmp_path / "setup.log")
        assert f"could not be built: {cause} (logs/setup.log)" in str(caught.value)


def test_a_build_that_does_not_end_names_folder_and_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(extensions, "BUILD_TIMEOUT_S", 0.5)
    with pytest.raises(BuildError) as caught:
        extensions.prepare(tmp_path, {}, ["sleep", "60"], {}, run=tmp_path, log=tmp_path / "setup.log")
    assert f"not done after 0.5 s; a lock file left in {tmp_path}/*" in str(caught.value)
    assert "logs/setup.log" in str(caught.value)
