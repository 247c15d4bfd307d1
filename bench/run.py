"""The matrix, end to end: what is left to measure, cell by cell, each one a record when it ends."""

import contextlib
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import estimate, references
from bench.environment import fingerprint, installed, resources
from bench.errors import StoreError
from bench.hosts import Host, obstacle, prepare
from bench.isolation import WarmRanks
from bench.job import Job, compute_references, measure
from bench.launch.deepspeed import Exit
from bench.launch.processes import RUN_MARKER, kill_marked
from bench.outcome import not_built, refused
from bench.plan import PlannedCell, Resources, plan_file, repeats, select, unused_rules
from bench.progress import MatrixProgress, duration, spinner
from bench.record import Record
from bench.scenario import Scenario
from bench.search import Search
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
from bench.validity.forewarn import forewarnings


def _jobs(scenario: Scenario, cells: list[PlannedCell]) -> list[Job]:
    # Repeats outermost: a drift of the machine then touches all cells alike, not one cell's repeats.
    return [
        Job(planned, repeat)
        for repeat in range(scenario.repeat)
        for planned in cells
        if repeat < repeats(planned, scenario)
    ]


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


def _other_stack(run: Path, stack: dict[str, Any]) -> bool:
    """Whether the run folder was last written by another stack, of which no search goes on."""
    return (run / "manifest.json").exists() and read_manifest(run)["environment"]["stack"] != stack


def _settled(job: Job, records: dict[str, Record]) -> bool:
    """Whether the job has its row already; one that the plan refused is settled only while it still does.

    One that was not launched because of a failed build never is: a compiler may be there by now.
    """
    record = records.get(job.name)
    if record is None or (record.status == "build_error" and record.launch is None):
        return False
    if job.planned.refused is None:
        return record.launch is not None
    return record.launch is None and record.status == job.planned.refused[0]


def _write_manifest(run: Path, scenario_path: Path, scenario: Scenario, cells: list[PlannedCell], env: Any) -> None:
    write_json(
        run / "manifest.json",
        {
            "manifest_version": MANIFEST_VERSION,
            "scenario_name": scenario_path.stem,
            "scenario_path": str(scenario_path),
            "scenario": scenario.model_dump(mode="json", exclude_none=True),
            "cells": [
                {
                    "cell_id": entry.cell_id,
                    "label": entry.label,
                    "stack": entry.stack,
                    "repeats": repeats(entry, scenario),
                }
                for entry in cells
            ],
            "environment": env,
            "updated_at": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    )


def run_matrix(
    scenario_path: Path,
    *,
    results: Path,
    only: list[str],
    fresh: bool,
    cpu_slots: int,
    isolation: str,
    console: Console,
) -> tuple[Path, list[Record]]:
    """Measure every cell that has no row yet; return the run folder and the rows of the selected cells.

    With ``fresh``, the rows of the selected cells are put aside first. Interrupted at any moment, all finished
    cells are on disk and the same call goes on from there. ``isolation``: ``fork`` for ranks that are children of warm
    agents, where that is safe; ``process`` for a launch of every cell.

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
        for note in [*unused_rules(scenario), *forewarnings(scenario, chosen, installed(), offer.device)]:
            console.print(f"note: {note}", highlight=False, markup=False)
        jobs = _jobs(scenario, chosen)
        leaving = {job.name for job in jobs} if fresh else set()
        _check_stack(run, env["stack"], leaving)
        if fresh or _other_stack(run, env["stack"]):
            shutil.rmtree(run / "searches", ignore_errors=True)
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
        wanted = [job for job in pending if job.planned.refused is None]
        hosts = {
            stack: prepare(run, stack, env["stack"], offer.device, console)
            for stack in dict.fromkeys(job.planned.stack for job in wanted)
        }
        known = estimate.history(results, offer.device)
        can_start = [job.planned for job in wanted if obstacle(job.planned, hosts) is None]
        with WarmRanks(run, offer.device, hosts, can_start if isolation == "fork" else []) as ranks:
            if ranks.one_at_a_time:
                pending = _by_stack(pending)
            first = next((job.repeat for job in wanted if job.planned.stack is None), 0)
            plain = [planned for planned in can_start if planned.cell.largest_batch is None]
            _make_references(run, plain, offer, scenario.timeout_s, known, ranks, first, console)
            for record in _measured(pending, scenario, run, hosts, offer, records, known, ranks, console):
                records[record_name(record.cell_id, record.repeat, record.requested_stack)] = record
        with contextlib.suppress(OSError):
            (run / "work").rmdir()
    return run, [records[job.name] for job in jobs]


def _by_stack(jobs: list[Job]) -> list[Job]:
    """Take each repeat stack by stack: where agents of two stacks have no room, each change would start them anew."""
    order = {stack: number for number, stack in enumerate(dict.fromkeys(job.planned.stack for job in jobs))}
    return sorted(jobs, key=lambda job: (job.repeat, order[job.planned.stack]))


def _measured(
    jobs: list[Job],
    scenario: Scenario,
    run: Path,
    hosts: dict[str | None, Host],
    offer: Resources,
    records: dict[str, Record],
    known: estimate.History,
    ranks: WarmRanks,
    console: Console,
) -> Iterator[Record]:
    """Yield the row of every job, in order, once it is on disk and shown.

    ``records``: those that are there, by name.
    """
    device = offer.device
    launches = [job for job in jobs if job.planned.refused is None and obstacle(job.planned, hosts) is None]
    expected_s, starts_s = _expected(launches, known, ranks)
    is_known = [estimate.is_known(job.planned, known) for job in launches]
    with MatrixProgress(console, expected_s, starts_s=starts_s, known=is_known) as progress:
        for job in jobs:
            search = None
            if job.planned.refused is not None:
                record = refused(job.planned, job.repeat, device)
            elif reason := obstacle(job.planned, hosts):
                record = not_built(job.planned, job.repeat, device, reason)
            else:
                was_warm = job.planned.stack in ranks.needs
                agents = ranks.ready(job.planned.stack, job.repeat, progress.say, progress.tick)
                if was_warm and agents is None:
                    done = len(progress.spent_s)
                    expected_s, starts_s = _expected(launches, known, ranks)
                    progress.expected_s[done:], progress.starts_s[done:] = expected_s[done:], starts_s[done:]
                progress.begin(f"{job.planned.label}-r{job.repeat}")

                def launch(job: Job) -> Record:
                    return measure(
                        job,
                        run,
                        hosts[job.planned.stack],
                        device,
                        ranks.ready(job.planned.stack, job.repeat, progress.say, progress.tick),
                        timeout_s=scenario.timeout_s,
                        say=progress.say,
                        on_tick=progress.tick,
                    )

                if job.planned.cell.largest_batch is None:
                    record = launch(job)
                else:
                    refer = partial(_refer, job.repeat, run, offer, scenario, ranks, progress)
                    search = Search(job, run, offer, launch, refer, progress.say)
                    record = search.row(_earlier(job, records))
            # On disk before it is on the screen: a pipe that closed must not cost the row.
            write_record(run, record)
            if search is not None:
                search.forget()
            progress.end(record)
            yield record


def _earlier(job: Job, records: dict[str, Record]) -> Record | None:
    """Return the first repeat's row of a cell, if that found a size: its repeats are launched at one size."""
    first = records.get(Job(job.planned, 0).name) if job.repeat else None
    return first if first is not None and first.status == "completed" else None


def _refer(
    repeat: int,
    run: Path,
    offer: Resources,
    scenario: Scenario,
    ranks: WarmRanks,
    progress: MatrixProgress,
    planned: PlannedCell,
) -> None:
    """Run the references of a cell whose batch has only now been found."""

    def start(path: Path, log: Path, timeout_s: float) -> Exit:
        agents = ranks.ready(None, repeat, progress.say, progress.tick)
        return compute_references(path, run, offer.device, agents, log=log, timeout_s=timeout_s, on_tick=progress.tick)

    references.make(run, references.missing(run, [planned], offer), start, scenario.timeout_s)


def _expected(launches: list[Job], known: estimate.History, ranks: WarmRanks) -> tuple[list[float], list[float]]:
    """Return for each launch the seconds that it and the start of its agents should take, as ranks can be had now."""
    ways = ["fork" if job.planned.stack in ranks.needs else "process" for job in launches]
    starts = estimate.starts([(job.planned.stack, job.repeat) for job in launches], known, running=ranks.held)
    return (
        [estimate.seconds(job.planned, known, way) for job, way in zip(launches, ways, strict=True)],
        [start_s if way == "fork" else 0.0 for start_s, way in zip(starts, ways, strict=True)],
    )


def _make_references(
    run: Path,
    cells: list[PlannedCell],
    offer: Resources,
    timeout_s: float,
    known: estimate.History,
    ranks: WarmRanks,
    repeat: int,
    console: Console,
) -> None:
    """Run the references that the cells will be compared with, unless they are there."""
    jobs = references.missing(run, cells, offer)
    if not jobs:
        return
    say = partial(console.print, highlight=False, markup=False)

    def done() -> str:
        return f"reference runs, {sum(Path(job['out']).exists() for job in jobs.values())} of {len(jobs)} done"

    with spinner(console, lambda: "importing") as tick:
        way = "fork" if ranks.ready(None, repeat, say, tick) else "process"
    expected = duration(estimate.reference_seconds(jobs.values(), known, way))
    say(f"reference runs: plain PyTorch, one process, {len(jobs)} to make (about {expected})")
    with spinner(console, done) as tick:

        def start(path: Path, log: Path, timeout_s: float) -> Exit:
            agents = ranks.ready(None, repeat, say, tick)
            return compute_references(path, run, offer.device, agents, log=log, timeout_s=timeout_s, on_tick=tick)

        references.make(run, jobs, start, timeout_s)
