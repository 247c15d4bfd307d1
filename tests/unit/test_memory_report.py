from pathlib import Path

import pytest

from bench.analysis import traffic
from bench.analysis.memory import notes, sentence, tables
from bench.record import MemoryPoint, parse_record

V1 = Path(__file__).parents[1] / "data" / "records" / "v1-completed.json"
MIB = 2**20


def point(name, where, measured, predicted):
    return MemoryPoint(point=name, where=where, total_bytes=sum(measured.values()), bytes=measured, predicted=predicted)


@pytest.fixture
def record():
    """A row of two ranks; the points are the second one's, which holds most."""
    record = parse_record(V1.read_text(), str(V1))
    points = [
        point("init", "engine built", {"parameters": 2 * MIB}, {"parameters": 2.0 * MIB}),
        point(
            "peak",
            "backward: loss",
            {"parameters": 2 * MIB, "logits_loss": 5 * MIB, "other": MIB},
            {"parameters": 2.0 * MIB, "logits_loss": 4.0 * MIB},
        ),
    ]
    ranks = [
        record.memory.ranks[0],
        record.memory.ranks[0].model_copy(update={"points": points}),
    ]
    memory = record.memory.model_copy(update={"ranks": ranks, "peak_allocated_rank": 1})
    return record.model_copy(update={"memory": memory})


def test_a_table_has_measured_expected_and_difference_at_every_point(record):
    _, table = tables([record])
    assert table.title.endswith("rank 1")
    assert table.header == ["MiB", "init", "expected", "diff", "peak", "expected", "diff"]
    assert table.rows == [
        ["parameters", "2.000", "2.000", "=", "2.000", "2.000", "="],
        ["logits loss", "0.000", "-", "-", "5.000", "4.000", "+1.000"],
        ["other", "0.000", "-", "-", "1.000", "-", "-"],
        ["total", "2.000", "2.000", "=", "8.000", "6.000", "+2.000"],
    ]


def test_the_peak_is_placed_and_its_holders_are_named(record):
    peaks, _ = tables([record])
    assert peaks.rows[0][1:] == ["8.000", "6.000", "+2.000", "backward: loss", "logits loss 62%", "parameters 25%"]
    text = sentence(record)
    assert "the peak of rank 1, 8.000 MiB, is in 'backward: loss'" in text
    assert "it holds logits loss 62%, parameters 25%, other 12%" in text
    assert text.endswith("expected 6.000 MiB, counted +33.33%.")


def test_a_row_without_points_is_named_and_has_no_table():
    record = parse_record(V1.read_text(), str(V1))
    assert tables([record]) == []
    assert any(note.startswith("Not decomposed") and record.label in note for note in notes([record]))


def test_a_peak_without_formula_says_so(record):
    ranks = record.memory.ranks
    bare = [each.model_copy(update={"predicted": {}}) for each in ranks[1].points]
    memory = record.memory.model_copy(update={"ranks": [ranks[0], ranks[1].model_copy(update={"points": bare})]})
    assert sentence(record.model_copy(update={"memory": memory})).endswith("nothing is expected by formula.")


def test_an_invalid_row_is_called_so_where_its_figures_are_taken_apart(record):
    invalid = record.model_copy(update={"validity": "invalid"})
    assert tables([invalid])[0].rows[0][0].endswith("(invalid)")
    assert all("(invalid)" in table.title for table in tables([invalid])[1:])
    assert traffic.summary([invalid]).rows[0][0].endswith("(invalid)")
