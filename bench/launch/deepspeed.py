"""Run one cell under DeepSpeed's own launcher, in a process tree of its own, and see it end."""

import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from bench.environment import gpus
from bench.errors import StoreError
from bench.hang import RankStack
from bench.launch.processes import LAUNCH_MARKER, RUN_MARKER, kill_marked
from bench.launch.witness import kills_between, oom_kills, rank_stacks


@dataclass(frozen=True)
class Exit:
    """How a launch ended. ``status`` is the launcher's; ``None`` when it was killed at its time-out.

    ``stacks``: where the ranks stood then. ``oom_kills``: in words, what the kernel killed for lack of memory.
    """

    status: int | None
    wall_time_s: float
    stacks: list[RankStack] = field(default_factory=list)
    oom_kills: str | None = None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def command(world_size: int, device: str, job: Path, python: str = sys.executable) -> list[str]:
    """Return the command of a launch on this machine: the ``deepspeed`` program, by the interpreter ``python``."""
    # The launcher drops CUDA_VISIBLE_DEVICES when it is given a number of GPUs, and keeps an explicit list.
    where = (
        [f"--include=localhost:{','.join(str(gpu['index']) for gpu in gpus()[:world_size])}"]
        if device == "cuda"
        else [f"--num_gpus={world_size}"]
    )
    return [
        python,
        "-m",
        "deepspeed.launcher.runner",
        "--hostfile=/dev/null",  # else a /job/hostfile of the machine would turn this into a multi-node launch
        *where,
        f"--master_port={_free_port()}",
        "--no_local_rank",
        "--module",
        "bench.worker.main",
        str(job),
    ]


def environment(device: str, extensions: Path | None, python: str = sys.executable) -> dict[str, str]:
    """Return the environment of ranks under ``python``: this one, with what a measurement needs fixed."""
    env = dict(os.environ)
    env["PYTHONSAFEPATH"] = "1"  # a folder called 'bench' where the user stands must not be imported
    # The compiler's driver, ninja, is found through PATH, where a venv that is not activated is missing.
    programs = dict.fromkeys(str(Path(interpreter).parent) for interpreter in (python, sys.executable))
    env["PATH"] = os.pathsep.join([*programs, env.get("PATH", "")])
    if device == "cpu":
        # One core per rank, like one GPU per rank; and thread CPU time then is all of a rank's work.
        env.setdefault("OMP_NUM_THREADS", "1")
        env["DS_ACCELERATOR"] = "cpu"
    if extensions is not None:
        env["TORCH_EXTENSIONS_DIR"] = str(extensions)
    return env


def _create(log: Path) -> BinaryIO:
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("wb")
    except OSError as error:
        raise StoreError(f"{log}: cannot write ({error.strerror}); choose a folder with --results") from None


def launch(
    argv: list[str],
    env: dict[str, str],
    *,
    run: Path,
    log: Path,
    timeout_s: float,
    work: Path | None = None,
    on_tick: Callable[[], None] = lambda: None,
) -> Exit:
    """Start ``argv``, wait for it at most ``timeout_s``, and leave none of its processes behind.

    ``work`` is the folder of the job: when the time is up, its ranks are asked where they stand, which takes about
    5 s. ``on_tick`` is called about ten times a second. An exception in it or in this process (Ctrl-C) ends the
    launch, and is raised again.
    """
    launch_id = uuid.uuid4().hex
    env = env | {RUN_MARKER: str(run.resolve()), LAUNCH_MARKER: launch_id}
    started = time.monotonic()
    kills = oom_kills()
    status: int | None = None
    stacks: list[RankStack] = []
    process = None
    with _create(log) as stream:
        try:
            # A session of its own, so that a Ctrl-C in the terminal reaches only the runner, which then decides.
            process = subprocess.Popen(
                argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            while (status := process.poll()) is None and time.monotonic() - started < timeout_s:
                on_tick()
                time.sleep(0.1)
            if status is None and work is not None:
                stacks = rank_stacks(launch_id, work)
        finally:
            kill_marked(LAUNCH_MARKER, launch_id)
            if process is not None:
                process.wait()
    return Exit(status, time.monotonic() - started, stacks, kills_between(kills, oom_kills()))
