"""Two comparisons: the same global batch, and the largest batch that fits. No table has rows of both."""

from pathlib import Path

import pandas as pd
import pytest

from bench.analysis import largest, tables
from bench.analysis.comparison import comparison
from bench.analysis.frame import frame
from bench.cell import BatchLimits
from bench.record import BatchTry, parse_record

V1 = Path(__file__).parents[1] / "data" / "records" / "v1-completed.json"


@pytest.fixture
def record():
    return parse_record(V1.read_text(), str(V1))


def row(record, strategy, tokens, found=None, *, sent=1000.0, status="completed", fails=True, repeat=0):
    """Return a row of ``tokens`` per second and GPU; ``found``: the micro batch that a search found, 0 for none."""
    cell = record.cell.model_copy(update={"strategy": strategy})
    tries = []
    if found is not None:
        limits = BatchLimits(memory_bytes=10 * 2**20, at_most=64)
        cell = cell.model_copy(update={"largest_batch": limits, "train_micro_batch_size_per_gpu": found or 1})
        sizes = {found: True, found + 1: False} if found else {1: False}
        if not fails:
            del sizes[found + 1]
        tries = [
            BatchTry(
                train_micro_batch_size_per_gpu=size,
                how="measured",
                status="completed",
                fits=fits,
                phase="backward: loss",
                reason=None if fits else "too much",
            )
            for size, fits in sizes.items()
        ]
    changes = {
        "cell": cell,
        "cell_id": cell.cell_id,
        "label": cell.label,
        "train_batch_size": cell.train_batch_size,
        "batch_search": tries,
        "status": status,
        "repeat": repeat,
        "throughput": record.throughput.model_copy(update={"tokens_per_second_per_gpu": tokens}),
        "comm": record.comm.model_copy(update={"comm_wire_bytes_per_step": sent}),
    }
    if status != "completed":
        changes |= {"throughput": None, "comm": None, "memory": None, "timing": None, "reason": "because"}
    return record.model_copy(update=changes)


def shown(records):
    (table,) = largest.tables(comparison(frame(records), "gradient_accumulation_steps"))
    return table, {line[0]: dict(zip(table.header, line, strict=True)) for line in table.rows}


def test_rows_of_both_kinds_never_share_a_table(record):
    records = [row(record, "z1", 10.0), row(record, "z1", 20.0, 5), row(record, "z3", 30.0, 8)]
    same = tables.tables(comparison(frame(records), "gradient_accumulation_steps"), records)
    assert {line[0] for table in same for line in table.rows} == {"z1"}
    assert all("20" not in cell for table in same for line in table.rows for cell in line if cell.startswith("20"))
    table, by_strategy = shown(records)
    assert table.title == "Largest batch that fits (not the same global batch)"
    assert "every strategy at its largest batch that fits into 10 MiB per GPU" in table.group
    ranks = record.cell.world_size
    assert by_strategy["z3"]["micro batch"] == "8"
    assert by_strategy["z3"]["global batch"] == str(8 * ranks * record.cell.gradient_accumulation_steps)
    assert (by_strategy["z3"]["fails at"], by_strategy["z3"]["in"]) == ("9", "backward: loss")
    assert by_strategy["z1"]["tokens/s per GPU"].startswith("20")
    assert (len(table.header) - 1) % 3 == 0  # the terminal cuts a wide table there


def test_without_a_search_nothing_is_said(record):
    data = frame([row(record, "z1", 10.0)])
    assert largest.tables(comparison(data, "gradient_accumulation_steps")) == []
    assert largest.notes(data) == []


def test_a_failure_and_an_open_end_are_words(record):
    _, by_strategy = shown(
        [
            row(record, "z1", 1.0, 0, status="oom"),
            row(record, "z2", 1.0, 64, fails=False),
            row(record, "z3", 1.0, 4, status="hang"),
        ]
    )
    assert (by_strategy["z1"]["micro batch"], by_strategy["z1"]["fails at"]) == ("none fits", "1")
    assert (by_strategy["z2"]["micro batch"], by_strategy["z2"]["fails at"]) == ("64", "> 64")
    assert (by_strategy["z3"]["micro batch"], by_strategy["z3"]["tokens/s per GPU"]) == ("hang", "")


@pytest.mark.parametrize("launches", [1, 3])
def test_another_order_is_said_with_what_it_rests_on(record, launches):
    records = [
        each
        for repeat in range(launches)
        for each in (
            row(record, "z1", 20.0, repeat=repeat),
            row(record, "z3", 10.0, repeat=repeat),
            row(record, "z1", 21.0, 2, repeat=repeat),
            row(record, "z3", 30.0, 2, repeat=repeat),
        )
    ]
    _, said = largest.notes(frame(records))
    size = record.train_batch_size
    assert f"z1, z3 at the same global batch {size}; z3, z1 at the largest batch that fits" in said
    assert "by tokens/s per GPU is another" in said
    assert ("below 3 launches: not separated" in said) == (launches == 1)


_BOTH = (("z1", None), ("z3", None), ("z1", 2), ("z3", 2))


def test_orders_are_of_one_run_one_accumulation_and_one_budget_each(record):
    def of(tokens, **changes):
        rows = [row(record, s, t, n) for (s, n), t in zip(_BOTH, tokens, strict=True)]
        cells = [each.cell.model_copy(update=changes) for each in rows]
        return [each.model_copy(update={"cell": c, "cell_id": c.cell_id}) for each, c in zip(rows, cells, strict=True)]

    # Another order in the one, the same in the other; the medians over both would be another's.
    turned, alike = (20.0, 10.0, 10.0, 90.0), (20.0, 10.0, 90.0, 10.0)
    found = largest.notes(frame(of(turned) + of(alike, gradient_accumulation_steps=3)))
    assert len(found) == 2
    assert f"GAS {record.cell.gradient_accumulation_steps}: z1, z3 at the same" in found[1]
    runs = pd.concat([frame(of(turned)).assign(run="a"), frame(of(alike)).assign(run="b")], ignore_index=True)
    _, said = largest.notes(runs)
    assert ", a: z1, z3 at the same" in said


def test_a_failed_launch_is_none_of_three(record):
    records = [
        row(record, strategy, tokens, found, repeat=repeat, status="oom" if repeat == 2 else "completed")
        for repeat in range(3)
        for strategy, tokens, found in (("z1", 20.0, None), ("z3", 10.0, None), ("z1", 21.0, 2), ("z3", 30.0, 2))
    ]
    assert "below 3 launches: not separated" in largest.notes(frame(records))[1]


def test_the_same_order_is_not_worth_a_sentence(record):
    records = [
        row(record, s, t, n) for s, t, n in (("z1", 9.0, None), ("z3", 8.0, None), ("z1", 9.0, 2), ("z3", 8.0, 2))
    ]
    assert len(largest.notes(frame(records))) == 1


def test_the_heading_names_the_controls_as_that_of_the_other_table_does(record):
    found = row(record, "z1", 20.0, 5)
    cell = found.cell.model_copy(update={"activation_checkpointing": "reentrant", "attn_implementation": "eager"})
    table, _ = shown([found.model_copy(update={"cell": cell})])
    assert table.group.endswith(", reentrant activation checkpointing, eager attention")


def test_the_base_of_several_runs_is_the_first_of_all_in_both_views(record):
    first = frame([row(record, "z1", 10.0)]).assign(run="a")
    other = frame([row(record, "z1", 20.0), row(record, "z1", 30.0, 4)]).assign(run="b")
    lines = comparison(pd.concat([first, other], ignore_index=True), "gradient_accumulation_steps")
    assert list(lines["base"]) == ["a"] * 3
    assert list(lines["base_line"]) == [0, 0, -1]
