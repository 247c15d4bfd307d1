"""A requested stack, for real: an environment is made, used, used again; and one that cannot be made is a row."""

import json
import os
from pathlib import Path

import pytest
from conftest import zerostage

from bench.store import read_records

pytestmark = pytest.mark.ranks

OLD, WRONG = "deepspeed==0.18.0", "deepspeed==99.0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("stacks")


@pytest.fixture(scope="module")
def run(folder):
    """Run one cell in both stacks; return the finished process."""
    axes = {"model": "llama-tiny", "strategy": "z2", "seq_length": 32, "stack": [WRONG, OLD]}
    scenario = folder / "old.yaml"
    scenario.write_text(json.dumps({"matrix": axes, "warmup_steps": 1, "steps": 2}))
    return call(folder, "run", scenario)


def call(folder, *arguments):
    # A cache of the test's own, so that it is made for real and a user's is left alone; only pip's is shared.
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    pip_cache = os.environ.get("PIP_CACHE_DIR") or str(caches / "pip")
    variables = {"XDG_CACHE_HOME": str(folder / "cache"), "PIP_CACHE_DIR": pip_cache}
    return zerostage(*arguments, "--results", folder / "runs", **variables)


@pytest.fixture(scope="module")
def rows(folder, run):
    found = {record.requested_stack: record for record in read_records(folder / "runs" / "old")}
    reason = found[OLD].reason or ""
    if "is a package index within reach?" in reason:
        pytest.skip(f"no package index within reach: {reason}")
    return found


def test_the_cell_runs_in_the_release_that_was_asked_for(folder, run, rows):
    record = rows[OLD]
    assert record.status == "completed", run.stdout
    assert record.stack["deepspeed"] == "0.18.0"
    assert record.launch.isolation == "fork"
    assert record.launch.command[-1] == "work/agents-deepspeed-0.18.0.json"
    assert record.effective["zero_stage"] == 2
    assert len(record.losses) == 5 + 1 + 2
    assert (folder / "runs" / "old" / "records" / f"{record.cell_id}-deepspeed-0.18.0-r0.json").is_file()
    assert f"set-up: making the environment {OLD}" in run.stdout


def test_torch_is_shared_and_the_ops_are_not(folder, rows):
    (environment,) = (path.parent for path in (folder / "cache" / "zerostage" / "stacks").glob("*/zerostage.json"))
    packages = {path.name for path in environment.glob("lib/python*/site-packages/*")}
    assert "deepspeed" in packages
    assert not packages & {"torch", "transformers", "bench"}
    assert list((environment / "torch_extensions").glob("*/*.so"))
    assert not (folder / "cache" / "zerostage" / "torch_extensions").exists()


def test_a_release_that_does_not_exist_is_a_row_with_pips_reason(folder, run, rows):
    record = rows[WRONG]
    assert run.returncode == 1
    assert record.status == "build_error"
    assert "No matching distribution found for deepspeed==99.0" in record.reason
    assert "Traceback" not in run.stdout + run.stderr
    assert "from versions" in (folder / "runs" / "old" / "logs" / "environment-deepspeed-99.0.log").read_text()
    assert "build_error" in run.stdout


def test_the_environment_is_used_again(folder, rows):
    rerun = call(folder, "report", folder / "runs" / "old", "--rerun", f"{rows[OLD].cell_id}-deepspeed-0.18.0-r0")
    argv = rerun.stdout.split()
    assert argv[:1] == ["zerostage"], rerun.stderr
    (stamp,) = (folder / "cache" / "zerostage" / "stacks").glob("*/zerostage.json")
    before = stamp.stat().st_mtime_ns
    again = call(folder, *argv[1:-2])
    assert again.returncode == 0, again.stdout + again.stderr
    assert "1 earlier rows put aside" in again.stdout
    assert "set-up: making" not in again.stdout
    assert "set-up: compiling" not in again.stdout
    assert stamp.stat().st_mtime_ns == before
    assert {record.requested_stack for record in read_records(folder / "runs" / "old")} == {OLD, WRONG}
