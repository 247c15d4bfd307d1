"""Launches become one line per cell, and lines are compared only where they may be."""

import math

import pytest
from made import failed, made, stored

from bench.analysis import by_gpus
from bench.analysis.cells import cells
from bench.analysis.columns import COLUMNS, COMPARISON
from bench.analysis.comparison import comparison
from bench.analysis.frame import frame
from bench.record import Finding

KEY = "gradient_accumulation_steps"


def doubt(verdict: str, affects: str = "figures") -> dict[str, object]:
    return {
        "validity": verdict,
        "findings": [Finding(check="a check", verdict=verdict, text="a doubt", affects=affects)],
    }


def line(records, **wanted):
    lines = comparison(frame(records), KEY)
    for name, value in wanted.items():
        lines = lines[lines[name] == value]
    (found,) = lines.to_dict("records")
    return found


def test_launches_are_combined_by_their_median_with_their_spread():
    found = line([made("z1", step_s=s, repeat=r, peak=100 + r) for r, s in enumerate((0.4, 0.1, 0.2, 0.3))])
    assert (found["launches"], found["launches_failed"], found["outcome"]) == (4, 0, "completed")
    assert found["step_time_s"] == pytest.approx(0.25)
    assert found["step_time_launch_iqr_s"] == pytest.approx(0.15)
    assert (found["step_time_min_s"], found["step_time_max_s"]) == (0.1, 0.4)
    assert found["peak_allocated_bytes"] == 101.5


def test_one_launch_has_no_spread_over_launches():
    assert math.isnan(line([made("z1")])["step_time_launch_iqr_s"])


def test_failed_and_invalid_launches_are_counted_and_never_averaged():
    found = line([made("z1", repeat=0), made("z1", step_s=9.0, repeat=1, **doubt("invalid")), failed("z1", repeat=2)])
    assert found["step_time_s"] == 0.1
    assert (found["launches"], found["launches_failed"], found["outcome"]) == (1, 2, "invalid/oom")
    assert found["validity"] == "valid"


def test_a_cell_without_a_good_launch_has_a_word_and_no_number():
    found = line([made("z0"), failed("z1")], strategy="z1")
    assert (found["outcome"], found["launches"], found["validity"]) == ("oom", 0, "unchecked")
    assert math.isnan(found["step_time_s"])
    assert math.isnan(found["peak_vs_base"])
    assert line([made("z1", **doubt("invalid"))])["validity"] == "invalid"


@pytest.mark.parametrize(
    ("changes", "marks"),
    [
        ({}, (False, False)),
        (doubt("suspect"), (True, True)),
        (doubt("suspect", "training"), (False, True)),
        (doubt("unchecked"), (False, False)),
    ],
)
def test_the_worst_launch_decides_what_is_doubted(changes, marks):
    found = line([made("z1"), made("z1", repeat=1, **changes)])
    assert (found["figures_suspect"], found["training_suspect"]) == marks
    assert found["validity"] == changes.get("validity", "valid")


def test_cells_of_different_settings_are_never_one_line():
    records = [made("z1"), made("z1", cell={"seed": 1}), made("z1", requested_stack="deepspeed==0.18.0")]
    assert list(cells(frame(records))["launches"]) == [1, 1, 1]


def test_ratios_are_to_z0_and_to_the_best_of_the_same_gpu_count():
    records = [
        made("z0", step_s=0.2, peak=400, sent=100.0),
        made("z1", step_s=0.1, peak=200, sent=150.0),
        made("z0", 4, step_s=0.9, peak=1, sent=1.0),
    ]
    found = line(records, strategy="z1")
    assert (found["base"], found["step_time_vs_base"], found["tokens_vs_base"]) == ("z0", 0.5, 2.0)
    assert (found["peak_vs_base"], found["peak_vs_best"]) == (0.5, 1.0)
    assert (found["sent_vs_base"], found["sent_vs_best"]) == (1.5, 1.5)
    assert line(records, strategy="z0", world_size=2)["tokens_vs_best"] == 0.5


def test_a_row_in_doubt_is_not_the_best_and_what_is_a_ratio_to_it_is_in_doubt():
    timing = made("z0").timing.model_copy(update={"step_time_s": 0.01, "suspect_reasons": ["cores are shared"]})
    records = [
        made("z0", step_s=0.01, peak=400, sent=200.0, timing=timing),
        made("z1", step_s=0.1, peak=300, sent=300.0),
        made("z2", step_s=0.2, peak=100, sent=100.0, **doubt("suspect")),
    ]
    found = line(records, strategy="z1")
    assert (found["tokens_vs_best"], found["step_time_vs_best"]) == (1.0, 1.0)
    assert (found["peak_vs_best"], found["sent_vs_best"]) == (1.0, 1.5)  # of traffic, z0 is in no doubt
    assert line(records, strategy="z0")["tokens_vs_best"] == pytest.approx(10)
    (table,) = by_gpus.tables(comparison(frame(records), KEY))
    rows = {row[0]: row for row in table.rows}
    at = [number for number, head in enumerate(table.header) if head.startswith("vs")]
    ratios = {name: [row[number] for number in at] for name, row in rows.items()}
    assert ratios["z0"] == ["1.00x?", "10.00x?", "1.00x", "1.33x", "1.00x", "1.00x"]
    assert ratios["z1"] == ["0.10x?", "1.00x", "0.75x", "1.00x", "1.50x", "1.50x"]
    assert ratios["z2"] == ["0.05x?", "0.50x?", "0.25x?", "0.33x?", "0.50x?", "0.50x?"]


def test_an_emulated_row_that_does_not_fit_is_not_the_best():
    emulated = stored("v3-emulated")

    def row(strategy, peak, fits):
        cell = emulated.cell.model_copy(update={"strategy": strategy})
        memory = emulated.memory.model_copy(update={"peak_allocated_bytes": peak})
        fitted = emulated.emulation.model_copy(update={"fits": fits})
        return emulated.model_copy(
            update={"cell": cell, "cell_id": cell.cell_id, "memory": memory, "emulation": fitted, "findings": []}
        )

    records = [row("z1", 10, False), row("z3", 20, True)]
    assert line(records, strategy="z3")["peak_vs_best"] == 1.0
    assert line(records, strategy="z1")["peak_vs_best"] == 0.5


def test_nothing_is_a_ratio_to_zero_bytes():
    found = line([made("z0", 1, sent=0.0), made("z1", 1, sent=0.0)], strategy="z1")
    assert math.isnan(found["sent_vs_base"])
    assert math.isnan(found["sent_vs_best"])


def test_rows_of_other_settings_are_another_group():
    lines = comparison(frame([made("z0"), made("z1"), made("z1", cell={"seq_length": 99})]), KEY)
    assert list(lines["group_number"]) == [0, 0, 1]
    assert lines["group"].nunique() == 2


def test_every_column_of_a_comparison_is_defined():
    lines = comparison(frame([made("z0"), failed("z1")]), KEY)
    inside = {"line", "base_line", "group_number", "variant"}
    named = {name for name in lines.columns if not name.startswith("stack_")}
    assert named - inside - COLUMNS.keys() - COMPARISON.keys() == set()


def test_by_gpu_count_every_metric_stands_in_one_row():
    records = [made("z0", step_s=0.02, repeat=r) for r in range(2)] + [made("z1", step_s=0.01), failed("z3")]
    records += [made("z0", 4)]
    tables = by_gpus.tables(comparison(frame(records), KEY))
    assert [table.title for table in tables] == ["N=2, measured", "N=4, measured"]
    rows = {row[0]: dict(zip(tables[0].header, row, strict=True)) for row in tables[0].rows}
    assert list(rows) == ["z0", "z1", "z3"]
    assert (rows["z0"]["ms"], rows["z0"]["n"], rows["z1"]["n"]) == ("20.0", "2", "1")
    assert rows["z3"]["ms"] == "oom"
    assert rows["z3"]["n"] == "0 (1 of 1 oom)"
    assert "MFU" not in rows["z0"]  # no row has it


def test_a_wide_table_is_cut_between_columns_only():
    (table,) = by_gpus.tables(comparison(frame([made("z0")]), KEY))
    assert table.block == 1
