import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import record as record_module
from bench.cell import Cell
from bench.errors import StoreError
from bench.record import Record, parse_record
from bench.store import (
    MANIFEST_VERSION,
    locked,
    read_manifest,
    read_records,
    record_path,
    supersede,
    write_json,
    write_record,
)

ROOT = Path(__file__).parents[2]
STORED = ROOT / "tests" / "data" / "records"


def record(repeat: int = 0, **settings: Any) -> Record:
    cell = Cell(model="llama-tiny", strategy="z2", **settings)
    return Record(
        cell_id=cell.cell_id,
        repeat=repeat,
        label=cell.label,
        cell=cell,
        train_batch_size=cell.train_batch_size,
        num_params=315968,
        status="timeout",
        reason="not done after 900 s, killed",
        device="cpu",
    )


def content(**changes: Any) -> dict[str, Any]:
    return record().model_dump(mode="json") | changes


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in content().items() if name != key}


def python(code: str, *arguments: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def blocked_folders(tmp_path: Path) -> list[Path]:
    """Folders that even root cannot make."""
    (tmp_path / "file").write_text("")
    return [tmp_path / "file" / "run", Path("/proc/zerostage/run")]


# Writing


def test_written_json_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "made" / "on the way" / "a.json"
    write_json(path, {"name": "é", "value": [1, None, 0.1]})
    assert json.loads(path.read_text()) == {"name": "é", "value": [1, None, 0.1]}
    assert [file.name for file in path.parent.iterdir()] == ["a.json"]


@pytest.mark.parametrize("before", [None, "old"])
def test_exception_in_the_middle_leaves_the_target_as_it_was(tmp_path: Path, before: str | None) -> None:
    path = tmp_path / "a.json"
    if before:
        path.write_text(before)
    with pytest.raises(TypeError):
        write_json(path, {"first": list(range(100_000)), "second": object()})
    assert (path.read_text() if path.exists() else None) == before


DIE_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
from bench.store import write_json
class Deadly(dict):
    def items(self):
        os.kill(os.getpid(), signal.SIGKILL)
write_json(Path(sys.argv[1]), [list(range(100_000)), Deadly(a=1)])
"""


def test_kill_in_the_middle_leaves_the_target_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "records" / "a.json"
    write_json(path, "old")
    with python(DIE_WHILE_WRITING, path) as writer:
        assert writer.wait(60) == -signal.SIGKILL
    assert json.loads(path.read_text()) == "old"
    assert list(path.parent.glob("*.json")) == [path]
    write_json(path, "new")
    assert [json.loads(file.read_text()) for file in path.parent.iterdir()] == ["new"]


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    for folder in blocked_folders(tmp_path):
        with pytest.raises(StoreError, match=re.escape(f"{folder / 'a.json'}: cannot write") + ".*--results"):
            write_json(folder / "a.json", {})
        with pytest.raises(StoreError, match=re.escape(f"{folder}: cannot write") + ".*--results"), locked(folder):
            pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    (tmp_path / "a.json.part").symlink_to("/dev/full")
    with pytest.raises(StoreError, match="No space left on device"):
        write_json(path, {"a": 1})
    assert path.read_text() == "old"


def test_record_is_never_overwritten(tmp_path: Path) -> None:
    write_record(tmp_path, record())
    with pytest.raises(FileExistsError):
        write_record(tmp_path, record().model_copy(update={"reason": "another"}))
    assert read_records(tmp_path) == [record()]


# Reading


def test_records_read_back_in_the_order_of_their_names(tmp_path: Path) -> None:
    records = [record(repeat, seed=seed) for seed in (3, 1, 2) for repeat in (1, 0)]
    for each in records:
        write_record(tmp_path, each)
    (tmp_path / "records" / "half.json.part").write_text("{")
    assert read_records(tmp_path) == sorted(records, key=lambda each: (each.cell_id, each.repeat))
    assert record_path(tmp_path, records[0].cell_id, 1).is_file()


def test_stack_is_part_of_a_records_name_and_only_where_one_is_asked_for(tmp_path: Path) -> None:
    stacks = [None, "deepspeed==0.17.5", "deepspeed==0.18.0 transformers==4.57.0"]
    records = [record().model_copy(update={"requested_stack": stack}) for stack in stacks]
    for each in records:
        write_record(tmp_path, each)
    key = record().cell_id
    assert {path.name for path in (tmp_path / "records").iterdir()} == {
        f"{key}-r0.json",
        f"{key}-deepspeed-0.17.5-r0.json",
        f"{key}-deepspeed-0.18.0-transformers-4.57.0-r0.json",
    }
    assert {each.requested_stack for each in read_records(tmp_path)} == set(stacks)
    with pytest.raises(FileExistsError):
        write_record(tmp_path, records[1])
    assert supersede(tmp_path, {f"{key}-r0"}) == 1
    assert {each.requested_stack for each in read_records(tmp_path)} == set(stacks[1:])


def test_record_under_another_stacks_name_is_refused(tmp_path: Path) -> None:
    write_record(tmp_path, record().model_copy(update={"requested_stack": "deepspeed==0.17.5"}))
    path = record_path(tmp_path, record().cell_id, 0, "deepspeed==0.17.5")
    path.rename(record_path(tmp_path, record().cell_id, 0))
    with pytest.raises(StoreError, match=r"a copy of record .*-deepspeed-0\.17\.5-r0; move it away"):
        read_records(tmp_path)


def test_run_without_records_is_empty(tmp_path: Path) -> None:
    assert read_records(tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(content())[:-40], "torn or damaged record"),
        ("", "torn or damaged record"),
        ("not JSON", "torn or damaged record"),
        ("[]", "no 'schema_version'"),
        ("null", "no 'schema_version'"),
        (json.dumps(without("schema_version")), "no 'schema_version'"),
        (json.dumps(content(schema_version="1")), "no 'schema_version'"),
        (json.dumps(content(schema_version=0)), "damaged record"),
        (json.dumps(without("status")), "damaged record ('status': Field required)"),
        (json.dumps(content(extra=1)), "damaged record ('extra': Extra inputs are not permitted)"),
        (json.dumps(content(status="fine")), "damaged record ('status': "),
        (json.dumps(content(cell={"model": "gpt2"})), "damaged record ('cell.strategy': Field required)"),
        (json.dumps(content(schema_version=True)), "no 'schema_version'"),
        (json.dumps(content(schema_version=1, validity="valid", validity_reasons=None)), "damaged record ("),
        (json.dumps(content(schema_version=1, validity="valid", validity_reasons=7)), "damaged record ("),
        (json.dumps(without("validity") | {"schema_version": 1}), "damaged record (missing 'validity')"),
        ("[" * 100_000, "torn or damaged record"),
    ],
)
def test_damaged_record_names_file_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    write_record(tmp_path, record(7))
    path = record_path(tmp_path, "0" * 12, 0)
    path.write_text(text)
    with pytest.raises(StoreError) as caught:
        read_records(tmp_path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "move the file away and run the scenario again" in str(caught.value)


@pytest.mark.parametrize("make", [lambda p: p.write_bytes(b"\xff\xfe"), lambda p: p.mkdir()], ids=["binary", "folder"])
def test_record_that_cannot_be_read(tmp_path: Path, make: Any) -> None:
    path = record_path(tmp_path, "0" * 12, 0)
    path.parent.mkdir()
    make(path)
    with pytest.raises(StoreError, match=re.escape(f"{path}: cannot read the record")):
        read_records(tmp_path)


def test_newer_schema_asks_for_an_upgrade() -> None:
    newer = json.dumps({"schema_version": record_module.SCHEMA_VERSION + 1, "unheard": "of"})
    with pytest.raises(StoreError, match=r"a\.json: .*newer zerostage.*upgrade zerostage"):
        parse_record(newer, "a.json")


def test_older_schema_is_upgraded_on_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def upgrade(data: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in data.items() if key != "title"} | {"label": data["title"]}

    monkeypatch.setattr(record_module, "SCHEMA_VERSION", 2)
    monkeypatch.setitem(record_module.UPGRADES, 1, upgrade)
    old = without("label") | {"schema_version": 1, "title": "a label"}
    read = parse_record(json.dumps(old), "a.json")
    assert (read.schema_version, read.label) == (2, "a label")
    with pytest.raises(StoreError, match=r"a\.json: damaged record \(missing 'title'\)"):
        parse_record(json.dumps(without("label") | {"schema_version": 1}), "a.json")
    with pytest.raises(StoreError, match=r"schema_version 3 .* reads up to 2"):
        parse_record(json.dumps(content(schema_version=3)), "a.json")


def leaves(data: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from leaves(value, f"{where}.{key}")
    else:
        yield where, data


@pytest.mark.parametrize("name", ["v1-completed", "v1-skipped"])
def test_stored_record_stays_readable(name: str) -> None:
    text = (STORED / f"{name}.json").read_text()
    read = parse_record(text, name)
    old = {path: value for path, value in leaves(json.loads(text)) if path not in (".schema_version",)}
    new = dict(leaves(read.model_dump(mode="json")))
    reasons = {value for path, value in old.items() if path.startswith(".validity_reasons")}
    assert reasons <= {finding.text for finding in read.findings}
    assert {path: new.get(path) for path in old if not path.startswith(".validity_reasons")} == {
        path: value for path, value in old.items() if not path.startswith(".validity_reasons")
    }
    assert read.cell.cell_id == read.cell_id
    assert read.cell.label == read.label
    assert parse_record(json.dumps(read.model_dump(mode="json")), name) == read


def test_stored_records_mean_what_they_meant() -> None:
    done, skipped = (parse_record((STORED / f"v1-{name}.json").read_text(), name) for name in ("completed", "skipped"))
    assert done.status == "completed"
    assert done.timing is not None
    assert done.memory is not None
    assert done.comm is not None
    assert (len(done.timing.step_times_s), len(done.memory.ranks), done.comm.backend) == (2, 2, "gloo")
    assert (skipped.status, skipped.timing) == ("skipped", None)
    assert skipped.reason == "world_size 4 is above the 2 cpu slots here"


# The lock

HOLD = """
import sys
from pathlib import Path
from bench.store import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with python(HOLD, run) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match=rf"run: another zerostage run \(process {holder.pid}\)"), locked(run):
            pass
        holder.kill()
        holder.wait(60)
        with locked(run):
            assert (run / "lock").read_text() == str(os.getpid())


def test_lock_is_free_again_after_an_exception(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        1 / 0  # noqa: B018
    with locked(tmp_path), pytest.raises(StoreError), locked(tmp_path):
        pass


# Putting aside


def test_supersede_moves_records_and_logs_and_deletes_nothing(tmp_path: Path) -> None:
    texts = {}
    for folder, suffix in (("records", ".json"), ("logs", ".log"), ("work", ".json")):
        (tmp_path / folder).mkdir()
        for name in ("a-r0", "a-r1", "aa-r0", "b-r0"):
            texts[folder, name + suffix] = text = f"{folder} {name}"
            (tmp_path / folder / (name + suffix)).write_text(text)
    assert supersede(tmp_path, {"a-r0", "b-r0", "absent-r0"}) == 2
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {(path.parent.name, path.name): path.read_text() for path in files} == texts
    aside = {path.relative_to(tmp_path).parts[2:] for path in files if "superseded" in path.parts}
    assert aside == {("records", "a-r0.json"), ("records", "b-r0.json"), ("logs", "a-r0.log"), ("logs", "b-r0.log")}


def test_same_record_can_be_superseded_again(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_record(tmp_path, record().model_copy(update={"reason": f"attempt {seed}"}))
        assert supersede(tmp_path, {f"{record().cell_id}-r0"}) == 1
    kept = sorted(json.loads(path.read_text())["reason"] for path in tmp_path.glob("superseded/*/records/*.json"))
    assert kept == ["attempt 1", "attempt 2"]
    assert read_records(tmp_path) == []


def test_nothing_to_supersede_makes_no_folder(tmp_path: Path) -> None:
    assert supersede(tmp_path, {"a-r0"}) == 0
    assert list(tmp_path.iterdir()) == []


# The manifest


MANIFEST = {
    "manifest_version": MANIFEST_VERSION,
    "scenario": {},
    "scenario_path": "a.yaml",
    "scenario_name": "a",
    "cells": [{"cell_id": "0" * 12, "label": "a cell"}],
    "environment": {},
}


def test_manifest_reads_back(tmp_path: Path) -> None:
    write_json(tmp_path / "manifest.json", MANIFEST)
    assert read_manifest(tmp_path) == MANIFEST


def test_half_a_surrogate_pair_is_readable_and_can_be_written(tmp_path: Path) -> None:
    found = parse_record(json.dumps(content(label="a\ud800b \U0001f600")), "a record")
    write_json(tmp_path / "manifest.json", MANIFEST | {"scenario_name": "\udc80x"})
    assert found.label == "a\ufffdb \U0001f600"
    assert read_manifest(tmp_path)["scenario_name"] == "\ufffdx"


@pytest.mark.parametrize(
    "damage",
    [
        {"cells": None},
        {"cells": [7]},
        {"cells": [{"label": "x"}]},
        {"scenario": []},
        {"environment": None},
        {"scenario_path": 1},
    ],
)
def test_a_manifest_of_another_form_is_none(tmp_path: Path, damage: dict[str, Any]) -> None:
    write_json(tmp_path / "manifest.json", MANIFEST | damage)
    with pytest.raises(StoreError, match="not a manifest that this zerostage reads"):
        read_manifest(tmp_path)


def test_missing_manifest(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for run in (tmp_path, tmp_path / "absent", tmp_path / "file"):
        with pytest.raises(StoreError, match=re.escape(f"{run}: no run there") + ".*name a folder"):
            read_manifest(run)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}", b'{"manifest_version": 999}', b"\xff\xfe"])
def test_damaged_manifest(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(text)
    with pytest.raises(StoreError, match=re.escape(str(tmp_path / "manifest.json"))):
        read_manifest(tmp_path)
