"""Every rule: a case in which it must speak, with the numbers that were measured, and one in which it must not."""

from pathlib import Path

import pytest

from bench.analysis.comparison import comparison
from bench.analysis.explain import explanations
from bench.analysis.frame import frame
from bench.analysis.rules import RULES
from bench.analysis.tables import METRICS, markdown, tables
from bench.record import Collective, MemoryPoint, Shards, parse_record
from bench.validity.cores import oversubscribed
from bench.zero.memory import CATEGORIES

V1 = Path(__file__).parents[1] / "data" / "records" / "v1-completed.json"
MIB = 2**20


@pytest.fixture
def record():
    """A measured row: z3, 2 ranks, 315,968 parameters, limits above that; its times are good."""
    return parse_record(V1.read_text(), str(V1))


def row(record, strategy, ranks=2, *, effective=None, **changes):
    cell = record.cell.model_copy(
        update={"strategy": strategy, "world_size": ranks} | changes.pop("cell", {}),
    )
    runs = record.effective | {"world_size": ranks, "dp_world_size": ranks} | (effective or {})
    return record.model_copy(update={"cell": cell, "cell_id": cell.cell_id, "effective": runs} | changes)


def collective(phase, op, num_bytes, count=1, **changes):
    return Collective(
        phase=phase,
        op=op,
        dtype="bfloat16",
        num_elements=num_bytes // 2,
        num_bytes=num_bytes,
        group_size=2,
        during_autograd=False,
        count=count,
        wire_bytes=float(num_bytes),
        **changes,
    )


def traffic(record, *collectives, sent=None):
    total = sum(item.num_bytes * item.count for item in collectives)
    return record.comm.model_copy(
        update={"collectives": list(collectives), "comm_wire_bytes_per_step": float(total if sent is None else sent)}
    )


def memory(record, peak, *others):
    """Return a memory whose largest rank was taken apart at ``peak`` (bytes by category) and ``others``."""
    points = [
        MemoryPoint(point=name, where="backward", total_bytes=sum(held.values()), bytes=held)
        for name, held in zip(["peak", "backward", "step"], (peak, *others), strict=False)
    ]
    ranks = [record.memory.ranks[0].model_copy(update={"points": points}), record.memory.ranks[1]]
    return record.memory.model_copy(update={"ranks": ranks})


def timing(record, step_time_s, spread=0.0, reasons=()):
    changes = {"step_time_s": step_time_s, "step_time_iqr_s": spread, "suspect_reasons": list(reasons)}
    return record.timing.model_copy(update=changes)


def said(records, rule, run=()):
    """Return {row: numbers} of the one explanation by ``rule``; empty when it does not speak."""
    found = [explanation for explanation in explanations(records, run) if explanation.rule.id == rule]
    assert len(found) <= 1
    return found[0].rows if found else {}


def test_rules_have_names_sources_and_a_table_to_stand_under():
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert {rule.table for rule in RULES} <= {metric.title for metric in METRICS}
    assert all(rule.sources and rule.sentence.endswith(".") for rule in RULES)


# buffers-outweigh-savings


def states(share, buffers, gathered=0):
    held = {"parameters": 2 * MIB, "gradients": 2 * MIB // share, "optimizer_states": 12 * MIB // share}
    held |= {"zero_buckets": buffers, "gathered_parameters": gathered, "activations": 5 * MIB}
    assert held.keys() <= {*CATEGORIES}
    return held


def test_buffers_that_outweigh_the_savings(record):
    rows = [
        row(record, "z0", memory=memory(record, states(1, 0))),
        row(record, "z2", memory=memory(record, states(2, 20 * MIB))),
        row(record, "z3", memory=memory(record, states(2, 5 * MIB, 4 * MIB))),
    ]
    found = said(rows, "buffers-outweigh-savings")
    assert found == {
        "z2 N=2": "7.00 MiB of states saved against z0, 20.00 MiB more in buffers",
        "z3 N=2": "7.00 MiB of states saved against z0, 9.00 MiB more in buffers",
    }


def test_buffers_smaller_than_the_savings(record):
    rows = [
        row(record, "z0", memory=memory(record, states(1, 0))),
        row(record, "z2", memory=memory(record, states(2, 6 * MIB))),
    ]
    assert said(rows, "buffers-outweigh-savings") == {}


def test_states_count_where_they_are_largest_and_the_baselines_buffers_are_taken_off(record):
    """Gradients are gone at the peak of an optimizer step; a baseline may have buffers of its own."""
    at_step = states(1, 15 * MIB) | {"gradients": 0}
    rows = [
        row(record, "z0", memory=memory(record, at_step, states(1, 0))),
        row(record, "z1", memory=memory(record, states(2, 20 * MIB))),
    ]
    assert said(rows, "buffers-outweigh-savings") == {}


def test_memory_that_was_not_taken_apart_explains_nothing(record):
    assert said([row(record, "z0"), row(record, "z3")], "buffers-outweigh-savings") == {}


# dp-degree-1


def test_one_rank_shards_nothing(record):
    shards = [Shards(parameters=315968, gradients=None, optimizer_states=631936)]
    found = said([row(record, "z3", 1, shards=shards), row(record, "z0", 1), row(record, "z3", 2)], "dp-degree-1")
    assert found == {"z3 N=1": "1 rank, peak 15.59 MiB; 631,936 optimizer-state elements on it"}


def test_the_degree_is_the_engines_not_the_cells(record):
    assert said([row(record, "z3", 2)], "dp-degree-1") == {}
    assert said([row(record, "z3", 2, effective={"dp_world_size": 1})], "dp-degree-1") != {}


# bf16-optimizer


def test_a_stage_0_row_that_ran_bf16_optimizer(record):
    odd = row(record, "z0", effective={"optimizer_wrapper": "BF16_Optimizer"}, validity="suspect")
    assert list(said([odd], "bf16-optimizer")) == ["z0 N=2"]
    assert said([row(record, "z0", effective={"optimizer_wrapper": "FP16_UnfusedOptimizer"})], "bf16-optimizer") == {}


# all-reduce


def test_stages_1_and_2_all_reduce(record):
    psi = record.num_params * 2
    paper = record.theory.model_copy(update={"comm_wire_bytes_per_step": float(psi)})
    moved = (collective("backward", "all_reduce", psi), collective("step", "all_gather_into_tensor", psi))
    comm = traffic(record, *moved, sent=1.5 * psi)
    found = said([row(record, "z1", comm=comm, theory=paper), row(record, "z3", comm=comm, theory=paper)], "all-reduce")
    assert found == {"z1 N=2": "0.60 MiB all-reduced and 0.60 MiB gathered: 0.90 MiB sent, paper 0.60 MiB"}
    as_much = traffic(record, *moved, sent=psi)
    assert said([row(record, "z1", comm=as_much, theory=paper)], "all-reduce") == {}


def test_a_stage_that_reduces_to_owners_does_not(record):
    psi = record.num_params * 2
    paper = record.theory.model_copy(update={"comm_wire_bytes_per_step": float(psi)})
    comm = traffic(
        record, collective("backward", "reduce", psi // 8, 8), collective("step", "all_gather", psi), sent=3 * psi
    )
    assert said([row(record, "z1", comm=comm, theory=paper)], "all-reduce") == {}


def test_control_collectives_are_no_reduction_of_gradients(record):
    comm = traffic(record, collective("backward", "all_reduce", 8), sent=10**9)
    assert said([row(record, "z1", comm=comm)], "all-reduce") == {}


# every-micro-step


def accumulated(record, strategy, steps, times, op="all_reduce"):
    comm = traffic(record, collective("backward", op, 2 * MIB, times))
    return row(record, strategy, comm=comm, cell={"gradient_accumulation_steps": steps})


def test_reductions_at_every_micro_step(record):
    rows = [accumulated(record, "z1", 4, 1), accumulated(record, "z2", 4, 4)]
    rows.append(accumulated(record, "z3", 4, 4, "reduce_scatter_tensor"))
    found = said(rows, "every-micro-step")
    assert found["z2 N=2"] == "8.00 MiB reduced in 4 micro-steps, 2.00 MiB at z1"
    assert list(found) == ["z2 N=2", "z3 N=2"]


def test_no_accumulation_or_no_more_bytes_is_not_explained(record):
    assert said([accumulated(record, "z1", 1, 1), accumulated(record, "z2", 1, 4)], "every-micro-step") == {}
    assert said([accumulated(record, "z1", 4, 1), accumulated(record, "z2", 4, 1)], "every-micro-step") == {}
    assert said([accumulated(record, "z2", 4, 4)], "every-micro-step") == {}


# no-regather


def test_a_measured_stage_3_row_that_did_not_gather_again(record):
    found = said([record], "no-regather")
    assert found == {"z3 N=2": "0.73 MiB gathered in forward, none in backward; 315,968 parameters, limit 400,000"}


def test_a_row_that_gathered_again_or_is_above_the_limits(record):
    again = traffic(record, *record.comm.collectives, collective("backward", "all_gather_into_tensor", MIB))
    assert said([row(record, "z3", comm=again)], "no-regather") == {}
    assert said([row(record, "z3", effective={"stage3_max_live_parameters": 300000})], "no-regather") == {}
    assert said([row(record, "z3", num_params=500000)], "no-regather") == {}
    assert said([row(record, "z2")], "no-regather") == {}


# skipped-steps, trace-invalidated, oversubscribed


def test_skipped_steps(record):
    doubtful = row(record, "z2", skipped_steps=3, validity="suspect")
    assert said([doubtful, row(record, "z3", skipped_steps=0)], "skipped-steps") == {"z2 N=2": "3 of 18 steps skipped"}


def test_trace_invalidations(record):
    assert said([row(record, "z3", trace_invalidations=4)], "trace-invalidated") == {"z3 N=2": "4 times in 18 steps"}
    assert said([row(record, "z3", trace_invalidations=0), row(record, "z2")], "trace-invalidated") == {}


def test_oversubscribed_ranks(record):
    crowded = timing(record, 0.5, reasons=oversubscribed(4, 1, 2))
    other = timing(record, 0.5, reasons=["its clock misses a share of the time"])
    found = said([row(record, "z1", timing=crowded), row(record, "z2", timing=other)], "oversubscribed")
    assert found == {"z1 N=2": "4 ranks of 1 threads share 2 cores: 0.500 s per step, 0.454 s of it computing"}


# slow-link


def on_nodes(record, nodes, seconds, ranks=4, reasons=(), **changes):
    inside = collective("backward", "all_reduce", 2 * MIB)
    across = collective("backward", "all_reduce", MIB, group="inter-node")
    comm = traffic(record, inside, *([across] if nodes > 1 else []))
    cell = {"num_nodes": nodes} | changes
    return row(record, "z3", ranks, comm=comm, timing=timing(record, seconds, reasons=reasons), cell=cell)


def test_a_link_that_slows_the_step(record):
    slow, single = on_nodes(record, 2, 8.68), on_nodes(record, 1, 2.46)
    found = said([slow], "slow-link", run=[slow, single])
    assert found == {
        "z3 N=4": "8.680 s per step on 2 nodes, 2.460 s with 4 ranks on one; 1.00 MiB of 3.00 MiB per step cross nodes"
    }
    share = on_nodes(record, 1, 2.46, ranks=2)
    assert "with 2 ranks on one" in said([slow], "slow-link", run=[slow, share])["z3 N=4"]


def test_a_link_that_does_not_or_cannot_be_judged(record):
    slow, single = on_nodes(record, 2, 8.68), on_nodes(record, 1, 2.46)
    assert said([slow], "slow-link", run=[slow]) == {}
    assert said([slow], "slow-link", run=[slow, on_nodes(record, 1, 8.0)]) == {}
    assert said([slow], "slow-link", run=[slow, on_nodes(record, 1, 2.46, seq_length=64)]) == {}
    assert said([slow], "slow-link", run=[slow, on_nodes(record, 1, 2.46, reasons=["shared"])]) == {}
    assert said([single], "slow-link", run=[slow, single]) == {}


# z0-is-not-ddp


def test_two_baselines(record):
    peak = record.memory.model_copy(update={"peak_allocated_bytes": 10 * MIB})
    rows = [
        row(record, "ddp", timing=timing(record, 0.4)),
        row(record, "z0", timing=timing(record, 0.5), memory=peak),
        row(record, "z0", 4),
    ]
    found = said(rows, "z0-is-not-ddp")
    assert found == {"z0 N=2 and ddp N=2": "peak 10.00 MiB and 15.59 MiB, 0.500 and 0.400 s per step"}


def test_two_baselines_that_do_not_differ(record):
    rows = [
        row(record, "ddp", timing=timing(record, 0.45, 0.03)),
        row(record, "z0", timing=timing(record, 0.5, 0.03)),
    ]
    assert said(rows, "z0-is-not-ddp") == {}


def test_times_that_are_suspect_are_not_held_against_a_baseline(record):
    rows = [
        row(record, "ddp", timing=timing(record, 0.1)),
        row(record, "z0", timing=timing(record, 9.0, 0, ["crowded"])),
    ]
    assert said(rows, "z0-is-not-ddp") == {}


# all rules


def test_rows_without_numbers_are_not_used(record):
    failed = record.model_copy(update={"status": "oom", "timing": None, "memory": None, "comm": None})
    wrong = record.model_copy(update={"validity": "invalid"})
    assert explanations([failed, wrong]) == []


def test_repeats_speak_once_and_stacks_apart(record):
    again = record.model_copy(update={"repeat": 1})
    old = record.model_copy(update={"requested_stack": "deepspeed==0.17.5"})
    assert list(said([record, again, old], "no-regather")) == ["z3 N=2", "z3 deepspeed==0.17.5 N=2"]


def test_sentences_stand_once_below_their_table_and_name_their_source(record):
    records = [record, record.model_copy(update={"repeat": 1})]
    found = tables(comparison(frame(records), "gradient_accumulation_steps"), records)
    below = {table.title: table.explained for table in found}
    (sentence,) = below["Traffic (sent per GPU and optimizer step)"]
    assert "315,968 parameters" in sentence
    assert "[no-regather: deepspeedai/DeepSpeed#2864" in sentence
    assert below["Peak memory (per GPU)"] == []
    text = markdown(found, [])
    assert text.count("no-regather") == 1
    assert text.index("### Traffic") < text.index("no-regather")


def test_groups_do_not_hear_each_others_sentences(record):
    other = row(record, "z1", cell={"seq_length": 64})
    records = [other, record]
    found = tables(comparison(frame(records), "gradient_accumulation_steps"), records)
    assert [bool(table.explained) for table in found] == [False, False, False, False, False, True]
