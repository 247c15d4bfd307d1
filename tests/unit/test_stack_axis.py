import sys
from pathlib import Path
from typing import Any

import pytest

from bench.errors import StoreError
from bench.launch import isolated
from bench.outcome import not_built
from bench.plan import PlannedCell, Resources, plan
from bench.report.command import show_rerun
from bench.scenario import Scenario
from bench.stacks import is_release, releases
from bench.store import MANIFEST_VERSION, write_json
from bench.validity.settings import other_releases

OLD = "deepspeed==0.18.0 transformers==4.57.0"
RESOURCES = Resources(device="cpu", slots=4, memory_bytes=2**34, shared=True)


def planned(**matrix: Any) -> list[PlannedCell]:
    axes = {"model": "llama-tiny", "strategy": "z2", "stack": ["installed", "deepspeed==0.17.5", OLD]}
    return plan(Scenario.model_validate({"matrix": axes | matrix}), RESOURCES)


@pytest.mark.parametrize(
    ("found", "asked", "same"),
    [
        ("0.18.0", "0.18", True),
        ("0.18.0", "0.18.0", True),
        ("0.18.1", "0.18", False),
        ("0.18.0", "0.1", False),
        ("0.18.0+cpu", "0.18.0", True),
        ("0.18.0+cpu", "0.18.0+cpu", True),
        ("0.18.0", "0.18.0+cpu", False),
        ("0.10", "0.1", False),
        ("", "0.1", False),
    ],
)
def test_a_release_is_the_one_that_pip_would_take_for_it(found: str, asked: str, same: bool) -> None:
    assert is_release(found, asked) is same


def test_ranks_that_ran_another_release_are_found_out() -> None:
    ran = {"deepspeed": "0.19.8", "transformers": "4.57.0"}
    (finding,) = other_releases(OLD, ran)
    assert finding.verdict == "suspect"
    assert finding.text == "asked for deepspeed 0.18.0, the ranks ran 0.19.8"
    assert other_releases(OLD, ran | {"deepspeed": "0.18.0"}) == []
    assert other_releases(None, ran) == []
    assert releases(OLD) == {"deepspeed": "0.18.0", "transformers": "4.57.0"}


def test_each_stack_has_an_environment_and_a_folder_of_ops_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "mine"))
    folders = {isolated.folder(stack) for stack in (OLD, "deepspeed==0.18.0", "deepspeed==0.18.1")}
    assert len(folders) == 3
    assert {folder.parent for folder in folders} == {tmp_path / "zerostage" / "stacks"}
    assert isolated.extensions(OLD).is_relative_to(isolated.folder(OLD))
    made = isolated.folder(OLD)
    made.mkdir(parents=True)
    assert not isolated.is_made(OLD)  # a build that was killed
    monkeypatch.setattr(isolated, "_torch", lambda: "9.9.9")
    assert isolated.folder(OLD) != made  # it would see another torch


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            "Looking in indexes: x\n"
            "ERROR: Could not find a version that satisfies the requirement deepspeed==99.0 (from versions: 0.1, 0.2)\n"
            "ERROR: No matching distribution found for deepspeed==99.0\n",
            "No matching distribution found for deepspeed==99.0",
        ),
        (
            "ERROR: Could not find a version that satisfies the requirement a==1 (from versions: none)\n"
            "ERROR: No matching distribution found for a==1\n",
            "No matching distribution found for a==1 (no release at all was found: is a package index within reach?)",
        ),
        (
            "ERROR: Cannot install a==1 and torch==2 because these package versions have conflicting dependencies.\n"
            "ERROR: ResolutionImpossible: for help visit a page\n",
            "Cannot install a==1 and torch==2 because these package versions have conflicting dependencies.",
        ),
        ("Error: the venv needs ensurepip\n\n", "Error: the venv needs ensurepip"),
        ("", "no output"),
    ],
)
def test_the_reason_is_pips_own(tmp_path: Path, output: str, reason: str) -> None:
    (tmp_path / "log").write_text(output)
    assert isolated._reason(tmp_path / "log") == reason


def test_a_stack_that_cannot_be_made_is_a_row_of_each_of_its_cells() -> None:
    installed, old, _ = planned()
    record = not_built(old, 1, "cpu", "No matching distribution")
    assert (record.status, record.reason, record.repeat) == ("build_error", "No matching distribution", 1)
    assert (record.cell_id, record.requested_stack) == (installed.cell_id, "deepspeed==0.17.5")
    assert record.label == f"{record.cell.label}/deepspeed==0.17.5"
    assert record.launch is None


def run_folder(tmp_path: Path, entries: list[PlannedCell], stacks: bool = True) -> Path:
    cells = [{"cell_id": e.cell_id, "label": e.label} | ({"stack": e.stack} if stacks else {}) for e in entries]
    manifest = {"scenario": {}, "scenario_path": "a.yaml", "scenario_name": "a", "cells": cells, "environment": {}}
    write_json(tmp_path / "a" / "manifest.json", manifest | {"manifest_version": MANIFEST_VERSION})
    return tmp_path / "a"


@pytest.mark.parametrize(
    ("name", "only"),
    [
        ("ID-deepspeed-0.17.5-r0", "ID/deepspeed==0.17.5"),
        ("ID-r3", None),
        ("LABEL/deepspeed==0.17.5-r0", "ID/deepspeed==0.17.5"),
        ("LABEL-r0", "ID/installed"),
        ("ID/installed", "ID/installed"),
        (f"LABEL/{OLD}", f"'ID/{OLD}'"),
    ],
)
def test_rerun_names_one_stack_of_a_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, only: str | None
) -> None:
    entries = planned()
    run = run_folder(tmp_path, entries)
    cell = entries[0]

    def filled(text: str) -> str:
        return text.replace("ID", cell.cell_id).replace("LABEL", cell.cell.label)

    if only is None:
        known = f"{cell.cell_id}/installed, {cell.cell_id}/deepspeed==0.17.5, {cell.cell_id}/{OLD}"
        with pytest.raises(StoreError, match=f"3 cells are called .* name one by its id: {known}$"):
            show_rerun(run, filled(name))
    else:
        show_rerun(run, filled(name))
        assert f"--only {filled(only)} --fresh" in capsys.readouterr().out


def test_rerun_in_a_run_without_stacks_is_as_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (cell,) = planned(stack="installed")
    show_rerun(run_folder(tmp_path, [cell], stacks=False), f"{cell.cell_id}-r0")
    assert f"--only {cell.cell_id} --fresh" in capsys.readouterr().out


def test_what_builds_a_release_may_import_what_lies_beside_its_setup(tmp_path, monkeypatch):
    """DeepSpeed 0.17.5's setup.py imports ``op_builder``; the interpreter that runs pip is kept from such imports."""
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    (tmp_path / "op_builder.py").write_text("")
    with (tmp_path / "lock").open("w") as lock:
        isolated._call(sys.executable, "-c", "import op_builder", target=tmp_path, lock=lock.fileno())
        with pytest.raises(SystemExit):
            isolated._call(sys.executable, "-c", "import nothing_there", target=tmp_path, lock=lock.fileno())
