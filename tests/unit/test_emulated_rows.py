"""What is said of emulated rows: in tables, beside measured ones, and by the checks."""

from pathlib import Path

import pytest

from bench.analysis.agreement import agreement
from bench.analysis.comparison import comparison
from bench.analysis.footers import footers
from bench.analysis.frame import frame
from bench.analysis.tables import tables
from bench.cell import EmulatedRank
from bench.estimate import ASSUMED_EMULATED_S, history, seconds
from bench.plan import Resources, plan
from bench.progress import summary
from bench.record import Guess, parse_record
from bench.scenario import Scenario
from bench.store import write_record
from bench.validity.emulated import examine_emulated

RECORDS = Path(__file__).parents[1] / "data" / "records"


def stored(name):
    return parse_record((RECORDS / name).read_text(), name)


@pytest.fixture
def emulated():
    return stored("v3-emulated.json")


@pytest.fixture
def measured():
    return stored("v3-measured.json")


def with_cell(record, **changes):
    where = {name: changes.pop(name) for name in ("rank", "position") if name in changes}
    target = EmulatedRank(**where, accelerator_path="cpu")
    cell = record.cell.model_copy(update={"emulation": target} | changes)
    return record.model_copy(update={"cell": cell, "cell_id": cell.cell_id, "label": cell.label})


def test_emulated_and_measured_rows_are_in_tables_of_their_own(emulated, measured):
    found = tables(comparison(frame([measured, emulated]), "gradient_accumulation_steps"))
    kinds = {table.group: [each.title for each in found if each.group == table.group] for table in found}
    assert len(kinds) == 2
    (first, titles), (second, others) = kinds.items()
    assert "emulated" not in first
    assert [title.split(" (")[0] for title in titles] == ["Throughput", "Peak memory", "Traffic"]
    assert "emulated first rank, 8 GPUs of 80 GiB per node, cpu path" in second
    assert [title.split(" (")[0] for title in others] == ["Peak memory", "Reserved memory", "Traffic"]


def test_gpu_counts_on_different_numbers_of_nodes_stand_in_one_table(emulated):
    many = with_cell(emulated, world_size=64, num_nodes=8)
    found = tables(comparison(frame([emulated, many]), "gradient_accumulation_steps"))
    assert {table.header[1] for table in found} == {"N=2"}
    assert {table.header[4] for table in found} == {"N=64"}


def test_the_last_rank_of_every_world_size_stands_in_one_table(emulated):
    rows = [with_cell(emulated, world_size=n, rank=n - 1, position="last") for n in (1, 2, 3, 8)]
    assert len({table.group for table in tables(comparison(frame(rows), "gradient_accumulation_steps"))}) == 1


def test_what_does_not_fit_is_said(emulated):
    short = emulated.model_copy(update={"emulation": emulated.emulation.model_copy(update={"fits": False})})
    for row, word in ((emulated, "yes"), (short, "no")):
        (table,) = [
            t for t in tables(comparison(frame([row]), "gradient_accumulation_steps")) if t.title.startswith("Reserved")
        ]
        assert table.rows[0][3] == word


def test_the_footers_say_what_emulated_means_and_claim_no_loss_for_it(emulated, measured):
    notes = footers(frame([emulated]), {})
    text = " ".join(notes)
    assert "Emulated: DeepSpeed's own code ran as one rank of N" in text
    assert "nothing was timed" in text
    assert "Launches per cell" not in text
    assert "loss and gradient norms agree" not in text
    assert "1 of 1 emulated rows are valid" in text
    assert "No multi-GPU row has been measured here." in notes
    both = " ".join(footers(frame([emulated, measured]), {}))
    assert "is measured, on cpu" in both
    assert "where the heading does not say emulated" in both
    assert "1 of 1 completed rows are valid" in both


def test_emulated_beside_measured(emulated, measured):
    (table,) = agreement([measured, emulated])
    assert table.rows[0][1:] == ["958.17 MiB", "958.17 MiB", "=", "=", "-", "same"]
    assert agreement([measured]) == []
    assert agreement([measured, with_cell(emulated, world_size=4)]) == []


def test_a_row_that_is_known_to_be_wrong_stands_beside_none(emulated, measured):
    wrong = {"validity": "invalid"}
    assert agreement([measured.model_copy(update=wrong), emulated]) == []
    assert agreement([measured, emulated.model_copy(update=wrong)]) == []
    (table,) = agreement([measured.model_copy(update=wrong), measured.model_copy(update={"repeat": 1}), emulated])
    assert len(table.rows) == 1


def test_a_difference_from_the_measured_row_is_shown_in_bytes(emulated, measured):
    (rank,) = emulated.memory.ranks
    more = rank.model_copy(update={"peak_allocated_bytes": rank.peak_allocated_bytes + 1000})
    fewer = emulated.comm.model_copy(update={"collectives": emulated.comm.collectives[1:]})
    other = emulated.model_copy(update={"memory": emulated.memory.model_copy(update={"ranks": [more]}), "comm": fewer})
    (table,) = agreement([measured, other])
    assert table.rows[0][3] == "+1,000 B (+0.00%)"
    assert table.rows[0][-1] == "NOT the same"


def test_on_cuda_the_modelled_blocks_are_compared(emulated, measured):
    ranks = [rank.model_copy(update={"peak_reserved_bytes": 1_006_632_960}) for rank in measured.memory.ranks]
    cuda = measured.model_copy(update={"memory": measured.memory.model_copy(update={"ranks": ranks})})
    (table,) = agreement([cuda, emulated])
    modelled = emulated.emulation.allocator.peak_allocated_bytes - measured.memory.ranks[0].peak_allocated_bytes
    assert table.rows[0][3].startswith(f"{modelled:+,} B")
    assert table.rows[0][4:6] == ["-", "="]


def test_a_finished_row_in_one_line(emulated):
    assert summary(emulated) == "completed  peak 958.2 MiB  sent 0.90 MiB/step"


def result(record):
    return {
        "ranks": [{"rank": 0, "shards": record.shards[0].model_dump(), "steady": True}],
        "effective": record.effective,
        "stack": record.stack,
        "backend": record.comm.backend,
        "num_params": record.num_params,
        "num_tensors": 21,
        "skipped_steps": 0,
        "emulated": {"allocator": record.emulation.allocator.model_dump(), "guesses": []},
    }


def examined(record, **changes):
    content = {
        "matrix": {"model": "llama-tiny", "strategy": "z3", "world_size": 2, "seq_length": 64, "mode": "emulated"}
    }
    offer = Resources(device="cpu", slots=2, memory_bytes=2**30, shared=True)
    (planned,) = plan(Scenario.model_validate(content), offer)
    found = examine_emulated(
        planned, result(record) | changes, record.comm, record.practice, record.memory, record.offload
    )
    return [(finding.check, finding.verdict) for finding in found]


def test_a_row_as_it_was_passes(emulated):
    assert examined(emulated) == []


def test_a_value_read_by_an_unknown_function_makes_the_row_suspect(emulated):
    guess = Guess(reader="somebody.else", origin="aten::sum", value="1.0", count=1).model_dump()
    allocator = emulated.emulation.allocator.model_dump()
    assert examined(emulated, emulated={"allocator": allocator, "guesses": [guess]}) == [("guesses", "suspect")]
    known = guess | {"reader": "deepspeed.runtime.utils.is_invalid_grad_norm"}
    assert examined(emulated, emulated={"allocator": allocator, "guesses": [known]}) == []


def test_what_has_no_room_is_noted_and_makes_no_row_suspect(emulated):
    allocator = emulated.emulation.allocator.model_dump() | {"out_of_memory_bytes": 2**20}
    assert examined(emulated, emulated={"allocator": allocator, "guesses": []}) == [("capacity", "note")]


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"skipped_steps": 1}, "applied steps"),
        ({"num_params": 315_969}, "parameter count"),
        (
            {
                "ranks": [
                    {"rank": 0, "shards": {"parameters": 1, "gradients": 1, "optimizer_states": 1}, "steady": False}
                ]
            },
            "steady traffic",
        ),
        (
            {
                "ranks": [
                    {
                        "rank": 0,
                        "shards": {"parameters": 315_968, "gradients": 1, "optimizer_states": 1},
                        "steady": True,
                    }
                ]
            },
            "sharding",
        ),
    ],
)
def test_a_fault_is_found(emulated, changes, check):
    assert check in [found for found, _ in examined(emulated, **changes)]


def test_other_traffic_than_the_releases_code_moves_is_suspect(emulated):
    record = emulated.model_copy(
        update={"comm": emulated.comm.model_copy(update={"collectives": emulated.comm.collectives[2:]})}
    )
    assert ("traffic", "suspect") in examined(record)


def test_how_long_an_emulated_cell_takes_is_learned_from_emulated_cells(emulated, tmp_path):
    content = {"matrix": {"model": "llama-tiny", "strategy": ["z2", "z3"], "mode": "emulated"}}
    offer = Resources(device="cpu", slots=2, memory_bytes=2**30, shared=True)
    entry = plan(Scenario.model_validate(content), offer)[0]
    nothing = history(tmp_path, "cpu")
    assert seconds(entry, nothing) == 2.0 + ASSUMED_EMULATED_S
    write_record(tmp_path / "run", emulated)
    known = history(tmp_path, "cuda")
    assert seconds(entry, known) == pytest.approx(2.0 + emulated.activity_s["counting pass"])
    assert known.outside_s == {}  # of measured launches only
