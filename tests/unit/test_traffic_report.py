"""What becomes of a row's bytes: the finding, the sentences and the tables."""

from typing import Any

import pytest

from bench.analysis import traffic
from bench.cell import Cell
from bench.models.catalog import load_config
from bench.outcome import comm
from bench.record import Collective, Comm, Practice, Record
from bench.validity.traffic import differences
from bench.zero.explain import sentences
from bench.zero.practice import practice

PSI = 315_968
GATHER, SCATTER = "all_gather_into_tensor", "reduce_scatter_tensor"


def counted(found: Practice, **changes: int) -> Comm:
    """Collectives that moved what was predicted, but for ``changes`` in bytes by operation; and one of control."""
    rows: list[dict[str, Any]] = [
        {
            "phase": volume.phase,
            "op": volume.op,
            "dtype": volume.dtype,
            "num_bytes": volume.num_bytes + changes.get(volume.op, 0),
            "num_elements": (volume.num_bytes + changes.get(volume.op, 0)) // 2,
            "group_size": 2,
            "during_autograd": False,
            "count": 1,
        }
        for volume in found.volumes
    ]
    norm = rows[0] | {"phase": "step", "op": "all_reduce", "num_elements": 1, "num_bytes": 2, "count": 3}
    return comm([[*rows, norm]] * 2, True, "gloo")


def predicted(cell: Cell) -> Practice:
    found = practice(cell, load_config(cell.model), "gloo")
    assert found is not None
    return found


def row(cell: Cell, found: Practice | None, moved: Comm | None, **changes: Any) -> Record:
    return Record.model_validate(
        {
            "cell_id": cell.cell_id,
            "repeat": 0,
            "label": cell.label,
            "cell": cell,
            "train_batch_size": cell.train_batch_size,
            "num_params": PSI,
            "status": "completed",
            "device": "cpu",
            "comm": moved,
            "practice": found,
            "stack": {"deepspeed": "0.19.8"},
        }
        | changes
    )


def cell(strategy: str, **settings: Any) -> Cell:
    return Cell(**({"model": "llama-tiny", "strategy": strategy, "world_size": 2} | settings))


@pytest.mark.parametrize("strategy", ["ddp", "z0", "z1", "z2", "z3"])
def test_a_row_that_moved_what_the_code_moves_has_no_finding(strategy: str) -> None:
    found = predicted(cell(strategy))
    assert differences(counted(found), found) == []


def test_a_row_that_moved_other_bytes_is_suspect_and_says_which() -> None:
    found = predicted(cell("z2"))
    (finding,) = differences(counted(found, all_reduce=-2), found)
    assert finding.verdict == "suspect"
    assert finding.check == "traffic"
    assert finding.text == "backward all_reduce bfloat16 moved 631,934 bytes, DeepSpeed's code moves 631,936"
    assert differences(counted(found, all_reduce=-2), None) == []


def test_a_collective_that_nobody_predicted_is_named() -> None:
    found = predicted(cell("z0"))
    moved = counted(found)
    extra = Collective.model_validate(moved.collectives[0].model_dump() | {"op": "broadcast", "phase": "step"})
    moved = moved.model_copy(update={"collectives": [*moved.collectives, extra]})
    (finding,) = differences(moved, found)
    assert finding.text == "step broadcast bfloat16 moved 631,936 bytes, DeepSpeed's code moves 0"


def said(asked: Cell, backend: str = "gloo") -> str:
    config = load_config(asked.model)
    found = practice(asked, config, backend)
    assert found is not None
    num_params = PSI if asked.model == "llama-tiny" else PSI - 65_536
    return "\n".join(sentences(asked, found, num_params, backend, config))


SPLIT = {
    "stage3_param_persistence_threshold": 0,
    "stage3_prefetch_bucket_size": 0,
    "stage3_max_reuse_distance": 0,
}


@pytest.mark.parametrize(
    ("words", "fires", "silent"),
    [
        ("where the paper reduce-scatters", cell("z1"), cell("z0")),
        (
            "reduced to their owners",
            cell("z2", zero_optimization={"use_multi_rank_bucket_allreduce": False}),
            cell("z2"),
        ),
        (
            "reduces 2 times per optimizer step",
            cell("z2", gradient_accumulation_steps=2),
            cell("z1", gradient_accumulation_steps=2),
        ),
        ("gathers and reduces 2 times", cell("z3", gradient_accumulation_steps=2), cell("z3")),
        ("Nothing is gathered again in backward", cell("z3"), cell("z3", zero_optimization=SPLIT)),
        ("gathers 1 psi in forward and 1 psi in backward", cell("z3", zero_optimization=SPLIT), cell("z3")),
        ("gathered once, after the optimizer step", cell("z3"), cell("z3", zero_optimization=SPLIT)),
        ("gloo has no true reduce-scatter", cell("z3"), cell("z1")),
        ("multiple of 2 N", cell("z1", world_size=7), cell("z1")),
        ("multiple of N,", cell("z3", world_size=7), cell("z3")),
        (
            "Recomputation changes the gathers by +",
            cell("z3", zero_optimization=SPLIT, activation_checkpointing=True),
            cell("z3", activation_checkpointing=True),
        ),
        (
            "Recomputation gathers nothing again",
            cell("z3", activation_checkpointing=True),
            cell("z3"),
        ),
        (
            "is gathered 4 times per micro-step",
            cell("z3", model="llama-tiny-tied", zero_optimization=SPLIT),
            cell("z3", zero_optimization=SPLIT),
        ),
        (
            "twice the bytes on the wire",
            cell("z3", zero_optimization={"reduce_scatter": False}),
            cell("z3"),
        ),
    ],
)
def test_each_sentence_is_said_when_it_holds_and_not_otherwise(words: str, fires: Cell, silent: Cell) -> None:
    assert words in said(fires)
    assert words not in said(silent)


def test_what_is_particular_to_gloo_is_not_said_of_nccl() -> None:
    assert "gloo" not in said(cell("z3"), "nccl")


def test_one_rank_sends_nothing_and_needs_no_sentence() -> None:
    assert said(cell("z3", world_size=1)) == ""


def test_the_table_of_a_row_sets_paper_practice_and_measurement_side_by_side() -> None:
    asked = cell("z1", gradient_accumulation_steps=2)
    found = predicted(asked)
    (table,) = traffic.traffic_tables([row(asked, found, counted(found, all_reduce=20))])
    assert "GAS 2" in table.title
    assert "3 control collectives" in table.title
    assert [dict(zip(table.header[:2], line[:2], strict=True)) | {"bytes": line[5:8]} for line in table.rows] == [
        {"phase": "backward", "op": "all_reduce", "bytes": ["0", "631,936", "631,956"]},
        {"phase": "backward", "op": SCATTER, "bytes": ["631,936", "0", "0"]},
        {"phase": "step", "op": GATHER, "bytes": ["631,936", "631,936", "631,936"]},
    ]
    assert table.rows[0][8:] == ["0", "631,936", "631,956"]
    assert table.rows[1][8:] == ["315,968", "0", "0"]


def test_the_summary_tells_equal_rows_from_others_and_keeps_the_failed() -> None:
    asked = cell("z2")
    found = predicted(asked)
    failed = row(asked, None, None, status="crashed", reason="boom")
    other = row(asked, None, counted(found), stack={"deepspeed": "0.18.0"})
    records = [row(asked, found, counted(found)), row(asked, found, counted(found, all_reduce=2)), other, failed]
    lines = traffic.summary(records).rows
    assert [line[4] for line in lines] == ["yes", "NO", "?", ""]
    assert lines[3][1] == "crashed"
    assert "1 of 2 rows" in traffic.verdict_line(records)
    assert "deepspeed 0.18.0" in traffic.explanations(other)[0]
    assert traffic.explanations(failed) == ["crashed: boom"]


def test_a_row_whose_model_is_not_at_hand_is_still_explained() -> None:
    found = predicted(cell("z3"))
    asked = cell("z3", model="nobody/nothing", activation_checkpointing=True)
    text = "\n".join(traffic.explanations(row(asked, found, counted(found))))
    assert "Nothing is gathered again" in text
    assert "Recomputation" not in text
