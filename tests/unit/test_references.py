import json
import math
from pathlib import Path
from typing import Any

import pytest

from bench import references
from bench.launch.deepspeed import Exit
from bench.plan import PlannedCell, Resources, plan
from bench.scenario import Scenario

OFFER = Resources(device="cpu", slots=8, memory_bytes=2**34, shared=True)
FIGURES: dict[str, Any] = {
    name: [1.0] * references.STEPS for name in ("losses", "grad_norms", "applied_grad_norms")
} | {"gradients": [[1.0, 0.5]]}


def planned(settings: dict[str, Any] | None = None, **axes: Any) -> list[PlannedCell]:
    matrix = {"model": "llama-tiny", "strategy": "z1", "seq_length": 32} | axes
    return plan(Scenario.model_validate({"matrix": matrix} | (settings or {})), OFFER)


def keys(cells: list[PlannedCell]) -> set[str]:
    return {references.key(cell, 0, "cpu") for cell in cells}


def test_all_strategies_of_one_global_batch_share_a_reference() -> None:
    cells = planned(strategy=["ddp", "z0", "z1", "z2", "z3"], activation_checkpointing=[False, True])
    cells += planned({"zero_optimization": {"reduce_bucket_size": 7}}, strategy="z2")
    assert len(keys(cells)) == 1


@pytest.mark.parametrize(
    "other",
    [
        planned(model="gpt2-tiny"),
        planned(seq_length=64),
        planned(dtype="fp32"),
        planned(world_size=2),
        planned({"seed": 1}),
        planned({"data": {"kind": "text"}}),
        planned({"optimizer": {"lr": 0.1}}),
    ],
)
def test_whatever_changes_the_training_is_another_reference(other: list[PlannedCell]) -> None:
    assert keys(other) != keys(planned())


def test_the_same_global_batch_on_more_ranks_is_the_same_training() -> None:
    matrix = {"world_size": [1, 2, 4], "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2}
    assert len(keys(planned(**matrix))) == 1


def test_stage_0_in_16_bit_may_need_the_one_with_an_idle_step_too(tmp_path: Path) -> None:
    jobs = references.missing(tmp_path, planned(strategy=["z0", "z1"]), OFFER)
    assert sorted(job["idle_steps"] for job in jobs.values()) == [0, 1]
    assert [job["idle_steps"] for job in references.missing(tmp_path, planned(dtype="fp32"), OFFER).values()] == [0]


def test_one_that_is_there_is_not_made_again_and_one_that_failed_is(tmp_path: Path) -> None:
    (cell,) = planned()
    out = tmp_path / "references" / f"{references.key(cell, 0, 'cpu')}.json"
    out.parent.mkdir()
    out.write_text(json.dumps(FIGURES))
    assert references.missing(tmp_path, [cell], OFFER) == {}
    short, empty = FIGURES | {"losses": [1.0]}, FIGURES | {"grad_norms": [None] * references.STEPS}
    for text in ('{"error": "x"}', '{"los', "[]", '"x"', '{"losses": null}', json.dumps(short), json.dumps(empty)):
        out.write_text(text)
        assert len(references.missing(tmp_path, [cell], OFFER)) == 1


def test_one_that_did_not_stay_finite_is_no_reference_and_is_not_made_again(tmp_path: Path) -> None:
    (cell,) = planned()
    out = tmp_path / "references" / f"{references.key(cell, 0, 'cpu')}.json"
    out.parent.mkdir()
    out.write_text(json.dumps(FIGURES | {"losses": [1.0] * (references.STEPS - 1) + [math.nan]}))
    assert references.find(tmp_path, cell, "cpu")[0]["error"] == "the reference run itself did not stay finite"
    assert references.missing(tmp_path, [cell], OFFER) == {}


def test_a_model_that_one_process_cannot_hold_is_noted_and_not_tried(tmp_path: Path) -> None:
    cells = planned(model="llama-2-7b", strategy="z3", world_size=64)
    assert references.missing(tmp_path, cells, OFFER) == {}
    (found,) = references.find(tmp_path, cells[0], "cpu").values()
    assert found["error"].startswith("one process would need 150.6 GiB, there are 16.0 GiB")


def test_a_reference_that_was_never_made_says_so(tmp_path: Path) -> None:
    (cell,) = planned()
    assert references.find(tmp_path, cell, "cpu")[0]["error"] == "it was not run"


def test_a_job_that_ends_its_process_costs_no_other(tmp_path: Path) -> None:
    jobs = references.missing(tmp_path, planned(strategy="z0"), OFFER)
    deadly, harmless = jobs

    def start(jobs: Path, log: Path, timeout_s: float) -> Exit:
        for job in json.loads(jobs.read_text()):
            if deadly in job["out"]:
                return Exit(-9, 1.0)
            Path(job["out"]).write_text(json.dumps(FIGURES))
        return Exit(0, 1.0)

    references.make(tmp_path, jobs, start, 10.0)
    assert "status -9" in json.loads((tmp_path / "references" / f"{deadly}.json").read_text())["error"]
    assert json.loads((tmp_path / "references" / f"{harmless}.json").read_text()) == FIGURES


def test_a_job_whose_process_was_killed_from_outside_is_made_again(tmp_path: Path) -> None:
    jobs = references.missing(tmp_path, planned(strategy="z0"), OFFER)
    lists = []

    def start(jobs: Path, log: Path, timeout_s: float) -> Exit:
        left = [job["out"] for job in json.loads(jobs.read_text())]
        lists.append(len(left))
        for out in left[: len(lists) - 1]:
            Path(out).write_text(json.dumps(FIGURES))
        return Exit(-9 if len(lists) == 1 else 0, 1.0)

    references.make(tmp_path, jobs, start, 10.0)
    assert lists[:2] == [2, 2]
    for name in jobs:
        assert json.loads((tmp_path / "references" / f"{name}.json").read_text()) == FIGURES


def test_a_job_that_is_not_done_in_time_is_not_tried_again(tmp_path: Path) -> None:
    jobs = references.missing(tmp_path, planned(strategy="z1"), OFFER)
    limits = []

    def start(jobs: Path, log: Path, timeout_s: float) -> Exit:
        limits.append(timeout_s)
        return Exit(None, timeout_s)

    references.make(tmp_path, jobs, start, 10.0)
    assert limits == [10.0]
