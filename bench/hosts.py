"""Where the ranks of each stack start: its environment and the op that DeepSpeed compiles, made ready first."""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.errors import BuildError, LaunchError
from bench.launch import deepspeed, extensions, isolated
from bench.plan import PlannedCell
from bench.progress import spinner
from bench.stacks import file_part, releases
from bench.zero.stages import STRATEGIES


@dataclass(frozen=True)
class Host:
    """The interpreter of a stack's ranks and their environment variables.

    ``no_environment``: why there is none. ``no_op``: why the op is missing that DeepSpeed compiles on CPU.
    """

    python: str
    variables: dict[str, str]
    no_environment: str | None = None
    no_op: str | None = None


def obstacle(planned: PlannedCell, hosts: dict[str | None, Host]) -> str | None:
    """Return why a cell cannot be launched, ``None`` when it can.

    Every stage loads the op; torch DDP never does, nor does an emulated rank.
    """
    host = hosts[planned.stack]
    needs_op = STRATEGIES[planned.cell.strategy].zero_stage is not None and planned.cell.emulation is None
    return host.no_environment or (host.no_op if needs_op else None)


def _say(console: Console, line: str) -> None:
    console.print(f"set-up: {line}", highlight=False, markup=False, soft_wrap=True)


def prepare(run: Path, stack: str | None, installed: dict[str, Any], device: str, console: Console) -> Host:
    """Make sure that ranks of a stack can start. What cannot be made is noted; other stacks and cells go on.

    Raises:
        LaunchError: nothing can be launched here at all.
    """
    versions = installed | releases(stack)
    missing = [name for name in ("torch", "deepspeed", "transformers") if versions[name] is None]
    if missing:
        raise LaunchError(f"{', '.join(missing)} not installed for {sys.executable}: pip install 'zerostage[run]'")
    if sys.platform != "linux":
        raise LaunchError(f"cells run on Linux only (this is {sys.platform}); plan and report work here")
    versions = {name: versions[name] for name in ("python", "torch", "deepspeed")}
    if stack is None:
        return _with_op(run, sys.executable, extensions.folder(versions), versions, device, "", console)
    suffix = f"-{file_part(stack)}"
    log = run / "logs" / f"environment{suffix}.log"
    if not isolated.is_made(stack):
        _say(console, f"making the environment {stack}, once, about a minute")
    try:
        with spinner(console, lambda: "installing") as tick:
            isolated.make(stack, run=run, log=log, on_tick=tick)
    except BuildError as error:
        return Host("", {}, no_environment=f"{error}; see logs/{log.name}")
    python, folder = str(isolated.python(stack)), isolated.extensions(stack)
    return _with_op(run, python, folder, versions, device, suffix, console)


def _with_op(
    run: Path,
    python: str,
    folder: Path,
    versions: dict[str, object],
    device: str,
    suffix: str,
    console: Console,
) -> Host:
    """Return where ranks under ``python`` start; on CPU the op is compiled into ``folder`` first."""
    if device != "cpu":
        return Host(python, deepspeed.environment(device, None if python == sys.executable else folder, python))
    env = deepspeed.environment(device, folder, python)
    built = extensions.is_built(folder, versions)
    if not built:
        _say(console, "compiling DeepSpeed's C++ op, once per environment, about a minute")
    try:
        with spinner(console, lambda: "looking for locks" if built else "compiling") as tick:
            extensions.prepare(
                folder,
                versions,
                [python, "-m", "bench.worker.prebuild"],
                env,
                run=run,
                log=run / "logs" / f"setup{suffix}.log",
                say=partial(_say, console),
                on_tick=tick,
            )
    except BuildError as error:
        return Host(python, env, no_op=str(error))
    return Host(python, env)
