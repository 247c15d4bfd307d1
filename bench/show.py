"""What the commands print."""

import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table as RichTable

from bench import estimate
from bench.environment import installed, resources
from bench.fit import show_notes
from bench.plan import PlannedCell, plan_file, repeats, select, unused_rules
from bench.progress import duration
from bench.record import Record
from bench.runs import read_measured, read_run, rerun_command
from bench.store import read_imported, read_records, record_name, row_name
from bench.validity.forewarn import forewarnings

if TYPE_CHECKING:  # pandas takes a second to import; plan does without
    from bench.analysis.tables import Table


def _gib(value: float | None) -> str:
    return "?" if value is None else f"{value / 2**30:,.3f}"


def _statuses(run: Path) -> dict[str, list[str]]:
    """Return what the run folder already says of cells that were launched, by name; one word per launch."""
    found: dict[str, list[str]] = {}
    for record in read_records(run):
        if record.launch is not None:
            found.setdefault(row_name(record.cell_id, record.requested_stack), []).append(record.status)
    return found


def show_plan(
    scenario_path: Path,
    results: Path,
    only: list[str],
    cpu_slots: int,
    console: Console,
    *,
    isolation: str = "fork",
) -> None:
    """Print every cell with its prediction and, where it is skipped, the reason; then counts and time."""
    from bench.launch import isolated

    offer = resources(cpu_slots)
    scenario, planned = plan_file(scenario_path, offer)
    chosen = select(planned, only)
    table = RichTable(title=str(scenario_path), caption="states: parameters, gradients, Adam; per rank, paper")
    for name in ("cell_id", "cell", "params", "states GiB", "verdict"):
        table.add_column(name, overflow="fold")
    done = _statuses(results / scenario_path.stem)
    for entry in chosen:
        params = "?" if entry.params is None else f"{entry.params.total:,}"
        words = done.get(row_name(entry.cell_id, entry.stack), [])
        waiting = "run" if entry.cell.emulation is None else "emulate"
        waiting += " (search)" if entry.cell.largest_batch is not None else ""
        verdict = ": ".join(entry.refused) if entry.refused else ", ".join(words) or waiting
        table.add_row(entry.cell_id, entry.label, params, _gib(entry.model_state_bytes), verdict)
    console.print(table)
    launches = [
        (entry, repeat)
        for entry in chosen
        if entry.refused is None
        for repeat in range(len(done.get(row_name(entry.cell_id, entry.stack), [])), repeats(entry, scenario))
    ]
    refused = Counter(entry.refused[0] for entry in chosen if entry.refused)
    console.print(
        f"{len(chosen)} cells x {scenario.repeat} launches, {refused['skipped']} cells skipped, "
        + (f"{refused['unsupported']} unsupported, " if refused["unsupported"] else "")
        + f"{len(launches)} launches to run; {offer.slots} {offer.device} slots, "
        f"{offer.memory_bytes / 2**30:.1f} GiB {'in all' if offer.shared else 'each'}",
        highlight=False,
    )
    if launches:
        # Only the run folders under --results are looked at.
        known = estimate.history(results, offer.device)
        total_s = sum(estimate.seconds(entry, known, isolation) for entry, _ in launches)
        total_s += sum(estimate.starts([(entry.stack, repeat) for entry, repeat in launches], known, isolation))
        measured = any(entry.cell.emulation is None for entry, _ in launches)
        made = (results / scenario_path.stem / "references").is_dir()
        more = "; reference runs come on top" if measured and not made else ""
        text = f"about {duration(total_s)}, {estimate.basis([entry for entry, _ in launches], known, isolation)}{more}"
        console.print(text, highlight=False, markup=False)
    to_make = [s for s in dict.fromkeys(entry.stack for entry, _ in launches) if s and not isolated.is_made(s)]
    if to_make:
        text = f"environments to make first, once, about two minutes each: {', '.join(to_make)}"
        console.print(text, highlight=False, markup=False)
    show_notes(chosen, console)
    for note in [*unused_rules(scenario), *forewarnings(scenario, chosen, installed(), offer.device)]:
        console.print(f"note: {note}", highlight=False, markup=False)


def show_commands(scenario_path: Path, only: list[str], cpu_slots: int, isolation: str, console: Console) -> None:
    """Print the commands that would start ranks: of every cell, or of the agents that fork them."""
    from bench.isolation import commands
    from bench.launch import isolated
    from bench.launch.deepspeed import command

    def python(stack: str | None) -> str:
        return str(isolated.python(stack)) if stack else sys.executable

    def job(entry: PlannedCell) -> Path:
        return Path("work") / record_name(entry.cell_id, 0, entry.stack) / "job.json"

    offer = resources(cpu_slots)
    cells = [entry for entry in select(plan_file(scenario_path, offer)[1], only) if entry.refused is None]
    if isolation == "fork":
        console.print(
            "Agents, started per stack and repeat; cells are forked from them (--isolation process: a launch per cell)."
        )
        shown = commands(cells, offer.device, python)
    else:
        shown = [command(e.cell.num_processes, offer.device, job(e), python(e.stack)) for e in cells]
    for argv in shown:
        console.print(shlex.join(argv), highlight=False, markup=False, soft_wrap=True)


def _tables(folder: Path) -> tuple[list["Table"], list[str]]:
    from bench.analysis import imported

    run = read_run(folder)
    found, notes = ([], []) if run.manifest is None else _measured_tables(run.manifest, run.records)
    return found + imported.table(run.imported), notes + imported.notes(run.imported)


def _measured_tables(manifest: dict[str, Any], records: list[Record]) -> tuple[list["Table"], list[str]]:
    from bench.analysis import agreement, comparison, footers, frame, largest, offload, tables, witnesses

    scenario = manifest["scenario"]
    fixed_total = "train_batch_size" in scenario["matrix"]
    data = frame.frame(records)
    notes = largest.notes(data) + footers.footers(data, scenario["zero_optimization"]) + witnesses.witnesses(records)
    # Manifests of earlier releases have only cells that are repeated alike.
    expected = sum(cell.get("repeats", scenario["repeat"]) for cell in manifest["cells"])
    if len(records) < expected:
        notes.insert(0, f"{expected - len(records)} of {expected} rows are not there yet.")
    key = "train_batch_size" if fixed_total else "gradient_accumulation_steps"
    beside, kept = agreement.agreement(records), offload.offload(records)
    notes += ([offload.NOTE] if kept else []) + ([agreement.NOTE] if beside else [])
    lines = comparison.comparison(data, key)
    compared = tables.tables(lines, records) + largest.tables(lines)
    return compared + kept + beside, notes


def _laid_out(table: "Table", columns: list[int]) -> RichTable:
    laid_out = RichTable(title=table.title, title_justify="left")
    for number in columns:
        if table.wraps:
            laid_out.add_column(table.header[number], overflow="fold")
        else:
            laid_out.add_column(table.header[number], justify="right" if number else "left", no_wrap=True)
    for row in table.rows:
        laid_out.add_row(*(row[number] for number in columns))
    return laid_out


def _parts(table: "Table", console: Console) -> list[RichTable]:
    """Lay a table out; one too wide for the console is cut between GPU counts, never inside a number."""
    if table.wraps:
        return [_laid_out(table, list(range(len(table.header))))]
    counts = [[first, first + 1, first + 2] for first in range(1, len(table.header), 3)]
    shown: list[list[int]] = []
    for count in counts:
        wider = [*shown[-1], *count] if shown else [0, *count]
        fits = console.measure(_laid_out(table, wider)).minimum <= console.width
        if shown and fits:
            shown[-1] = wider
        else:
            shown.append([0, *count])
    return [_laid_out(table, columns) for columns in shown]


def show_tables(run: Path, console: Console) -> None:
    """Print the tables of a run for a terminal."""
    _print(*_tables(run), run, console)


def _print(found: list["Table"], notes: list[str], run: Path, console: Console) -> None:
    group = ""
    for table in found:
        if table.group != group:
            group = table.group
            console.print(f"\n{group}", style="bold", highlight=False, markup=False)
        for part in _parts(table, console):
            console.print(part)
        for sentence in table.explained:
            console.print(f"  > {sentence}", highlight=False, markup=False)
    for note in notes:
        console.print(f"- {note}", highlight=False, markup=False)
    console.print(f"{run}", highlight=False, markup=False)


def show_imported(run: Path, new: int, known: int, console: Console) -> None:
    """Print the imported rows of a run folder, and how many of them an import has just added or found there."""
    from bench.analysis import imported

    rows = read_imported(run)
    _print(imported.table(rows), imported.notes(rows), run, console)
    console.print(f"{new} imported, {known} there already", highlight=False, markup=False)


def show_markdown(run: Path) -> None:
    """Print the tables of a run as Markdown."""
    from bench.analysis.tables import markdown

    sys.stdout.write(markdown(*_tables(run)))


def show_traffic(run: Path, console: Console | None, *, details: bool) -> None:
    """Print where the bytes of a run went, for a terminal, or as Markdown without a ``console``.

    First a line per row; with ``details`` then each row's operations and why paper and practice differ.
    """
    from bench.analysis import traffic
    from bench.analysis.tables import markdown

    _, records = read_measured(run)
    found: list[tuple[Table, list[str]]] = [
        (traffic.summary(records), [traffic.verdict_line(records), *traffic.NOTES]),
    ]
    if details:
        counted = [record for record in records if record.comm]
        found += zip(traffic.traffic_tables(records), map(traffic.explanations, counted), strict=True)
    for table, notes in found:
        if console is None:
            sys.stdout.write(markdown([table], notes) + "\n")
            continue
        console.print(_laid_out(table, list(range(len(table.header)))))
        for note in notes:
            console.print(f"- {note}", highlight=False, markup=False)


def show_memory(run: Path, console: Console | None) -> None:
    """Print what holds each row's memory, beside what is expected: for a terminal, or without one as Markdown."""
    from bench.analysis import memory, tables

    _, records = read_measured(run)
    found, notes = memory.tables(records), memory.notes(records)
    if console is None:
        sys.stdout.write(tables.markdown(found, notes))
    else:
        _print(found, notes, run, console)


def show_csv(run: Path) -> None:
    """Print one line per record, with every column of the tidy frame; imported rows have columns of their own."""
    import pandas as pd

    from bench.analysis import imported
    from bench.analysis.frame import frame

    found = read_run(run)
    parts = [frame(found.records)] if found.records else []
    rows = found.imported
    pd.concat([*parts, imported.frame(rows)] if rows else parts).to_csv(sys.stdout, index=False)


def show_rerun(run: Path, name: str) -> None:
    """Print the command that measures the cell called ``name`` (id or label) again.

    Raises:
        StoreError: the run has no such cell.
    """
    print(rerun_command(run, name))
