from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from bench.cell import Cell
from bench.validity import known_bad as module
from bench.validity.forewarn import forewarnings
from bench.validity.known_bad import Entry, known_bad, matching, table

ENTRY = {
    "id": "an-entry",
    "versions": ">=1,<2",
    "when": {"strategy": ["z2"]},
    "wrong": "it is wrong",
    "verdict": "suspect",
    "affects": "figures",
    "sources": ["owner/repo#1"],
}


def cell(strategy: str, **settings: Any) -> Cell:
    return Cell(model="llama-tiny", strategy=strategy, **({"world_size": 2} | settings))


def ids(version: str, row: Cell, **effective: Any) -> set[str]:
    return {entry.id for entry in matching({"deepspeed": version, "torch": "2.13.0+cpu"}, row, effective)}


def test_the_table_is_sound_and_every_entry_has_a_source() -> None:
    assert len({entry.id for entry in table()}) == len(table()) >= 20
    assert all(url.startswith("https://github.com/") for entry in table() for url in entry.urls)
    assert all(entry.urls for entry in table())


def test_no_key_stands_twice_in_the_file() -> None:
    """YAML would silently keep the last of two equal keys."""
    text = (Path(module.__file__).parent / "known_bad.yaml").read_text()
    assert text.count("\n- id:") == len(yaml.safe_load(text)) == len(table())


@pytest.mark.parametrize(
    "change",
    [
        {"versions": "0.17 to 0.18"},
        {"also": {"torch": "new"}},
        {"sources": []},
        {"sources": ["see the issue"]},
        {"when": {"stage": [2]}},
        {"when": {"world_size": {"over": 1}}},
        {"verdict": "valid"},
        {"affects": "all"},
        {"affect": "figures"},
    ],
)
def test_an_entry_that_says_nothing_checkable_is_refused(change: dict[str, Any]) -> None:
    Entry.model_validate(ENTRY)
    with pytest.raises(ValidationError):
        Entry.model_validate(ENTRY | change)


@pytest.mark.parametrize("version", ["0.17.6", "0.18.0", "0.18.2", "0.18.0+git.1234"])
def test_accumulation_at_stage_2_is_wrong_in_these_releases(version: str) -> None:
    row = cell("z2", gradient_accumulation_steps=2)
    assert "z2-last-micro-batch" in ids(version, row)
    (finding,) = [f for f in known_bad({"deepspeed": version}, row, {}) if f.verdict == "invalid"]
    assert finding.check == "known-bad release"
    assert "#7718" in finding.text
    assert finding.affects == "training"


@pytest.mark.parametrize(
    ("version", "row"),
    [
        ("0.17.5", cell("z2", gradient_accumulation_steps=2)),
        ("0.18.3", cell("z2", gradient_accumulation_steps=2)),
        ("0.18.0", cell("z2", gradient_accumulation_steps=1)),
        ("0.18.0", cell("z1", gradient_accumulation_steps=2)),
        ("0.18.0", cell("ddp", gradient_accumulation_steps=2)),
    ],
)
def test_and_right_in_others_and_at_other_settings(version: str, row: Cell) -> None:
    assert "z2-last-micro-batch" not in ids(version, row)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.7.4", set()),
        ("0.17.5", {"z0-bf16-is-bf16-optimizer"}),
        ("0.17.6", {"z0-bf16-kept-gradients"}),
        ("0.18.5", {"z0-bf16-kept-gradients", "z0-bf16-unscaled-loss"}),
        ("0.18.6", set()),
        ("0.19.8", set()),
    ],
)
def test_what_stage_0_is_in_bf16(version: str, expected: set[str]) -> None:
    assert ids(version, cell("z0")) == expected
    assert ids(version, cell("z0", dtype="fp16")) == set()


@pytest.mark.parametrize("strategy", ["ddp", "z0", "z1", "z2", "z3"])
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_the_release_that_ci_runs_is_not_in_the_table_at_its_defaults(strategy: str, backend: str) -> None:
    assert ids("0.19.8", cell(strategy, gradient_accumulation_steps=4), backend=backend) == set()


def test_a_race_between_streams_is_not_said_of_a_cpu() -> None:
    row = cell("z2", zero_optimization={"overlap_comm": True})
    assert "overlap-freed-buffers" in ids("0.18.6", row, backend="nccl")
    assert "overlap-freed-buffers" not in ids("0.18.6", row, backend="gloo")
    assert "overlap-freed-buffers" not in ids("0.18.6", row)


def test_what_the_engine_runs_goes_before_what_was_asked() -> None:
    row = cell("z2", zero_optimization={"overlap_comm": True})
    assert "overlap-freed-buffers" not in ids("0.18.6", row, backend="nccl", overlap_comm=False)
    assert "overlap-freed-buffers" in ids("0.18.6", cell("z1"), backend="nccl", overlap_comm=True)


def test_a_setting_left_out_has_deepspeeds_default() -> None:
    """overlap_comm is on at stage 3 by default, and at 1 and 2 off."""
    assert "overlap-freed-buffers" not in ids("0.18.6", cell("z2"), backend="nccl")
    stack = {"deepspeed": "0.18.7", "torch": "2.10.0"}
    assert {e.id for e in matching(stack, cell("z3"), {"backend": "nccl"})} == {"z3-reduce-stream"}
    assert matching(stack | {"torch": "2.9.1"}, cell("z3"), {"backend": "nccl"}) == []


def test_a_fact_that_is_not_known_matches_nothing() -> None:
    assert "z1-bf16-optimizer-last-micro-batch" not in ids("0.18.6", cell("z1"))
    assert "z1-bf16-optimizer-last-micro-batch" in ids("0.18.6", cell("z1"), optimizer_wrapper="BF16_Optimizer")
    assert matching({}, cell("z2", gradient_accumulation_steps=2), {}) == []
    assert matching({"deepspeed": "a fork"}, cell("z2", gradient_accumulation_steps=2), {}) == []


def test_a_switch_is_not_a_number() -> None:
    entry = Entry.model_validate(ENTRY | {"when": {"overlap_comm": [True]}})
    assert module._holds(entry.when["overlap_comm"], {"overlap_comm": True}, "overlap_comm")
    assert not module._holds(entry.when["overlap_comm"], {"overlap_comm": 1}, "overlap_comm")


def test_a_submodule_that_runs_twice_is_a_note_since_no_record_says_so() -> None:
    (finding,) = [f for f in known_bad({"deepspeed": "0.19.3"}, cell("z2"), {}) if "reused-submodule" in f.text]
    assert finding.verdict == "note"


def test_the_plan_says_it_before_a_launch(tmp_path: Path) -> None:
    from bench.environment import resources
    from bench.plan import plan
    from bench.scenario import Scenario

    matrix = {
        "model": ["llama-tiny"],
        "strategy": ["z1", "z2"],
        "world_size": [1, 2],
        "gradient_accumulation_steps": [2],
    }
    scenario = Scenario.model_validate({"matrix": matrix, "zero_optimization": {"stage3_prefetch_bucket_size": 1000}})
    cells = plan(scenario, resources(2))
    said = forewarnings(scenario, cells, {"deepspeed": "0.18.0"}, "cpu")
    (bad,) = [line for line in said if line.startswith("known-bad release: ")]
    assert "z2/w1" in bad
    assert "z2/w2" in bad
    assert "z1" not in bad
    assert any("stage3_prefetch_bucket_size: no effect at z1, z2, " in line for line in said)
    assert not any("known-bad" in line for line in forewarnings(scenario, cells, {"deepspeed": "0.19.8"}, "cpu"))


def test_a_key_that_some_strategy_heeds_is_no_reason_to_warn():
    from bench.environment import resources
    from bench.plan import plan
    from bench.scenario import Scenario

    matrix = {"model": ["llama-tiny"], "strategy": ["z1", "z3"]}
    keys = {"stage3_prefetch_bucket_size": 1000, "allgather_bucket_size": 1000}
    scenario = Scenario.model_validate({"matrix": matrix, "zero_optimization": keys})
    said = forewarnings(scenario, plan(scenario, resources(2)), {"deepspeed": "0.19.8"}, "cpu")
    assert len(said) == 2  # two reasons, one key
    assert all(line.startswith("zero_optimization allgather_bucket_size: no effect at ") for line in said)


def test_a_stored_row_is_judged_by_what_is_known_today():
    from pathlib import Path

    from bench.record import parse_record
    from bench.validity.known_bad import judged_again

    path = Path(__file__).parents[1] / "data" / "records" / "v1-completed.json"
    record = parse_record(path.read_text(), str(path))
    assert judged_again(record) == record
    cell = record.cell.model_copy(update={"strategy": "z2", "gradient_accumulation_steps": 2})
    old = record.model_copy(update={"cell": cell, "stack": record.stack | {"deepspeed": "0.18.0"}})
    again = judged_again(old)
    assert again.validity == "invalid"
    assert [finding.check for finding in again.findings if finding not in old.findings] == ["known-bad release"]
    assert judged_again(again) == again
