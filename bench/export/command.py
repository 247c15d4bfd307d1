"""`zerostage select config`: find the row, and print its files or write them."""

import sys
from pathlib import Path

from bench.errors import StoreError
from bench.export.formats import exported
from bench.models.catalog import load_config
from bench.record import Record
from bench.runs import find_cell
from bench.store import read_manifest, read_records


def show_config(run: Path, name: str, target: str, output: Path | None) -> None:
    """Print the files from which ``target`` trains as the cell called ``name`` did, or write them into ``output``.

    Raises:
        StoreError: there is no such row, or a file of another content is in the way.
        ScenarioError: ``target`` cannot express the row, or its model cannot be read.
    """
    record = _row(run, name)
    files = exported(record, load_config(record.cell.model), target)
    if output is None:
        sys.stdout.write(as_text(files))
        return
    write_files(output, files)
    for file in files:
        print(output / file)


def _row(run: Path, name: str) -> Record:
    manifest = read_manifest(run)
    key, stack, _ = find_cell(run, manifest, name)
    rows = [record for record in read_records(run) if (record.cell_id, record.requested_stack) == (key, stack)]
    if not rows:
        raise StoreError(f"{run}: no row of '{name}' yet; go on with 'zerostage run {manifest['scenario_path']}'")
    return rows[0]  # repeats are of one cell


def as_text(files: dict[str, str]) -> str:
    """Return one file as it is, several each after a line with its name, as ``head`` prints them."""
    if len(files) == 1:
        return "".join(files.values())
    return "\n".join(f"==> {name} <==\n{text}" for name, text in files.items())


def write_files(folder: Path, files: dict[str, str]) -> None:
    """Write ``files`` into ``folder``: all of them, or none where one is there with another content.

    Raises:
        StoreError: one is, or the folder cannot be written to.
    """
    try:
        for name, text in files.items():
            path = folder / name
            if path.exists() and path.read_bytes() != text.encode():
                raise StoreError(
                    f"{path}: there already, with another content; move it away, or choose another --output"
                )
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(text.encode())
    except OSError as error:
        raise StoreError(f"{folder}: cannot write ({error.strerror}); choose a folder with --output") from None
