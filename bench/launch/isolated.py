"""Cached isolated environments: a venv that holds the releases a stack asks for, and shares all else.

A ``.pth`` file puts the site-packages of zerostage's own environment after the venv's own, so that torch, zerostage
itself and every package that is not asked for come from there, and what is asked for hides what is installed there.
What such a release needs beside it and does not find is installed with it; torch is never replaced. An environment is
made once per machine; only its stamp, written last, makes it one.

As a program (``python -m bench.launch.isolated FOLDER REQUIREMENT...``) this makes the environment.
"""

import fcntl
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import site
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench.errors import BuildError
from bench.launch.deepspeed import launch
from bench.stacks import file_part, is_release, releases

BUILD_TIMEOUT_S = 1200.0
_STAMP = "zerostage.json"


def folder(stack: str) -> Path:
    """Return where the environment of ``stack`` lies; each environment that shares its packages has its own."""
    identity = json.dumps([stack, sys.prefix, platform.python_version(), _torch()])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = hashlib.sha256(identity.encode()).hexdigest()[:12]
    return cache / "zerostage" / "stacks" / f"{file_part(stack)}-{key}"


def python(stack: str) -> Path:
    """Return the interpreter of the environment of ``stack``, made or not."""
    return folder(stack) / "bin" / "python"


def extensions(stack: str) -> Path:
    """Return the folder of compiled ops of that environment, its own: releases compile different sources."""
    return folder(stack) / "torch_extensions"


def is_made(stack: str) -> bool:
    """Whether `make` has finished this environment."""
    return (folder(stack) / _STAMP).is_file()


def make(stack: str, *, run: Path, log: Path, on_tick: Callable[[], None] = lambda: None) -> None:
    """Make the environment of ``stack`` unless it is there.

    Raises:
        BuildError: it could not be made, with pip's reason; the output is in ``log``.
    """
    if is_made(stack):
        return
    argv = [sys.executable, "-m", "bench.launch.isolated", str(folder(stack)), *stack.split()]
    env = os.environ | {
        "PYTHONSAFEPATH": "1",
        "DS_BUILD_OPS": "0",  # ops are compiled when they are used, as set-up
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PIP_USER": "0",
    }
    ended = launch(argv, env, run=run, log=log, timeout_s=BUILD_TIMEOUT_S, on_tick=on_tick)
    if ended.status is None:
        raise BuildError(f"the environment {stack} was not made after {BUILD_TIMEOUT_S:g} s, killed")
    if ended.status != 0:
        raise BuildError(f"the environment {stack} could not be made: {_reason(log)}")


def _reason(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR: ") and "ResolutionImpossible" not in line]
    reason = (errors or lines or ["no output"])[-1].removeprefix("ERROR: ")
    if any("(from versions: none)" in line for line in lines):
        reason += " (no release at all was found: is a package index within reach?)"
    return reason


def _torch() -> str | None:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None  # `plan` works without


def _shared_folders() -> list[str]:
    """Return the folders from which this environment imports installed packages."""
    folders = site.getsitepackages() + ([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])
    return [folder for folder in folders if Path(folder).is_dir()]


def _call(*argv: str | Path, target: Path, lock: int) -> None:
    """Run a command in ``target``, a folder of ours, without PYTHONSAFEPATH, which keeps a setup.py from importing what
    lies beside it (DeepSpeed's ``op_builder`` does).
    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    # The lock is handed down: it is held for as long as pip lives, should this process be killed alone.
    done = subprocess.run([str(part) for part in argv], cwd=target, env=env, pass_fds=(lock,), check=False)
    if done.returncode:
        sys.exit(done.returncode)


def _versions(interpreter: Path, names: list[str]) -> dict[str, str]:
    """Return the versions that a program of this interpreter would find."""
    code = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {names}}}))"
    done = subprocess.run([str(interpreter), "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _build(target: Path, requirements: list[str], lock: int) -> None:
    shutil.rmtree(target, ignore_errors=True)  # what a killed build has left
    target.mkdir(parents=True)
    interpreter = target / "bin" / "python"
    _call(sys.executable, "-m", "venv", target, target=target, lock=lock)
    (packages,) = (target / "lib").glob("python*/site-packages")
    # addsitedir and not the bare path: it also reads the .pth files in there, those of editable installs.
    shared = "".join(f"import site; site.addsitedir({folder!r})\n" for folder in _shared_folders())
    (packages / "zerostage_shared.pth").write_text(shared)
    pinned = target / "constraints.txt"
    pinned.write_text(f"torch=={_torch()}\n")
    install = (interpreter, "-m", "pip", "install", "--constraint", pinned)
    # deepspeed is published as source only; it is built here and not in a pip sandbox, which would download a torch.
    # DeepSpeed's setup.py imports from its own folder, which newer releases do not look in (84.2 fails).
    _call(*install, "setuptools>=70.1,<81", "wheel", target=target, lock=lock)
    # In here even where the same release is shared, which may be another tomorrow; then what it needs and is not there.
    _call(*install, "--no-build-isolation", "--no-deps", "--ignore-installed", *requirements, target=target, lock=lock)
    _call(*install, *requirements, target=target, lock=lock)
    wanted = releases(" ".join(requirements)) | {"torch": str(_torch())}
    found = _versions(interpreter, list(wanted))
    if not all(is_release(found[name], version) for name, version in wanted.items()):
        sys.exit(f"ERROR: asked for {wanted}, its interpreter finds {found}; is another one on PYTHONPATH?")
    (target / _STAMP).write_text(json.dumps(found))


def main(target: Path, requirements: list[str]) -> None:
    """Make the environment in ``target``, or wait for another process that does."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / _STAMP).is_file():
            _build(target, requirements, lock.fileno())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
