"""DeepSpeed's own launcher, in a process tree of its own, seen to its end."""

import contextlib
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from bench.environment import gpus
from bench.errors import StoreError
from bench.hang import RankStack
from bench.launch.processes import LAUNCH_MARKER, RUN_MARKER, kill_marked
from bench.launch.witness import kills_between, oom_kills, rank_stacks, ranks_of
from bench.shared_memory import remove_buffers


@dataclass(frozen=True)
class Exit:
    """How a launch ended.

    ``status``: the launcher's; of forked ranks that of the first that failed, or of the agent that was lost; ``None``
    when it was killed at its time-out.

    ``stacks``: where the ranks stood then. ``oom_kills``: in words, what the kernel killed for lack of memory.
    """

    status: int | None
    wall_time_s: float
    stacks: list[RankStack] = field(default_factory=list)
    oom_kills: str | None = None


def free_port() -> int:
    """Return a port of this machine that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def command(
    world_size: int, device: str, job: Path, python: str = sys.executable, module: str = "bench.worker.main"
) -> list[str]:
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
        f"--master_port={free_port()}",
        "--no_local_rank",
        "--module",
        module,
        str(job),
    ]


def environment(device: str, extensions: Path | None, python: str = sys.executable) -> dict[str, str]:
    """Return the environment of ranks under ``python``: this one, with what a measurement needs fixed."""
    env = dict(os.environ)
    env["PYTHONSAFEPATH"] = "1"  # a folder called 'bench' where the user stands must not be imported
    # The compiler's driver, ninja, is found through PATH, where a venv that is not activated is missing.
    programs = dict.fromkeys(str(Path(interpreter).parent) for interpreter in (python, sys.executable))
    env["PATH"] = os.pathsep.join([*programs, env.get("PATH", "")])
    # Asking CUDA itself whether it is there initialises it, and what is forked after that could not use it.
    env["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    # numpy's library starts its threads on import, which a forked child would lack. No metric depends on them.
    env.setdefault("OPENBLAS_NUM_THREADS", "1")
    if device == "cpu":
        # One core per rank, like one GPU per rank; and thread CPU time then is all of a rank's work.
        env.setdefault("OMP_NUM_THREADS", "1")
        env["DS_ACCELERATOR"] = "cpu"
    if extensions is not None:
        env["TORCH_EXTENSIONS_DIR"] = str(extensions)
    return env


def create(log: Path) -> BinaryIO:
    """Open a log for writing, from its start."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("wb")
    except OSError as error:
        raise StoreError(f"{log}: cannot write ({error.strerror}); choose a folder with --results") from None


@contextlib.contextmanager
def started(
    argv: list[str], env: dict[str, str], *, run: Path, log: Path
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start ``argv`` and give its process and the value of its LAUNCH_MARKER; at the end none of its processes is left.

    Raises:
        StoreError: ``log``, where its output goes, cannot be written.
    """
    launch_id = uuid.uuid4().hex
    env = env | {RUN_MARKER: str(run.resolve()), LAUNCH_MARKER: launch_id}
    process = None
    with create(log) as stream:
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
            yield process, launch_id
        finally:
            kill_marked(LAUNCH_MARKER, launch_id)
            if process is not None:
                process.wait()
            for argument in argv:
                if argument.startswith("--master_port="):
                    remove_buffers(argument.removeprefix("--master_port="))


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
    began = time.monotonic()
    kills = oom_kills()
    stacks: list[RankStack] = []
    with started(argv, env, run=run, log=log) as (process, launch_id):
        while (status := process.poll()) is None and time.monotonic() - began < timeout_s:
            on_tick()
            time.sleep(0.1)
        if status is None and work is not None:
            stacks = rank_stacks(ranks_of(launch_id), work)
    return Exit(status, time.monotonic() - began, stacks, kills_between(kills, oom_kills()))
