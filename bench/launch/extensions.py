"""The folder of compiled ops: built once, as set-up, and never left locked.

torch's extension loader takes a lock file even to find that nothing needs building, and waits for it without
end. A rank killed in that moment leaves the file behind, and every later run on the machine would hang.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from bench.errors import LaunchError
from bench.launch.deepspeed import launch

BUILD_TIMEOUT_S = 900.0
# A loader holds the lock for well under a second unless it builds, and only `prepare` builds.
_STALE_AFTER_S = 3.0


def folder(stack: dict[str, object]) -> Path:
    """Return the extensions folder of this stack: the user's TORCH_EXTENSIONS_DIR, or one in the cache."""
    if "TORCH_EXTENSIONS_DIR" in os.environ:
        return Path(os.environ["TORCH_EXTENSIONS_DIR"])
    key = hashlib.sha256(json.dumps(stack, sort_keys=True).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "zerostage" / "torch_extensions" / key


def clear_stale_locks(extensions: Path) -> None:
    """Remove the lock files that no living loader holds: those that are still there, unchanged, 3 s later."""
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


def prepare(
    extensions: Path, argv: list[str], env: dict[str, str], run: Path, log: Path, on_tick: Callable[[], None]
) -> None:
    """Run ``argv``, which builds the ops into ``extensions``, unless that was done before.

    Raises:
        LaunchError: the build failed or did not end; the log is named.
    """
    stamp = extensions / "zerostage.built"
    try:
        extensions.mkdir(parents=True, exist_ok=True)
        lock = (extensions / "zerostage.lock").open("w")
    except OSError as error:
        raise LaunchError(f"{extensions}: cannot write ({error.strerror}); set TORCH_EXTENSIONS_DIR") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one builder at a time; it falls when this process ends
        if stamp.exists():
            return
        clear_stale_locks(extensions)
        ended = launch(argv, env, run=run, log=log, timeout_s=BUILD_TIMEOUT_S, on_tick=on_tick)
        if ended.status != 0:
            raise LaunchError(
                f"DeepSpeed's C++ op could not be built (see {log}); a C++ compiler (g++) is needed, and the "
                "packages of zerostage[run]: pip install 'zerostage[run]'"
            )
        stamp.touch()
