"""The folder of compiled ops: built once per environment, as set-up, and never left locked.

torch's extension loader takes a lock file even to find that nothing needs building, and waits for it without
end. A rank killed in that moment leaves the file behind, and every later run on the machine would hang.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.errors import BuildError, LaunchError
from bench.launch.deepspeed import launch
from bench.messages import build_error

BUILD_TIMEOUT_S = 900.0
# A loader that finds nothing to build holds the lock for well under a second, on a busy machine for a few.
_STALE_AFTER_S = 10.0


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


def _is_the_users(extensions: Path) -> bool:
    return os.environ.get("TORCH_EXTENSIONS_DIR") == str(extensions)


@contextlib.contextmanager
def in_use(extensions: Path) -> Iterator[None]:
    """Hold the folder while ranks may load from it. If nobody else does, first remove what a killed rank left.

    In a folder that the user named, others may build: no lock is removed there.
    """
    with (extensions / "zerostage.lock").open("w") as stream:
        if not _is_the_users(extensions):
            with contextlib.suppress(OSError):  # another run holds it: a lock file may be of its ranks
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                clear_stale_locks(extensions)
        fcntl.flock(stream, fcntl.LOCK_SH)
        yield


def clear_stale_locks(extensions: Path) -> None:
    """Remove the lock files that no living loader holds: those that are still there, unchanged, 10 s later."""
    before = {}
    for lock in extensions.glob("*/lock"):
        with contextlib.suppress(FileNotFoundError):
            before[lock] = lock.stat().st_mtime_ns
    if not before:
        return
    time.sleep(_STALE_AFTER_S)
    for lock, mtime_ns in before.items():
        with contextlib.suppress(FileNotFoundError):
            if lock.stat().st_mtime_ns == mtime_ns:
                lock.unlink()


def _stamp(extensions: Path, stack: dict[str, object]) -> Path:
    return extensions / f"zerostage.built-{_key(stack)}"


def is_built(extensions: Path, stack: dict[str, object]) -> bool:
    """Whether `prepare` has built the ops for this environment."""
    return _stamp(extensions, stack).exists()


def prepare(
    extensions: Path,
    stack: dict[str, object],
    argv: list[str],
    env: dict[str, str],
    *,
    run: Path,
    log: Path,
) -> None:
    """Run ``argv``, which builds the ops into ``extensions``, unless that was done before for this environment.

    Raises:
        LaunchError: the folder cannot be written.
        BuildError: the build failed or did not end; the compiler's first error and the log are named.
    """
    if is_built(extensions, stack):
        return  # before the lock, which the launches of another run may hold for long
    try:
        extensions.mkdir(parents=True, exist_ok=True)
        lock = (extensions / "zerostage.lock").open("w")
    except OSError as error:
        raise LaunchError(f"{extensions}: cannot write ({error.strerror}); set TORCH_EXTENSIONS_DIR") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one builder at a time; it falls when this process ends
        if is_built(extensions, stack):
            return  # by the run that this one waited for
        if not _is_the_users(extensions):
            clear_stale_locks(extensions)
        ended = launch(argv, env, run=run, log=log, timeout_s=BUILD_TIMEOUT_S)
        if ended.status != 0:
            late = (
                f"not done after {BUILD_TIMEOUT_S:g} s; a lock file left in {extensions}/* by a killed build stops it"
            )
            cause = late if ended.status is None else build_error(log.read_text(errors="replace"))
            raise BuildError(
                f"DeepSpeed's C++ op could not be built: {cause or f'exit status {ended.status}'} (logs/{log.name}); "
                "a C++ compiler (g++) is needed, and the packages of zerostage[run]"
            )
        _stamp(extensions, stack).touch()
