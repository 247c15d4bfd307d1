"""The matrix, end to end: what is left to measure, launched cell by cell, each one a record when it ends."""

import contextlib
import shutil
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import estimate
from bench.environment import fingerprint, num_cores, resources
from bench.errors import LaunchError, StoreError
from bench.launch import deepspeed, extensions, isolated
from bench.launch.processes import RUN_MARKER, kill_marked
from bench.outcome import not_built, outcome, skipped
from bench.plan import PlannedCell, plan_file, select, unused_rules
from bench.progress import MatrixProgress
from bench.record import Launch, Record
from bench.scenario import Scenario
from bench.stacks import file_part, releases
from bench.store import (
    MANIFEST_VERSION,
    locked,
    read_manifest,
    read_records,
    record_name,
    supersede,
    write_json,
    write_record,
)


@dataclass(frozen=True)
class Job:
    """One launch to make: a cell, and which of its repeats."""

    planned: PlannedCell
    repeat: int

    @property
    def name(self) -> str:
        """The stem of its record, log and work folder."""
        return record_name(self.planned.cell_id, self.repeat, self.planned.stack)


@dataclass(frozen=True)
class Host:
    """Where ranks of one stack start: the interpreter, and their environment variables."""

    python: str
    variables: dict[str, str]


def _jobs(scenario: Scenario, cells: list[PlannedCell]) -> list[Job]:
    # Repeats outermost: a drift of the machine then touches all cells alike, not one cell's repeats.
    return [Job(planned, repeat) for repeat in range(scenario.repeat) for planned in cells]


def _check_stack(run: Path, stack: dict[str, Any], leaving: set[str]) -> None:
    """Refuse to mix rows of two stacks in one run folder; the rows in ``leaving`` are about to be put aside."""
    if not (run / "manifest.json").exists():
        return
    before = read_manifest(run)["environment"]["stack"]
    changed = [f"{key}: {before.get(key)} -> {stack.get(key)}" for key in stack if before.get(key) != stack.get(key)]
    if changed and any(path.stem not in leaving for path in (run / "records").glob("*.json")):
        raise StoreError(
            f"{run}: its rows were measured with another stack ({'; '.join(changed)}); start over with --fresh and "
            "without --only, which keeps the old rows aside, or choose another folder with --results"
        )


def _settled(job: Job, records: dict[str, Record]) -> bool:
    """Whether the job has its row already; a skipped row is settled only while the plan still skips."""
    record = records.get(job.name)
    return record is not None and (record.status == "skipped") == (job.planned.skip_reason is not None)


def _write_manifest(run: Path, scenario_path: Path, scenario: Scenario, cells: list[PlannedCell], env: Any) -> None:
    write_json(
        run / "manifest.json",
        {
            "manifest_version": MANIFEST_VERSION,
            "scenario_name": scenario_path.stem,
            "scenario_path": str(scenario_path),
            "scenario": scenario.model_dump(mode="json", exclude_none=True),
            "cells": [{"cell_id": entry.cell_id, "label": entry.label, "stack": entry.stack} for entry in cells],
            "environment": env,
            "updated_at": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    )


def _launch(job: Job, scenario: Scenario, run: Path, host: Host, device: str, progress: MatrixProgress) -> Record:
    cell = job.planned.cell
    work = run / "work" / job.name
    log = run / "logs" / f"{job.name}.log"
    shutil.rmtree(work, ignore_errors=True)
    write_json(
        work / "job.json",
        {
            "cell": cell.model_dump(mode="json"),
            "model_config": job.planned.config,
            "corpus": job.planned.corpus,
            "device": device,
        },
    )
    argv = deepspeed.command(cell.world_size, device, work / "job.json", host.python)
    env = host.variables
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    with extensions.in_use(Path(env["TORCH_EXTENSIONS_DIR"])) if device == "cpu" else contextlib.nullcontext():
        ended = deepspeed.launch(argv, env, run=run, log=log, timeout_s=scenario.timeout_s, on_tick=progress.tick)
    record = outcome(
        job.planned,
        job.repeat,
        work=work,
        log=log,
        launch=Launch(
            command=["deepspeed", *argv[3:-1], f"work/{job.name}/job.json"],
            started_at=started_at,
            wall_time_s=ended.wall_time_s,
            exit_status=ended.status,
            log=f"logs/{job.name}.log",
            log_tail=[],
        ),
        timeout_s=scenario.timeout_s,
        device=device,
        num_cores=num_cores(),
    )
    shutil.rmtree(work, ignore_errors=True)
    return record


def run_matrix(
    scenario_path: Path,
    *,
    results: Path,
    only: list[str],
    fresh: bool,
    cpu_slots: int,
    console: Console,
) -> tuple[Path, list[Record]]:
    """Measure every cell that has no row yet; return the run folder and the rows of the selected cells.

    With ``fresh``, the rows of the selected cells are put aside first. Interrupted at any moment, all finished
    cells are on disk and the same call goes on from there.

    Raises:
        BenchError: the scenario, the run folder or this machine cannot be used.
    """
    offer = resources(cpu_slots)
    scenario, everything = plan_file(scenario_path, offer)
    chosen = select(everything, only)
    run = results / scenario_path.stem
    env = fingerprint()
    with locked(run):
        if orphans := kill_marked(RUN_MARKER, str(run.resolve())):
            console.print(f"ended {orphans} processes that an interrupted run had left behind")
        for note in unused_rules(scenario):
            console.print(f"note: {note}", highlight=False, markup=False)
        jobs = _jobs(scenario, chosen)
        leaving = {job.name for job in jobs} if fresh else set()
        _check_stack(run, env["stack"], leaving)
        if moved := supersede(run, leaving):
            console.print(f"{moved} earlier rows put aside in {run / 'superseded'}")
        records = {record_name(r.cell_id, r.repeat, r.requested_stack): r for r in read_records(run)}
        pending = [job for job in jobs if not _settled(job, records)]
        supersede(run, {job.name for job in pending})
        _write_manifest(run, scenario_path, scenario, everything, env)
        if done := len(jobs) - len(pending):
            console.print(
                f"{done} of {len(jobs)} rows are there already in {run}; {len(pending)} to go",
                highlight=False,
            )
        wanted = [job for job in pending if job.planned.skip_reason is None]
        hosts = {
            stack: _prepare(run, stack, env["stack"], offer.device, console)
            for stack in dict.fromkeys(job.planned.stack for job in wanted)
        }
        launches = [job for job in wanted if isinstance(hosts[job.planned.stack], Host)]
        known = estimate.history(results, offer.device)
        expected = [estimate.seconds(job.planned, known) for job in launches]
        with MatrixProgress(console, expected) as progress:
            for job in pending:
                if job.planned.skip_reason is not None:
                    record = skipped(job.planned, job.repeat, offer.device)
                elif isinstance(host := hosts[job.planned.stack], str):
                    record = not_built(job.planned, job.repeat, offer.device, host)
                else:
                    progress.begin(f"{job.planned.label}-r{job.repeat}")
                    record = _launch(job, scenario, run, host, offer.device, progress)
                # On disk before it is on the screen: a pipe that closed must not cost the row.
                write_record(run, record)
                records[job.name] = record
                progress.end(record)
        with contextlib.suppress(OSError):
            (run / "work").rmdir()
    return run, [records[job.name] for job in jobs]


def _prepare(run: Path, stack: str | None, installed: dict[str, Any], device: str, console: Console) -> Host | str:
    """Make sure that ranks of a stack can start, compile what DeepSpeed compiles, and return where they start.

    For a requested stack that cannot be made, return the reason instead: other stacks go on.
    """
    versions = installed | releases(stack)
    missing = [name for name in ("torch", "deepspeed", "transformers") if versions[name] is None]
    if missing:
        raise LaunchError(f"{', '.join(missing)} not installed for {sys.executable}: pip install 'zerostage[run]'")
    if sys.platform != "linux":
        raise LaunchError(f"cells run on Linux only (this is {sys.platform}); plan and report work here")
    versions = {name: versions[name] for name in ("python", "torch", "deepspeed")}
    if stack is None:
        return _host(run, sys.executable, extensions.folder(versions), versions, device, "", console)
    suffix = f"-{file_part(stack)}"
    log = run / "logs" / f"environment{suffix}.log"
    try:
        if not isolated.is_made(stack):
            console.print(f"set-up: making the environment {stack}, once, about a minute", highlight=False)
        with console.status("installing"):
            isolated.make(stack, run=run, log=log)
        python, folder = str(isolated.python(stack)), isolated.extensions(stack)
        return _host(run, python, folder, versions, device, suffix, console)
    except isolated.BuildError as error:
        return f"{error}; see logs/{log.name}"
    except LaunchError as error:
        return str(error)


def _host(
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
    if not extensions.is_built(folder, versions):
        console.print("set-up: compiling DeepSpeed's C++ op, once per environment, about a minute")
    with console.status("compiling"):
        argv = [python, "-m", "bench.worker.prebuild"]
        extensions.prepare(folder, versions, argv, env, run=run, log=run / "logs" / f"setup{suffix}.log")
    return Host(python, env)
