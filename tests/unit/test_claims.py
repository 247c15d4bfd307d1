"""The claims: every one has a verdict, in both languages, and with other rows it comes out otherwise."""

import re

import pytest

from bench.claims import published
from bench.claims.document import REFERENCE
from bench.claims.judge import verdicts
from bench.claims.rows import release, stage
from bench.claims.rule import selection
from bench.claims.show import read
from bench.record import Finding

IDS = [
    "stage0-shards-optimizer",
    "stage0-full-params",
    "stage2-full-params",
    "optimizer-states-include-gradients",
    "stage2-adds-gradients",
    "stage3-adds-parameters",
    "stage3-never-whole",
    "memory-order",
    "traffic-order",
    "no-stage1",
    "stage1-is-gradients-only",
    "stage2-covers-stage1",
    "fits-rule",
    "just-use-3",
]
HAN = re.compile("[\u4e00-\u9fff]")


@pytest.fixture(scope="module")
def rows():
    return read([REFERENCE])


@pytest.fixture(scope="module")
def judged(rows):
    return of(rows)


def of(rows):
    return {verdict.id: verdict for verdict in verdicts(rows)}


def said(rows, claim):
    return of(rows)[claim].word


def test_every_claim_has_a_verdict_in_order(rows):
    assert [verdict.id for verdict in verdicts(rows)] == IDS


def test_the_verdicts_on_the_committed_rows(judged):
    assert {claim: verdict.word for claim, verdict in judged.items()} == {
        "stage0-shards-optimizer": "depends-on",
        "stage0-full-params": "confirmed",
        "stage2-full-params": "confirmed",
        "optimizer-states-include-gradients": "refuted",
        "stage2-adds-gradients": "depends-on",
        "stage3-adds-parameters": "confirmed",
        "stage3-never-whole": "depends-on",
        "memory-order": "depends-on",
        "traffic-order": "depends-on",
        "no-stage1": "refuted",
        "stage1-is-gradients-only": "refuted",
        "stage2-covers-stage1": "depends-on",
        "fits-rule": "not-yet-measured",
        "just-use-3": "not-yet-measured",
    }


def test_both_languages_are_complete(judged, rows):
    for verdict in judged.values():
        for text in (verdict.claim, verdict.because):
            assert text["en"]
            assert not HAN.search(text["en"])
            assert HAN.search(text["zh"])
        assert (verdict.variable is None) == (verdict.variable_zh is None) == (verdict.word != "depends-on")
        assert all(row.says and HAN.search(row.says_zh) for row in verdict.evidence)
        assert len(verdict.published) == len(verdict.published_zh)
    for sentence in selection(rows):
        assert not HAN.search(sentence["en"])
        assert HAN.search(sentence["zh"])


def test_a_verdict_has_the_rows_behind_it(judged, rows):
    known = {row.cell_id for row in rows}
    for verdict in judged.values():
        supports = {row.supports for row in verdict.evidence}
        assert (
            supports
            == {
                "confirmed": {True},
                "refuted": {False},
                "depends-on": {True, False},
                "not-yet-measured": set(),
            }[verdict.word]
        )
        assert all(known >= {row.cell_id, *row.others} for row in verdict.evidence)


def test_no_rows_no_verdict():
    for verdict in verdicts([]):
        assert verdict.word == "not-yet-measured"
        assert "it takes" in verdict.because["en"]


def test_stage_0_shards_optimizer_states_in_bf16_under_the_older_release_alone(rows, judged):
    variable = judged["stage0-shards-optimizer"].variable
    assert "dtype" in variable
    assert "DeepSpeed" in variable
    supporting = [row for row in judged["stage0-shards-optimizer"].evidence if row.supports]
    assert {(row.facts["deepspeed"], row.facts["dtype"]) for row in supporting} == {("0.17.5", "bf16")}
    assert all("BF16_Optimizer" in row.says for row in supporting)
    assert all("suspect" in row.validity and "known-bad release, figures" in row.validity for row in supporting)

    assert said([row for row in rows if release(row) != "0.17.5"], "stage0-shards-optimizer") == "refuted"
    older = [row for row in rows if release(row) == "0.17.5" and row.cell.dtype == "bf16"]
    assert said(older, "stage0-shards-optimizer") == "confirmed"
    assert said(older, "stage2-adds-gradients") == "confirmed"


def test_sharded_parameters_at_stage_0_would_refute(rows):
    halved = [
        row.model_copy(
            update={"shards": [one.model_copy(update={"parameters": one.parameters // 2}) for one in row.shards]}
        )
        if row.cell.strategy == "z0"
        else row
        for row in rows
    ]
    assert said(halved, "stage0-full-params") == "refuted"
    assert said(halved, "stage2-full-params") == "confirmed"


def test_invalid_rows_change_nothing(rows, judged):
    wrong = [
        row.model_copy(update={"validity": "invalid", "repeat": 9, "shards": [], "memory": None, "comm": None})
        for row in rows
    ]
    assert of([*wrong, *rows]) == judged
    assert of([row for row in rows if row.validity != "invalid"]) == judged
    assert any(row.validity == "invalid" for row in rows)


def test_rows_whose_figures_are_in_doubt_are_no_evidence_of_memory_and_traffic(rows):
    doubt = Finding(check="steady traffic", verdict="suspect", text="two counted steps moved different bytes")
    doubted = [row.model_copy(update={"validity": "suspect", "findings": [doubt]}) for row in rows]
    words = {claim: verdict.word for claim, verdict in of(doubted).items()}
    assert words["traffic-order"] == words["memory-order"] == words["stage2-covers-stage1"] == "not-yet-measured"
    trains = doubt.model_copy(update={"affects": "training"})
    doubted = [row.model_copy(update={"validity": "suspect", "findings": [trains]}) for row in rows]
    found = of(doubted)
    assert found["traffic-order"].word == "depends-on"
    assert all(row.validity == "suspect (steady traffic, training)" for row in found["traffic-order"].evidence)


def test_stage_3_holds_the_whole_model_below_its_limits(rows, judged):
    assert judged["stage3-never-whole"].variable.startswith("number of parameters over stage3_max_live_parameters")
    for row in judged["stage3-never-whole"].evidence:
        assert row.supports == (row.facts["over_limits"] > 1)
    small = [row for row in rows if (row.num_params or 0) < 1e9 and row.cell.strategy_name != "z3-low-limits"]
    assert said(small, "stage3-never-whole") == "refuted"
    assert said([row for row in rows if (row.num_params or 0) > 1e9], "stage3-never-whole") == "confirmed"


def test_stage_2_pays_for_accumulation_what_stage_1_does_not(rows, judged):
    assert "gradient_accumulation_steps" in judged["stage2-covers-stage1"].variable
    emulated = [row for row in rows if row.provenance == "emulated"]
    once = [row for row in emulated if row.cell.gradient_accumulation_steps == 1]
    assert said(once, "stage2-covers-stage1") == "confirmed"
    often = [row for row in rows if row.cell.gradient_accumulation_steps == 4]
    assert said(often, "stage2-covers-stage1") == "refuted"
    both = judged["stage2-covers-stage1"].because["en"]
    assert re.search(r"Between two steps both hold the same bytes in (\d+) of \1 pairs", both)
    assert "3.00 times as much as stage 1, with 4 micro-steps" in both


def test_stage_3_sends_two_thirds_of_stage_2_on_a_ring_without_accumulation(rows):
    small = [row for row in rows if row.cell.model == "gpt2" and row.cell.gradient_accumulation_steps == 1]
    verdict = of([row for row in small if row.cell.strategy_name != "z3-low-limits"])["traffic-order"]
    assert verdict.word == "refuted"
    assert "less than stage 2 in 3 of 3 comparisons, down to 0.67 times" in verdict.because["en"]


def test_more_memory_at_stage_3_on_a_small_model_less_on_a_large_one(rows):
    for model, word in (("gpt2", "refuted"), ("llama-2-7b", "confirmed")):
        assert said([row for row in rows if row.cell.model == model], "memory-order") == word


def test_a_stage_1_that_is_refused_or_is_another_stage(rows):
    ones = [row for row in rows if row.cell.strategy == "z1"]
    refused = [
        row.model_copy(update={"status": "config_error", "reason": "stage 1 is not known", "validity": "unchecked"})
        for row in ones
    ]
    others = [row for row in rows if row.cell.strategy != "z1"]
    assert said([*others, *refused], "no-stage1") == "confirmed"
    # What is refused alike at every stage, or alone, does not say that it is for the stage.
    assert said(refused, "no-stage1") == "not-yet-measured"
    everything = [row.model_copy(update={"status": "config_error", "validity": "unchecked"}) for row in rows]
    assert said(everything, "no-stage1") == "not-yet-measured"
    twos = [row.model_copy(update={"effective": row.effective | {"zero_stage": 2}}) for row in ones]
    assert said(twos, "no-stage1") == "confirmed"
    assert said([*twos, *ones], "no-stage1") == "confirmed"  # the first launch of a cell stands for it


def test_a_cell_of_two_runs_counts_in_each_release_and_on_each_device(rows):
    installed = [row.model_copy(update={"requested_stack": None}) for row in rows if release(row) == "0.19.8"]
    elsewhere = [row.model_copy(update={"stack": row.stack | {"deepspeed": "0.20.0"}}) for row in installed]
    on_cuda = [row.model_copy(update={"device": "cuda"}) for row in installed]
    once = len(of(installed)["stage0-full-params"].evidence)
    for other in (elsewhere, on_cuda):
        assert len(of([*installed, *other])["stage0-full-params"].evidence) == 2 * once
    assert len(of([*installed, *installed])["stage0-full-params"].evidence) == once


@pytest.mark.parametrize(
    ("key", "value", "plain"),
    [
        ("zero_hpz_partition_size", 8, False),
        ("zero_hpz_partition_size", 1, True),
        ("zero_quantized_gradients", True, False),
        ("zero_quantized_weights", False, True),
        ("mics_shard_size", 2, False),
        ("mics_shard_size", -1, True),
        ("stage3_gather_16bit_weights_on_model_save", True, True),
    ],
)
def test_zero_plus_plus_and_mics_are_not_stage_3(rows, key, value, plain):
    row = next(row for row in rows if row.cell.strategy_name == "z3")
    cell = row.cell.model_copy(update={"zero_optimization": row.cell.zero_optimization | {key: value}})
    assert (stage(row.model_copy(update={"cell": cell})) == "z3") is plain


def test_published_sentences_have_their_source(judged):
    for verdict in judged.values():
        for sentence in (*verdict.published, *verdict.published_zh):
            assert re.search(r"\[[\w.-]+/[\w.-]+", sentence)
    assert judged["fits-rule"].published
    assert all("ZeRO-3" in sentence for sentence in judged["just-use-3"].published)


def test_published_rows_compare_stages_of_one_source():
    for group in published.groups():
        assert len({row["stage"] for row in group}) == len(group) >= 2
        assert all(row["source"] and row["locator"] and re.fullmatch("ZeRO-[0-3]", row["stage"]) for row in group)
