import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.utils.file_baton import FileBaton

from bench.errors import BuildError
from bench.launch import extensions

# Takes the lock as torch's loader does, with the same flags, and is killed holding it.
LOADER = """
import os, sys, time
descriptor = os.open(sys.argv[1], os.O_CREAT | os.O_EXCL)
print("locked", flush=True)
time.sleep(300)
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "_STALE_AFTER_S", 0.05)
    monkeypatch.setattr(extensions, "_POLL_S", 0.01)
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """Return where the loader makes its lock; none is there yet."""
    (tmp_path / "deepspeed_shm_comm").mkdir()
    return tmp_path / "deepspeed_shm_comm" / "lock"


@pytest.fixture
def loader(lock: Path) -> Iterator[subprocess.Popen[str]]:
    """Return a living process that holds the lock."""
    with subprocess.Popen([sys.executable, "-c", LOADER, str(lock)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the folder one that the user named, on a file system that other machines may use."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", f"{tmp_path}/")
    monkeypatch.setattr(extensions, "_LOCAL_FILE_SYSTEMS", set())


def make_old(lock: Path, age_s: float) -> None:
    lock.touch()
    now = lock.stat().st_mtime
    os.utime(lock, (now - age_s, now - age_s))


def once(action: Callable[[], object]) -> Callable[[], None]:
    left = [action]
    return lambda: left.pop()() and None if left else None


def test_torchs_own_lock_is_held_for_as_long_as_the_loader_has_it(lock: Path) -> None:
    baton = FileBaton(str(lock))
    assert baton.try_acquire()
    assert extensions.holder(lock) == os.getpid()
    baton.release()
    assert extensions.holder(lock) is None
    lock.touch()
    assert extensions.holder(lock) is None
    with (lock.parent / "another").open("w"), lock.with_name("lock.so").open("w"):
        assert extensions.holder(lock) is None


@pytest.mark.parametrize("named", [False, True])
def test_a_lock_is_kept_while_its_loader_lives_and_cleared_when_it_is_killed(
    lock: Path, loader: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    if named:
        monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(extensions, "_is_local", lambda path: True)
    os.utime(lock, (1, 1))  # however old
    said: list[str] = []

    def kill() -> None:
        if said:  # it has been waited for
            loader.kill()
            loader.wait()

    assert extensions.free_locks(tmp_path, said.append, kill) is None
    assert not lock.exists()
    waited, cleared = said
    assert waited.startswith(f"process {loader.pid} has held deepspeed_shm_comm/lock for ")
    assert cleared.startswith("found deepspeed_shm_comm/lock, ")
    assert cleared.endswith(" old, which no process holds: left by a build that was killed; removed")


def test_a_holder_that_does_not_end_is_named_and_its_lock_spared(
    lock: Path, loader: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extensions, "BUILD_TIMEOUT_S", 0.2)
    said: list[str] = []
    still = extensions.free_locks(tmp_path, said.append)
    assert still is not None
    assert still.startswith(f"process {loader.pid} still holds deepspeed_shm_comm/lock")
    with extensions.in_use(tmp_path, said.append):  # the ranks go on; what stops them is told
        assert said[-1].startswith(f"process {loader.pid} still holds")
    with pytest.raises(BuildError, match=f"could not be built: process {loader.pid} still holds"):
        extensions.prepare(tmp_path, {}, ["true"], {}, run=tmp_path, log=tmp_path / "log")
    assert lock.exists()


def test_a_lock_that_goes_or_is_taken_anew_is_left_alone(lock: Path, tmp_path: Path) -> None:
    said: list[str] = []
    lock.touch()
    assert extensions.free_locks(tmp_path, said.append, once(lock.unlink)) is None

    def take_anew() -> None:
        lock.unlink()
        lock.touch()

    make_old(lock, 60)
    assert extensions.free_locks(tmp_path, said.append, once(take_anew)) is None
    assert lock.exists()
    assert said == []


def test_folder_without_locks_costs_no_waiting(tmp_path: Path) -> None:
    said: list[str] = []
    other = tmp_path / "my_op" / "lock"  # of an op that no rank of ours loads
    other.parent.mkdir()
    make_old(other, 3600)
    assert extensions.free_locks(tmp_path, said.append, lambda: pytest.fail("waited")) is None
    assert extensions.free_locks(tmp_path / "absent", said.append, lambda: pytest.fail("waited")) is None
    assert other.exists()
    assert said == []


@pytest.mark.usefixtures("shared")
def test_in_a_shared_folder_only_a_lock_older_than_any_build_is_stale(lock: Path, tmp_path: Path) -> None:
    said: list[str] = []
    make_old(lock, extensions.BUILD_TIMEOUT_S + 60)
    assert extensions.free_locks(tmp_path, said.append) is None
    assert not lock.exists()
    (cleared,) = said
    assert cleared.startswith("found deepspeed_shm_comm/lock, 16 min 0")
    assert cleared.endswith("left by a build that was killed; removed")

    said.clear()
    make_old(lock, extensions.BUILD_TIMEOUT_S - 60)

    def delete() -> None:
        if said:  # as the user is told to
            lock.unlink()

    assert extensions.free_locks(tmp_path, said.append, delete) is None
    (waited,) = said
    assert "another machine or user may be building: it is waited for until" in waited
    assert f"if nobody builds, delete {lock}" in waited

    said.clear()
    make_old(lock, extensions.BUILD_TIMEOUT_S - 0.5)
    assert extensions.free_locks(tmp_path, said.append) is None
    assert not lock.exists()
    waited, cleared = said
    assert "another machine or user may be building" in waited
    assert cleared.endswith("left by a build that was killed; removed")


def test_a_folder_is_local_only_where_its_own_mount_is_known_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = {"/": "overlay", "/mnt-a": "nfs4", "/mnt-a/scratch": "xfs", "/mnt-b": "new", "/mnt-c": "autofs"}
    mounted = [*mounts.items(), ("/mnt-c", "ext4")]  # over the one before it
    parts = [SimpleNamespace(mountpoint=point, fstype=fstype) for point, fstype in mounted]
    monkeypatch.setattr(extensions.psutil, "disk_partitions", lambda all: parts)
    expected = {"/mnt-abc": True, "/mnt-a/x": False, "/mnt-a/scratch/x": True, "/mnt-b": False, "/mnt-c/x": True}
    assert {path: extensions._is_local(Path(path)) for path in expected} == expected


def test_a_lock_that_cannot_be_removed_is_named_with_the_reason(lock: Path, tmp_path: Path) -> None:
    lock.mkdir()
    still = extensions.free_locks(tmp_path)
    assert still is not None
    assert "it cannot be removed (Is a directory)" in still
    assert f"delete {lock}" in still


def test_a_lock_is_cleared_also_where_nothing_needs_building(lock: Path, tmp_path: Path) -> None:
    said: list[str] = []
    extensions.prepare(tmp_path, {}, ["true"], {}, run=tmp_path, log=tmp_path / "log", say=said.append)
    assert said == []
    lock.touch()
    extensions.prepare(tmp_path, {}, ["false"], {}, run=tmp_path, log=tmp_path / "log", say=said.append)
    assert not lock.exists()
    lock.touch()
    with extensions.in_use(tmp_path, said.append):
        assert not lock.exists()
    assert [line.rpartition("; ")[2] for line in said] == ["removed", "removed"]


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


def test_a_build_that_does_not_end_names_log_and_who_holds_the_lock(
    lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extensions, "BUILD_TIMEOUT_S", 2)

    def build(argv: list[str]) -> str:
        with pytest.raises(BuildError) as caught:
            extensions.prepare(tmp_path, {}, argv, {}, run=tmp_path, log=tmp_path / "setup.log")
        return str(caught.value)

    assert "could not be built: not done after 2 s (logs/setup.log)" in build(["sleep", "60"])
    # A loader that is no process of this launch's takes the lock when the build has begun.
    start = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {LOADER!r}, {str(lock)!r}], env={{}})"
    message = build([sys.executable, "-c", f"{start}; import time; time.sleep(60)"])
    pid = extensions.holder(lock)
    assert pid is not None
    os.kill(pid, 9)
    assert f"not done after 2 s; process {pid} holds deepspeed_shm_comm/lock (logs/setup.log)" in message


def test_a_compiler_that_is_not_there_is_named(tmp_path: Path) -> None:
    for variables, named in (({}, "no c++ on PATH"), ({"CXX": "clang++-99 -m64"}, "no clang++-99 on PATH")):
        env = {"PATH": str(tmp_path)} | variables
        with pytest.raises(BuildError) as caught:
            extensions.prepare(tmp_path, {}, ["/bin/false"], env, run=tmp_path, log=tmp_path / "setup.log")
        assert f"there is {named}: install a C++ compiler (g++)" in str(caught.value)
