"""``zerostage emulate`` as a user runs it: rows, tables, what is unsupported, and what is not computed twice."""

import json

import pytest
from conftest import zerostage

from bench.store import read_records

pytestmark = pytest.mark.ranks


def test_a_quick_answer(tmp_path):
    options = ["--model", "gpt2-tiny", "--gpus", "2,16", "--strategy", "ddp,z3", "--results", tmp_path]
    done = zerostage("emulate", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {record.label: record for record in read_records(tmp_path / "emulate")}
    assert len(rows) == 4
    for label, record in rows.items():
        assert record.provenance == "emulated"
        if "/ddp/" in label:
            assert record.status == "unsupported"
            assert "torch DDP's reducer" in record.reason
            continue
        assert (record.status, record.validity) == ("completed", "valid")
        assert record.timing is None
        assert record.losses == []
        assert (tmp_path / "emulate" / record.emulation.trace).is_file()
    small, large = (rows[f"gpt2-tiny/z3/{where}/mbs1/gas1/s512/bf16/emulated"] for where in ("w2", "w16n2"))
    assert {row.group for row in small.comm.collectives} == {"intra-node"}
    assert "inter-node" in {row.group for row in large.comm.collectives}
    assert large.shards[0].optimizer_states * 7 < small.shards[0].optimizer_states
    assert "Reserved memory" in done.stdout
    assert "Throughput" not in done.stdout
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "emulate" / "records").iterdir()}
    again = zerostage("emulate", *options)
    assert "4 of 4 rows are there already" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "emulate" / "records").iterdir()} == before


def test_shapes_that_depend_on_data_are_unsupported_with_the_operator(tmp_path):
    scenario = {
        "matrix": {"model": "mixtral-tiny", "strategy": "z1", "world_size": 2, "seq_length": 32, "mode": "emulated"},
        "experts_implementation": "eager",
    }
    (tmp_path / "eager.yaml").write_text(json.dumps(scenario))
    done = zerostage("run", tmp_path / "eager.yaml", "--results", tmp_path / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = read_records(tmp_path / "runs" / "eager")
    assert record.status == "unsupported"
    assert "returns a shape that depends on the content of its arguments" in record.reason


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gpus", "8,x"], ["--gpus", "whole numbers with commas between"]),
        (["--gpus", "8", "--model", "llama-2-7c"], ["llama-2-7c", "did you mean 'llama-2-7b'"]),
        (["--gpus", "8", "--strategy", "z9"], ["unknown strategy 'z9'"]),
        (["--gpus", "8", "--gpu", "H300"], ["unknown GPU 'H300'", "did you mean"]),
        (["--gpus", "8", "--rank", "lst"], ["emulation.rank", "'first', 'middle', 'last'"]),
        (["--gpus", "0"], ["matrix.world_size"]),
    ],
)
def test_a_wrong_option_is_one_message(tmp_path, options, words):
    done = zerostage("emulate", "--model", "gpt2-tiny", *options, "--results", tmp_path / "runs")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
    assert not (tmp_path / "runs").exists()
