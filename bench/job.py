"""What runs: a job, which is a cell and one of its repeats, in ranks of its own; and references, in one process."""

import contextlib
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench import references
from bench.environment import num_cores
from bench.hosts import Host
from bench.isolation import loading_ops, relative, visible_devices
from bench.launch import deepspeed
from bench.launch.agents import Agents, fork
from bench.outcome import outcome, unjudged
from bench.plan import PlannedCell
from bench.record import Launch, Record
from bench.store import record_name, write_json

_WORKER = "bench.worker.main"


@dataclass(frozen=True)
class Job:
    """What makes one record: a cell, and which of its repeats; ``part``: what is one launch of a search for it."""

    planned: PlannedCell
    repeat: int
    part: str = ""

    @property
    def name(self) -> str:
        """The stem of its record, log and work folder."""
        return record_name(self.planned.cell_id, self.repeat, self.planned.stack) + self.part


def measure(
    job: Job,
    run: Path,
    host: Host,
    device: str,
    agents: Agents | None,
    *,
    timeout_s: float,
    say: Callable[[str], None] = print,
    on_tick: Callable[[], None] = lambda: None,
) -> Record:
    """Run a job in children of ``agents`` or, without them, by a launch of its own; return its record.

    ``timeout_s`` and ``on_tick`` as in `bench.launch.deepspeed.launch`; ``say`` tells the user of what was in the way.
    """
    cell = job.planned.cell
    work = run / "work" / job.name
    log = run / "logs" / f"{job.name}.log"
    shutil.rmtree(work, ignore_errors=True)
    path = work / "job.json"
    write_json(
        path,
        {
            "cell": cell.model_dump(mode="json"),
            "model_config": job.planned.config,
            "corpus": job.planned.corpus,
            "device": device,
            "trace": str(run / "traces" / f"{job.name}.json.gz"),
        },
    )
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    agents_start_s = None
    if agents:
        argv, agents_start_s, agents.start_s = agents.argv, agents.start_s, None
        ended = fork(
            agents,
            _WORKER,
            path,
            cell.num_processes,
            log=log,
            timeout_s=timeout_s,
            variables=visible_devices(device, cell.num_processes),
            work=work,
            on_tick=on_tick,
        )
    else:
        argv = deepspeed.command(cell.num_processes, device, path, host.python)
        with loading_ops(device, host, say, on_tick):
            ended = deepspeed.launch(
                argv,
                host.variables,
                run=run,
                log=log,
                timeout_s=timeout_s,
                work=work,
                on_tick=on_tick,
            )
    launch = Launch(
        command=relative(argv, run),
        isolation="fork" if agents else "process",
        started_at=started_at,
        wall_time_s=ended.wall_time_s,
        agents_start_s=agents_start_s,
        exit_status=ended.status and ended.status % 256,  # as the launcher passes on that of a rank
        log=f"logs/{job.name}.log",
        log_tail=[],
    )
    record = _judge(job, launch, ended, run=run, work=work, log=log, timeout_s=timeout_s, device=device)
    shutil.rmtree(work, ignore_errors=True)
    return record


def _judge(
    job: Job, launch: Launch, ended: deepspeed.Exit, *, run: Path, work: Path, log: Path, timeout_s: float, device: str
) -> Record:
    """Return the record of a job; where judging it fails, one that says so: it must not cost the other rows."""
    try:
        return outcome(
            job.planned,
            job.repeat,
            work=work,
            log=log,
            launch=launch,
            timeout_s=timeout_s,
            device=device,
            num_cores=num_cores(),
            references=references.find(run, job.planned, device),
            stacks=ended.stacks,
            oom_kills=ended.oom_kills,
        )
    except Exception as error:
        with contextlib.suppress(OSError):
            shutil.copyfile(work / "result.json", log.with_suffix(".result.json"))
        return unjudged(job.planned, job.repeat, log=log, launch=launch, device=device, error=error)


def compute_references(
    jobs: Path,
    run: Path,
    device: str,
    agents: Agents | None,
    *,
    log: Path,
    timeout_s: float,
    on_tick: Callable[[], None] = lambda: None,
) -> deepspeed.Exit:
    """Run a list of references (`bench.references.make`) in a child of an agent, or in a process of its own."""
    # One process has the machine to itself.
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(num_cores()))}
    if agents:
        return fork(
            agents,
            "bench.worker.reference",
            jobs,
            1,
            log=log,
            timeout_s=timeout_s,
            variables=threads,
            on_tick=on_tick,
        )
    argv = [sys.executable, "-m", "bench.worker.reference", str(jobs)]
    env = deepspeed.environment(device, None) | threads
    return deepspeed.launch(argv, env, run=run, log=log, timeout_s=timeout_s, on_tick=on_tick)
