"""Where the verdicts are read: the command, docs/claims.md, and the committed rows behind both."""

import json
import re
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.claims import document
from bench.claims.show import folders
from bench.cli import app
from bench.errors import StoreError
from bench.plan import Resources, plan_file

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results" / "reference"


def run(*words):
    return CliRunner().invoke(app, ["report", "claims", str(document.REFERENCE), *words], env={"COLUMNS": "200"})


def test_docs_claims_is_what_its_command_writes():
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert f"`{document.COMMAND}`" in page
    assert page == document.written()


def test_both_languages_of_the_page_have_every_claim_and_the_rule():
    page = document.written()
    english, chinese = page.split("\n## 中文\n")
    for part in (english, chinese):
        assert len(re.findall(r"^#### `[\w-]+`", part, re.MULTILINE)) == 14
        assert re.search(r"^7\. ", part, re.MULTILINE)


def test_the_command_writes_three_formats_in_two_languages():
    for language, word in (("en", "depends on"), ("zh", "视情况而定")):
        for form in ("terminal", "markdown"):
            done = run("--format", form, "--language", language)
            assert done.exit_code == 0
            assert word in done.stdout
            assert "llama-tiny/z0/w2/mbs2/gas1/s32/bf16" in done.stdout
    data = json.loads(run("--format", "json").stdout)
    assert len(data["verdicts"]) == 14
    assert data["verdicts"][0]["because"].keys() == data["rule"][0].keys() == {"en", "zh"}
    assert data["verdicts"][0]["evidence"][0]["cell_id"]


def test_without_a_run_the_users_rows_come_before_the_committed_ones(tmp_path):
    with pytest.raises(StoreError, match=r"zerostage run scenarios/claims\.yaml"):
        folders([], tmp_path / "runs")
    kept, own = tmp_path / "reference" / "claims", tmp_path / "runs" / "claims"
    for folder in (kept, own):
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
        assert folders([], tmp_path / "runs") == [folder]
    assert folders([kept], tmp_path / "runs") == [kept]


def test_the_committed_rows_are_all_rows_of_the_scenario():
    offer = Resources(device="cpu", slots=4, memory_bytes=2**35, shared=True, deepspeed="0.19.8")
    planned = {(entry.cell_id, entry.stack) for entry in plan_file(ROOT / "scenarios" / "claims.yaml", offer)[1]}
    stored = [json.loads(path.read_text()) for path in (REFERENCE / "claims" / "records").glob("*.json")]
    assert {(row["cell_id"], row["requested_stack"]) for row in stored} == planned
    assert {row["status"] for row in stored} == {"completed"}


def test_committed_rows_name_no_machine():
    # A path below the root, a host's name or address; "/" alone is a division or a part of a label.
    path = re.compile(r"(?<![\w./-])/(?:bin|etc|home|mnt|opt|private|proc|root|srv|tmp|usr|Users|var|work)/")
    address = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b")
    files = [file for file in REFERENCE.rglob("*") if file.is_file()]
    assert len(files) > 100
    for file in files:
        assert file.suffix == ".json", "records and manifests alone, no logs or traces"
        text = file.read_text(encoding="utf-8")
        assert not path.search(text), file
        assert not address.search(text), file
        assert f'"{socket.gethostname()}"' not in text
