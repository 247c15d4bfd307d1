from pathlib import Path

import pytest

from bench.analysis.comparison import comparison
from bench.analysis.footers import footers
from bench.analysis.frame import frame
from bench.analysis.tables import markdown, tables
from bench.record import Finding, parse_record

V1 = Path(__file__).parents[1] / "data" / "records" / "v1-completed.json"


@pytest.fixture
def record():
    return parse_record(V1.read_text(), str(V1))


def row(record, strategy, world_size, tokens=None, repeat=0, **changes):
    """Return a record of another cell: with ``tokens`` per second and GPU, or failed with ``changes``."""
    cell = record.cell.model_copy(update={"strategy": strategy, "world_size": world_size})
    new = {"cell": cell, "cell_id": cell.cell_id, "label": cell.label, "repeat": repeat} | changes
    if tokens is None:
        new |= {"timing": None, "throughput": None, "memory": None, "comm": None}
    else:
        new["throughput"] = record.throughput.model_copy(update={"tokens_per_second_per_gpu": tokens})
    return record.model_copy(update=new)


def found(verdict, text, affects="figures"):
    return Finding(check="a check", verdict=verdict, text=text, affects=affects)


def cells(records, title="Throughput"):
    """Return {strategy: {column: text}} of the one table called ``title``."""
    (table,) = [
        t for t in tables(comparison(frame(records), "gradient_accumulation_steps")) if t.title.startswith(title)
    ]
    names = [f"{table.header[1 + i // 3 * 3]} {name}" for i, name in enumerate(table.header[1:])]
    return {line[0]: dict(zip(names, line[1:], strict=True)) for line in table.rows}


def test_strategies_go_down_in_stage_order_and_gpu_counts_across(record):
    records = [row(record, s, n, 100.0) for s in ("z3", "ddp", "z0") for n in (2, 1)]
    found = cells(records)
    assert list(found) == ["ddp", "z0", "z3"]
    assert [name for name in found["z0"] if name.count("N=") == 2] == ["N=1 N=1", "N=2 N=2"]


def test_ratios_are_to_z0_at_the_same_gpu_count(record):
    found = cells([row(record, "z0", 1, 100.0), row(record, "z0", 2, 50.0), row(record, "z3", 2, 25.0)])
    assert found["z3"]["N=2 vs z0"] == "0.50x"
    assert found["z0"]["N=1 vs z0"] == "1.00x"
    assert found["z3"]["N=1 N=1"] == "not run"


def test_without_a_z0_row_there_is_no_ratio(record):
    found = cells([row(record, "z1", 2, 50.0), row(record, "z0", 2, status="oom", reason="x")])
    assert found["z1"]["N=2 vs z0"] == ""


@pytest.mark.parametrize(
    "status",
    [
        "oom",
        "host_oom",
        "timeout",
        "hang",
        "crashed",
        "config_error",
        "build_error",
        "unsupported",
        "silent_exit",
        "skipped",
    ],
)
def test_a_failure_is_a_word_in_its_place_and_its_reason_in_the_footer(record, status):
    records = [row(record, "z0", 2, 50.0), row(record, "z1", 2, status=status, reason="because of this")]
    for title in ("Throughput", "Peak memory", "Traffic"):
        assert cells(records, title)["z1"]["N=2 N=2"] == status
    notes = footers(frame(records), {})
    assert any(note.startswith(f"{status}: because of this") and records[1].label in note for note in notes)


def test_repeats_are_combined_by_their_median_and_failed_ones_are_counted(record):
    records = [row(record, "z0", 2, tokens, repeat) for repeat, tokens in enumerate([10.0, 1000.0, 20.0])]
    assert cells(records)["z0"]["N=2 N=2"] == "20"
    records.append(row(record, "z0", 2, repeat=3, status="timeout", reason="x"))
    assert cells(records)["z0"]["N=2 N=2"] == "20 (1 of 4 timeout)"


def test_an_invalid_row_shows_no_number_and_is_no_baseline(record):
    wrong = row(record, "z0", 2, 50.0, validity="invalid", findings=[found("invalid", "the loss is not finite")])
    shown = cells([wrong, row(record, "z1", 2, 50.0)])
    assert shown["z0"]["N=2 N=2"] == "invalid"
    assert shown["z0"]["N=2 ms"] == ""
    assert shown["z1"]["N=2 vs z0"] == ""


def test_a_suspect_row_is_marked_and_explained(record):
    doubtful = row(record, "z0", 2, 50.0, validity="suspect", findings=[found("suspect", "4 ranks on 2 cores")])
    assert cells([doubtful])["z0"]["N=2 N=2"] == "50?"
    assert any(note.startswith("? suspect: 4 ranks on 2 cores") for note in footers(frame([doubtful]), {}))


def test_suspect_times_mark_the_throughput_and_not_the_bytes(record):
    timing = record.timing.model_copy(update={"suspect_reasons": ["4 ranks share 2 cores"]})
    crowded = row(record, "z0", 2, 50.0, timing=timing)
    assert cells([crowded])["z0"]["N=2 N=2"] == "50?"
    assert "?" not in cells([crowded], "Traffic")["z0"]["N=2 N=2"]
    assert any(note.startswith("? times are suspect: 4 ranks share 2 cores") for note in footers(frame([crowded]), {}))


def test_a_ratio_to_a_doubtful_baseline_is_doubtful(record):
    doubtful = row(record, "z0", 2, 50.0, validity="suspect", findings=[found("suspect", "x")])
    assert cells([doubtful, row(record, "z1", 2, 100.0)])["z1"]["N=2 vs z0"] == "2.00x?"


def test_a_row_that_trains_otherwise_keeps_its_figures_and_is_marked(record):
    odd = row(record, "z0", 2, 50.0, validity="suspect", findings=[found("suspect", "one step more", "training")])
    shown = cells([odd, row(record, "z1", 2, 100.0)])
    assert shown["z0"]["N=2 N=2"] == "50†"
    assert shown["z1"]["N=2 vs z0"] == "2.00x"
    assert any(note.startswith("† trains otherwise: one step more") for note in footers(frame([odd]), {}))


def test_models_of_the_same_last_name_never_share_a_table(record):
    other = record.cell.model_copy(update={"model": "./elsewhere/" + record.cell.model_name})
    twin = record.model_copy(update={"cell": other, "cell_id": "0123456789ab"})
    assert len({table.group for table in tables(comparison(frame([record, twin]), "gradient_accumulation_steps"))}) == 2


def test_without_z0_ratios_are_to_the_first_strategy(record):
    found = cells([row(record, "z1", 2, 100.0), row(record, "z3", 2, 50.0)])
    assert found["z3"]["N=2 vs z1"] == "0.50x"


def test_rows_that_differ_in_another_setting_never_share_a_table(record):
    longer = record.cell.model_copy(update={"seq_length": 4096})
    other = record.model_copy(update={"cell": longer, "cell_id": longer.cell_id, "label": longer.label})
    found = tables(comparison(frame([record, other]), "gradient_accumulation_steps"))
    assert len(found) == 6
    assert len({table.group for table in found}) == 2


def test_the_footers_define_every_metric_and_say_what_kind_of_number_it_is(record):
    notes = " ".join(footers(frame([record]), {"reduce_bucket_size": 400000}))
    for word in ("Throughput:", "Peak memory:", "Traffic:", "measured, on cpu", "MiB", "reduce_bucket_size 400000"):
        assert word in notes
    assert "No multi-GPU row has been measured here" in notes
    assert "unchecked" in notes


def test_a_run_of_failures_only_still_makes_tables(record):
    records = [row(record, "z0", 9, status="skipped", reason="too many", device_name=None)]
    text = markdown(tables(comparison(frame(records), "gradient_accumulation_steps")), footers(frame(records), {}))
    assert "| z0" in text
    assert "skipped: too many" in text


def test_markdown_has_one_heading_per_group_and_pipes_line_up(record):
    text = markdown(tables(comparison(frame([record]), "gradient_accumulation_steps")), ["a note"])
    assert text.count("\n## ") + text.startswith("## ") == 1
    assert text.count("### ") == 3
    assert text.endswith("- a note\n")


def stacked(record, strategy, deepspeed, tokens, transformers="5.24.0", **changes):
    """Return a row measured with a requested release of DeepSpeed, or (``None``) with the one installed."""
    stack = record.stack | {"deepspeed": deepspeed or "0.19.8", "transformers": transformers}
    requested = deepspeed and f"deepspeed=={deepspeed}"
    return row(record, strategy, 2, tokens, stack=stack, requested_stack=requested, **changes)


def test_stacks_stand_side_by_side_each_with_its_own_baseline(record):
    records = [
        stacked(record, strategy, release, tokens)
        for strategy, speeds in (("z0", (100.0, 200.0, 300.0)), ("z2", (50.0, 50.0, 300.0)))
        for release, tokens in zip(("0.17.5", "0.18.0", None), speeds, strict=True)
    ]
    found = cells(records)
    assert {label: line["N=2 vs z0"] for label, line in found.items()} == {
        "z0 deepspeed==0.17.5": "1.00x", "z0 deepspeed==0.18.0": "1.00x", "z0 installed": "1.00x",
        "z2 deepspeed==0.17.5": "0.50x", "z2 deepspeed==0.18.0": "0.25x", "z2 installed": "1.00x",
    }  # fmt: skip
    assert [label.split()[0] for label in found] == ["z0"] * 3 + ["z2"] * 3
    (title,) = {table.group for table in tables(comparison(frame(records), "gradient_accumulation_steps"))}
    assert title.endswith("stacks side by side")


def test_a_stack_without_a_z0_row_is_not_compared_with_another_stacks(record):
    records = [stacked(record, "z0", "0.17.5", 100.0), stacked(record, "z2", "0.18.0", 50.0)]
    assert cells(records)["z2 deepspeed==0.18.0"]["N=2 vs z0"] == ""


def test_the_footers_say_what_is_equal_between_stacks_and_what_is_not(record):
    same = [stacked(record, "z0", release, 100.0) for release in ("0.17.5", "0.18.0")]
    notes = " ".join(footers(frame(same), {}))
    assert "requested stack (deepspeed==0.17.5, deepspeed==0.18.0)" in notes
    assert f"torch {record.stack['torch']}" in notes
    assert "transformers 5.24.0" in notes
    assert "Not equal" not in notes
    mixed = [same[0], stacked(record, "z0", "0.18.0", 100.0, transformers="4.57.0")]
    notes = " ".join(footers(frame(mixed), {}))
    assert "Not equal" in notes
    assert "transformers 4.57.0 (deepspeed==0.18.0) and 5.24.0 (deepspeed==0.17.5)" in notes


def test_without_a_stack_axis_no_word_of_stacks_is_printed(record):
    text = markdown(tables(comparison(frame([record]), "gradient_accumulation_steps")), footers(frame([record]), {}))
    assert "stacks" not in text.lower()
    assert "installed" not in text


def test_a_row_of_two_gpus_is_a_multi_gpu_row_whatever_stands_beside_it(record):
    gpus = row(record, "z1", 2, 100.0, device="cuda")
    no_row = "No multi-GPU row has been measured here."
    assert no_row not in footers(frame([gpus, row(record, "z1", 2, 100.0)]), {})
    assert no_row in footers(frame([row(record, "z1", 1, 100.0, device="cuda")]), {})
    assert no_row in footers(frame([row(record, "z1", 2, status="oom", reason="x", device="cuda")]), {})


@pytest.mark.parametrize(
    ("z1", "z2", "said"),
    [
        (["completed"] * 3, ["completed"] * 3, "Launches per cell: 3 (median shown)."),
        (["completed"] * 3, ["completed"], "Launches per cell: 1 to 3 (median shown). Steps of one launch"),
        (["completed"] * 3, ["completed", "completed", "oom"], "Launches per cell: 2 to 3 (median shown). Steps of"),
        (["completed"], ["oom"] * 3, "Launches per cell: 1. Steps of one launch"),
        (["oom"], ["oom"], None),
    ],
)
def test_launches_are_those_that_a_number_rests_on(record, z1, z2, said):
    rows = [
        row(record, strategy, 2, 100.0 if status == "completed" else None, repeat, status=status)
        for strategy, statuses in (("z1", z1), ("z2", z2))
        for repeat, status in enumerate(statuses)
    ]
    lines = [line for line in footers(frame(rows), {}) if line.startswith("Launches per cell")]
    assert len(lines) == (said is not None)
    assert all(line.startswith(said) for line in lines)
