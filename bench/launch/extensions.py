"""The folder of compiled ops: built once per environment, as set-up, and never left locked.

torch's extension loader takes a lock file even to find that nothing needs building, and waits for it without
end and without a word. A build or a rank killed in that moment leaves the file behind, and every later run on
the machine would hang. But the loader keeps the file open for as long as it holds it (``torch.utils.file_baton``),
so a lock that no process has open is stale.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import psutil

from bench.errors import BuildError, LaunchError
from bench.launch.deepspeed import launch
from bench.messages import build_error
from bench.progress import duration

BUILD_TIMEOUT_S = 900.0
# A loader that finds nothing to build holds the lock for well under a second, on a busy machine for a few.
_STALE_AFTER_S = 10.0
_POLL_S = 0.5
# The ops that ranks load on CPU; in a folder of the user's, the locks of other ops stop nobody here.
_LOCKS = "deepspeed_*/lock"
_LOCAL_FILE_SYSTEMS = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}

Say = Callable[[str], None]
Tick = Callable[[], None]


def _key(stack: dict[str, object]) -> str:
    # The build files hold the paths of the environment's headers: in another environment, of the same versions
    # even, the loader finds them stale and compiles again, inside a cell.
    identity = json.dumps([stack, sys.prefix], sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


def folder(stack: dict[str, object]) -> Path:
    """Return the extensions folder of this environment: the user's TORCH_EXTENSIONS_DIR, or one in the cache."""
    if "TORCH_EXTENSIONS_DIR" in os.environ:
        return Path(os.environ["TORCH_EXTENSIONS_DIR"])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "zerostage" / "torch_extensions" / _key(stack)


def holder(lock: Path) -> int | None:
    """Return the id of a process that has the file open, ``None`` when there is none or the file is gone.

    Not seen are the processes of other users (except by root), of other machines and of other containers.
    """
    with contextlib.suppress(OSError):
        wanted = lock.stat()
        for pid in psutil.pids():
            with contextlib.suppress(OSError):  # it has ended, or may not be looked into
                if any(_is_open(descriptor, lock.name, wanted) for descriptor in Path(f"/proc/{pid}/fd").iterdir()):
                    return pid
    return None


def _is_open(descriptor: Path, name: str, wanted: os.stat_result) -> bool:
    with contextlib.suppress(OSError):  # closed meanwhile
        # The name first: the status of any file that anyone has open can take for ever to get, over a network.
        return descriptor.readlink().name == name and os.path.samestat(descriptor.stat(), wanted)
    return False


def _identity(lock: Path) -> tuple[int, ...] | None:
    with contextlib.suppress(OSError):
        status = lock.stat()
        return status.st_ino, status.st_mtime_ns, status.st_uid
    return None


def _is_local(path: Path) -> bool:
    """Whether no other machine can write there; a file system that is not known may be shared."""
    where = path.resolve()
    mounts = [part for part in psutil.disk_partitions(all=True) if where.is_relative_to(part.mountpoint)]
    mounts.sort(key=lambda part: len(part.mountpoint))  # of two at one point, the later hides the earlier
    return bool(mounts) and mounts[-1].fstype in _LOCAL_FILE_SYSTEMS


def _may_be_anothers(extensions: Path, owner: int) -> bool:
    """Whether a lock that no process is seen to hold may be held all the same, for as long as a build takes.

    In zerostage's own folder it cannot: whoever builds there, on whichever machine, holds the folder, and loaders
    take a few seconds. In a folder that the user named others build too; but where the file system is local and
    their processes can be looked into, they would be seen. Such a folder is mostly local: without this, each
    stale lock would cost a quarter of an hour.
    """
    if "TORCH_EXTENSIONS_DIR" not in os.environ or Path(os.environ["TORCH_EXTENSIONS_DIR"]) != extensions:
        return False
    return not _is_local(extensions) or os.geteuid() not in (0, owner)


def _free(lock: Path, say: Say, on_tick: Tick) -> str | None:
    """Wait until the lock that is there now is gone, and remove it once it is stale; return why it is still there."""
    identity = _identity(lock)
    if identity is None:
        return None
    found = time.time()
    created = min(found, identity[1] / 1e9)
    looked_at = found + _STALE_AFTER_S
    build_s = BUILD_TIMEOUT_S if _may_be_anothers(lock.parents[1], owner=identity[2]) else 0
    stale_at = max(looked_at, created + build_s)
    told_of: int | None = 0  # the holder; no process has this id
    while _identity(lock) == identity:
        now = time.time()
        if now >= looked_at:
            age = duration(now - created)
            pid = holder(lock)
            if pid is None and now >= stale_at:
                return _remove(lock, identity, age, say)
            if pid is not None and now >= found + BUILD_TIMEOUT_S:
                return f"process {pid} still holds {_name(lock)}, for {age} by now: end it, or wait for its build"
            if pid != told_of:
                told_of = pid
                held = f"process {pid} has held {_name(lock)} for {age}; waiting for it"
                say(_unclear(lock, age, stale_at) if pid is None else held)
        on_tick()
        time.sleep(_POLL_S)
    return None


def _remove(lock: Path, identity: tuple[int, ...], age: str, say: Say) -> str | None:
    what = f"found {_name(lock)}, {age} old, which no process holds: left by a build that was killed"
    if _identity(lock) == identity:  # not taken anew while processes were looked through
        try:
            lock.unlink(missing_ok=True)
        except OSError as error:
            return f"{what}; it cannot be removed ({error.strerror}): delete {lock}"
        say(f"{what}; removed")
    return None


def _name(lock: Path) -> str:
    return f"{lock.parent.name}/{lock.name}"


def _unclear(lock: Path, age: str, stale_at: float) -> str:
    until = time.strftime("%H:%M:%S", time.localtime(stale_at))
    return (
        f"found {_name(lock)}, {age} old, which no process that can be seen from here holds; another machine or user "
        f"may be building: it is waited for until {until}, then removed; if nobody builds, delete {lock}"
    )


def free_locks(extensions: Path, say: Say = lambda line: None, on_tick: Tick = lambda: None) -> str | None:
    """Wait until no lock file that is there now would stop a loader, and remove those that killed builds left.

    A lock is stale when no process here has it open and it stays as it is for 10 s; in a folder that others may
    build in, when it also is older than any build, `BUILD_TIMEOUT_S`. What is found, waited for and removed is told
    to ``say``, a sentence each; ``on_tick`` is called about twice a second. Returns why a lock is still there:
    a living process has held it for `BUILD_TIMEOUT_S`, or it cannot be removed.
    """
    still = [_free(lock, say, on_tick) for lock in sorted(extensions.glob(_LOCKS))]
    return "; ".join(filter(None, still)) or None


@contextlib.contextmanager
def in_use(extensions: Path, say: Say = lambda line: None, on_tick: Tick = lambda: None) -> Iterator[None]:
    """Hold the folder while ranks may load from it, after the locks are gone that would stop them (`free_locks`)."""
    if still := free_locks(extensions, say, on_tick):
        say(still)  # the ranks will wait for it, and their stacks then say so
    with (extensions / "zerostage.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_SH)
        yield


def _stamp(extensions: Path, stack: dict[str, object]) -> Path:
    return extensions / f"zerostage.built-{_key(stack)}"


def is_built(extensions: Path, stack: dict[str, object]) -> bool:
    """Whether `prepare` has built the ops for this environment."""
    return _stamp(extensions, stack).exists()


def _hold(extensions: Path, say: Say) -> TextIO:
    """Return the open file that makes this process the only builder; the lock falls when it is closed."""
    try:
        extensions.mkdir(parents=True, exist_ok=True)
        stream = (extensions / "zerostage.lock").open("w")
    except OSError as error:
        raise LaunchError(f"{extensions}: cannot write ({error.strerror}); set TORCH_EXTENSIONS_DIR") from None
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"another run of zerostage builds in {extensions}, or uses it; waiting for it")
        fcntl.flock(stream, fcntl.LOCK_EX)
    return stream


def prepare(
    extensions: Path,
    stack: dict[str, object],
    argv: list[str],
    env: dict[str, str],
    *,
    run: Path,
    log: Path,
    say: Say = lambda line: None,
    on_tick: Tick = lambda: None,
) -> None:
    """Run ``argv``, which builds the ops into ``extensions``, unless that was done before for this environment.

    Locks are freed in any case (`free_locks`, which explains ``say``): a loader waits for them with nothing to build.

    Raises:
        LaunchError: the folder cannot be written.
        BuildError: the build failed or did not end; the compiler's first error and the log, or who holds the lock.
    """
    if is_built(extensions, stack):  # before the lock, which the launches of another run may hold for long
        if still := free_locks(extensions, say, on_tick):
            raise BuildError(f"DeepSpeed's C++ op cannot be loaded: {still}")
        return
    with _hold(extensions, say):
        if still := free_locks(extensions, say, on_tick):
            raise BuildError(f"DeepSpeed's C++ op could not be built: {still}")
        if is_built(extensions, stack):
            return  # by the run that this one waited for
        ended = launch(argv, env, run=run, log=log, timeout_s=BUILD_TIMEOUT_S, on_tick=on_tick)
        if ended.status != 0:
            cause = _late(extensions) if ended.status is None else build_error(log.read_text(errors="replace"))
            cause = f"{cause or f'exit status {ended.status}'} (logs/{log.name}); {_remedy(env)}"
            raise BuildError(f"DeepSpeed's C++ op could not be built: {cause}")
        _stamp(extensions, stack).touch()


def _late(extensions: Path) -> str:
    held = [f"; process {pid} holds {_name(lock)}" for lock in extensions.glob(_LOCKS) if (pid := holder(lock))]
    return f"not done after {BUILD_TIMEOUT_S:g} s" + "".join(held)


def _remedy(env: dict[str, str]) -> str:
    """Return what a build needs. The compiler is the one that torch runs; one that is not there is named."""
    compiler = shlex.split(env.get("CXX", "c++"))[:1]
    if compiler and shutil.which(compiler[0], path=env.get("PATH")) is None:
        return f"there is no {compiler[0]} on PATH: install a C++ compiler (g++), or name yours in CXX"
    return "a C++ compiler (g++) is needed, and the packages of zerostage[run]"
