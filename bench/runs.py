"""A run folder as its readers see it: manifest, records in the manifest's order, imported rows."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import StoreError
from bench.imports.row import ImportedRow
from bench.record import Record
from bench.stacks import INSTALLED
from bench.store import read_imported, read_manifest, read_records, row_name
from bench.validity.known_bad import judged_again


@dataclass(frozen=True)
class Run:
    """What a run folder holds. ``records`` are of the cells that ``manifest`` lists, in its order, judged again by
    what is known of their releases now. Of a folder that has imported rows alone, ``manifest`` is ``None``.
    """

    folder: Path
    manifest: dict[str, Any] | None
    records: list[Record]
    imported: list[ImportedRow]

    @property
    def name(self) -> str:
        """The folder's name: that of the scenario."""
        return self.folder.resolve().name


def read_run(folder: Path) -> Run:
    """Read a run folder.

    Raises:
        StoreError: it is none, has no row yet, or one of its files is damaged.
    """
    imported = read_imported(folder)
    if imported and not (folder / "manifest.json").exists():
        return Run(folder, None, [], imported)
    manifest = read_manifest(folder)
    order = {cell_key(cell): number for number, cell in enumerate(manifest["cells"])}
    stored = [record for record in read_records(folder) if (record.cell_id, record.requested_stack) in order]
    records = [judged_again(record) for record in stored]
    if not records:
        raise StoreError(f"{folder}: no row there yet; go on with 'zerostage run {manifest['scenario_path']}'")
    records.sort(key=lambda record: (order[record.cell_id, record.requested_stack], record.repeat))
    return Run(folder, manifest, records, imported)


def read_measured(folder: Path) -> tuple[dict[str, Any], list[Record]]:
    """Read manifest and records of a run folder.

    Raises:
        StoreError: as ``read_run``, or it holds imported rows alone.
    """
    run = read_run(folder)
    if run.manifest is None:
        raise StoreError(
            f"{folder}: it holds imported rows alone; of those there is the table of 'zerostage report {folder}'"
        )
    return run.manifest, run.records


def latest_run(results: Path) -> Path:
    """Return the run folder under ``results`` whose manifest, or folder of imported rows, is the newest.

    Raises:
        StoreError: there is none.
    """
    found = [*results.glob("*/manifest.json"), *results.glob("*/imported")]
    if not found:
        raise StoreError(f"{results}: no run there yet; make one with 'zerostage run scenarios/smoke.yaml'")
    return max(found, key=lambda path: path.stat().st_mtime).parent


def cell_key(cell: dict[str, Any]) -> tuple[str, str | None]:
    """Return what a cell of a manifest is known by."""
    return cell["cell_id"], cell.get("stack")  # manifests of the first release have no stack


def find_cell(run: Path, manifest: dict[str, Any], name: str) -> tuple[str, str | None, bool]:
    """Return id and stack of the one cell that is called ``name`` (id or label), and whether the run has stacks.

    Raises:
        StoreError: the run has no such cell, or several.
    """
    wanted = re.sub(r"-r\d+$", "", name)  # as the lines of a run and the names of its files have it
    stacked = any(cell.get("stack") for cell in manifest["cells"])
    found = []
    for cell in manifest["cells"]:
        key, stack = cell_key(cell)
        full = f"{key}/{stack or INSTALLED}"
        if wanted in (key, cell["label"], row_name(key, stack), full):
            found.append((key, stack, full if stacked else key))
    if len(found) == 1:
        return found[0][0], found[0][1], stacked
    if found:
        names = ", ".join(full for *_, full in found)
        raise StoreError(f"{run}: {len(found)} cells are called '{name}'; name one by its id: {names}")
    raise StoreError(f"{run}: no cell '{name}'; 'zerostage plan {manifest['scenario_path']}' lists them")


def rerun_command(run: Path, manifest: dict[str, Any], name: str) -> str:
    """Return the command that measures the cell called ``name`` (id or label) again.

    Raises:
        StoreError: the run has no such cell.
    """
    if run.resolve().name != manifest["scenario_name"]:
        raise StoreError(f"{run}: the folder was renamed; its rows are written to '{manifest['scenario_name']}'")
    key, stack, stacked = find_cell(run, manifest, name)
    only = f"{key}/{stack or INSTALLED}" if stacked else key
    argv = ["zerostage", "run", manifest["scenario_path"], "--only", only, "--fresh"]
    return shlex.join([*argv, "--results", str(run.parent)])
