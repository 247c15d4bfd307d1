"""What the commands print."""

import shlex
import sys
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from bench import estimate
from bench.environment import installed, resources
from bench.fit import show_notes
from bench.plan import PlannedCell, plan_file, repeats, select, unused_rules
from bench.progress import duration
from bench.store import read_records, record_name, row_name
from bench.validity.forewarn import forewarnings


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
