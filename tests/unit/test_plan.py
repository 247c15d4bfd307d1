import json
from pathlib import Path
from typing import Any

import pytest

from bench.cell import Cell
from bench.errors import ScenarioError
from bench.estimate import ASSUMED_TRIES, History, seconds
from bench.models.catalog import load_config
from bench.models.counts import count_params
from bench.outcome import refused
from bench.plan import PlannedCell, Resources, plan, plan_file, select, unused_rules
from bench.scenario import Data, Optimizer, Scenario

LARGE = Resources(device="cpu", slots=64, memory_bytes=2**40, shared=True)
CORPUS = b"To be, or not to be\n"


def scenario(settings: dict[str, Any] | None = None, **matrix: Any) -> Scenario:
    return Scenario.model_validate({"matrix": {"model": "llama-tiny", "strategy": "z2", **matrix}, **(settings or {})})


def cells(settings: dict[str, Any] | None = None, resources: Resources = LARGE, **matrix: Any) -> list[PlannedCell]:
    return plan(scenario(settings, **matrix), resources)


def ids(**arguments: Any) -> dict[str, str]:
    return {entry.cell.strategy: entry.cell.cell_id for entry in cells(**arguments)}


def write(path: Path, content: bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return str(path)


# Matrix -> cells


def test_product_runs_in_the_order_of_the_axes() -> None:
    found = cells(model=["gpt2-tiny", "llama-tiny"], strategy=["z3", "ddp"], world_size=[2, 1])
    assert [(c.cell.model, c.cell.strategy, c.cell.world_size) for c in found] == [
        ("gpt2-tiny", "z3", 2),
        ("gpt2-tiny", "z3", 1),
        ("gpt2-tiny", "ddp", 2),
        ("gpt2-tiny", "ddp", 1),
        ("llama-tiny", "z3", 2),
        ("llama-tiny", "z3", 1),
        ("llama-tiny", "ddp", 2),
        ("llama-tiny", "ddp", 1),
    ]


def test_cell_takes_the_settings_that_all_share() -> None:
    shared = {"seed": 7, "steps": 4, "warmup_steps": 2, "optimizer": {"lr": 0.5}, "repeat": 3}
    cell = cells(shared, dtype="fp32", activation_checkpointing=True)[0].cell
    assert (cell.seed, cell.steps, cell.warmup_steps, cell.optimizer) == (7, 4, 2, Optimizer(lr=0.5))
    assert cell.total_steps == 3 + 2 + 2 + 4
    assert cell.label == "llama-tiny/z2/w1/mbs1/gas1/s128/fp32/ckpt"


def test_planned_cell_knows_its_parameters_and_states() -> None:
    entry = cells(world_size=4)[0]
    assert entry.params == count_params(load_config("llama-tiny"))
    assert entry.params is not None
    assert entry.model_state_bytes == entry.params.total * (2 + 14 / 4)


def test_exclude_removes_the_points_that_match_every_axis_of_a_rule() -> None:
    rules = {"exclude": [{"strategy": ["z2", "z3"], "world_size": 1}, {"strategy": "ddp"}]}
    found = cells(rules, strategy=["ddp", "z1", "z2", "z3"], world_size=[1, 2])
    assert [(c.cell.strategy, c.cell.world_size) for c in found] == [("z1", 1), ("z1", 2), ("z2", 2), ("z3", 2)]


def test_include_takes_unnamed_axes_from_the_matrix_and_escapes_exclude() -> None:
    rules = {"exclude": [{"world_size": 4}], "include": [{"world_size": [4, 8], "strategy": "z3"}]}
    found = cells(rules, strategy=["z1", "z2"], world_size=2, seq_length=[32, 64])
    assert [(c.cell.strategy, c.cell.world_size, c.cell.seq_length) for c in found] == [
        ("z1", 2, 32),
        ("z1", 2, 64),
        ("z2", 2, 32),
        ("z2", 2, 64),
        ("z3", 4, 32),
        ("z3", 4, 64),
        ("z3", 8, 32),
        ("z3", 8, 64),
    ]


def test_equal_cells_are_planned_once() -> None:
    again = {"include": [{"strategy": "z2"}, {"train_batch_size": 2}]}
    found = cells(again, strategy=["z2", "z1", "z2"], train_micro_batch_size_per_gpu=[1, 1])
    assert [(c.cell.strategy, c.cell.train_batch_size) for c in found] == [("z2", 1), ("z1", 1), ("z2", 2), ("z1", 2)]


# The batch triple


@pytest.mark.parametrize(
    ("matrix", "steps"),
    [
        ({}, 1),
        ({"gradient_accumulation_steps": 3}, 3),
        ({"train_batch_size": 24}, 4),
        ({"train_batch_size": 6}, 1),
        ({"train_batch_size": 24, "gradient_accumulation_steps": 4}, 4),
    ],
)
def test_batch_triple_is_completed(matrix: dict[str, int], steps: int) -> None:
    entry = cells(world_size=2, train_micro_batch_size_per_gpu=3, **matrix)[0]
    assert entry.skip_reason is None
    assert entry.cell.gradient_accumulation_steps == steps
    assert entry.cell.train_batch_size == 3 * 2 * steps


@pytest.mark.parametrize(
    ("total", "steps", "reason"),
    [
        (25, None, "train_batch_size 25 = train_micro_batch_size_per_gpu 3 x world_size 2 x a whole number"),
        (3, None, "train_batch_size 3 = train_micro_batch_size_per_gpu 3 x world_size 2 x a whole number"),
        (24, 3, "train_batch_size 24 = train_micro_batch_size_per_gpu 3 x world_size 2 x 3"),
    ],
)
def test_impossible_batch_triple_is_skipped_with_its_numbers(total: int, steps: int | None, reason: str) -> None:
    extra = {} if steps is None else {"gradient_accumulation_steps": steps}
    entry = cells(world_size=2, train_micro_batch_size_per_gpu=3, train_batch_size=total, **extra)[0]
    assert entry.skip_reason == f"batch triple impossible: {reason} does not hold"


def test_impossible_point_does_not_hide_a_possible_cell() -> None:
    found = cells(train_micro_batch_size_per_gpu=2, train_batch_size=[3, 2])
    assert [c.cell.train_batch_size for c in found if c.skip_reason is None] == [2]


# The id


@pytest.mark.parametrize(
    ("cell", "cell_id"),
    [
        (Cell(model="llama-tiny", strategy="z2"), "b0ba4032739c"),
        (Cell(model="gpt2", strategy="ddp", world_size=2, dtype="fp32", seq_length=64), "7d50d2dd7313"),
        (
            Cell(
                model="llama-tiny",
                strategy="z3",
                zero_optimization={"overlap_comm": True, "stage3_max_live_parameters": 400_000},
            ),
            "74f2b6a6085a",
        ),
    ],
)
def test_golden_cell_id(cell: Cell, cell_id: str) -> None:
    # A change here makes every stored row an orphan: never update these values.
    assert cell.cell_id == cell_id


def test_golden_cell_id_of_a_text_cell(tmp_path: Path) -> None:
    data = Data(kind="text", path=write(tmp_path / "corpus.txt", CORPUS))
    assert Cell(model="llama-tiny", strategy="z1", data=data).cell_id == "df595c1c668f"


def test_new_field_with_a_default_changes_no_id() -> None:
    class Later(Cell):
        aggregation: str = "mean"

    settings: dict[str, Any] = {"model": "llama-tiny", "strategy": "z3", "world_size": 2}
    assert Later(**settings).cell_id == Cell(**settings).cell_id
    assert Later(**settings, aggregation="sum").cell_id != Cell(**settings).cell_id


@pytest.mark.parametrize(
    "change",
    [
        {"model": "gpt2"},
        {"strategy": "z1"},
        {"world_size": 2},
        {"num_nodes": 2},
        {"train_micro_batch_size_per_gpu": 2},
        {"gradient_accumulation_steps": 2},
        {"seq_length": 64},
        {"dtype": "fp32"},
        {"activation_checkpointing": True},
        {"data": Data(kind="text")},
        {"optimizer": Optimizer(lr=0.5)},
        {"zero_optimization": {"overlap_comm": False}},
        {"seed": 1},
        {"warmup_steps": 1},
        {"steps": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_setting_is_part_of_the_id(change: dict[str, Any]) -> None:
    before = Cell(model="llama-tiny", strategy="z2")
    assert Cell(**(dict(before) | change)).cell_id != before.cell_id


def test_flag_and_number_of_the_zero_section_are_different_ids() -> None:
    flag, number = (
        Cell(model="llama-tiny", strategy="z2", zero_optimization={"reduce_bucket_size": value}) for value in (True, 1)
    )
    assert flag.cell_id != number.cell_id


def test_id_depends_on_the_model_and_not_on_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = b'{"model_type": "llama", "hidden_size": 64}'
    write(tmp_path / "org" / "here" / "config.json", config)
    there = write(tmp_path / "there.json", b'{ "hidden_size":64, "model_type":"llama" }')
    other = write(tmp_path / "other.json", b'{"model_type": "llama", "hidden_size": 128}')
    monkeypatch.chdir(tmp_path)
    same = {Cell(model=model, strategy="z2").cell_id for model in (there, "./there.json", "org/here", "org/here/")}
    assert len(same) == 1
    assert Cell(model=other, strategy="z2").cell_id not in same


def test_id_depends_on_the_corpus_and_not_on_where_it_lies(tmp_path: Path) -> None:
    def cell_id(path: str) -> str:
        return Cell(model="llama-tiny", strategy="z2", data=Data(kind="text", path=path)).cell_id

    here = cell_id(write(tmp_path / "a.txt", CORPUS))
    write(tmp_path / "folder" / "1.txt", CORPUS[:5])
    write(tmp_path / "folder" / "deeper" / "2.txt", CORPUS[5:])
    assert cell_id(write(tmp_path / "far" / "b.md", CORPUS)) == cell_id(str(tmp_path / "folder")) == here
    assert cell_id(write(tmp_path / "c.txt", CORPUS + b"?")) != here


@pytest.mark.parametrize(
    ("key", "moved"),
    [
        ("stage3_max_live_parameters", {"z3"}),
        ("sub_group_size", {"z3"}),
        ("reduce_bucket_size", {"z1", "z2", "z3"}),
    ],
)
def test_zero_key_changes_only_the_ids_of_the_stages_that_read_it(key: str, moved: set[str]) -> None:
    every = ["ddp", "z0", "z1", "z2", "z3"]
    before = ids(strategy=every)
    after = ids(settings={"zero_optimization": {key: 5}}, strategy=every)
    assert {strategy for strategy in every if before[strategy] != after[strategy]} == moved


def test_order_of_zero_keys_does_not_matter() -> None:
    keys = {"overlap_comm": True, "reduce_bucket_size": 5}
    assert ids(settings={"zero_optimization": keys}) == ids(
        settings={"zero_optimization": dict(reversed(keys.items()))}
    )


# What is not launched


@pytest.mark.parametrize(
    ("matrix", "reason"),
    [
        ({"world_size": 65}, "world_size 65 is above the 64 cpu slots here (--cpu-slots 65); mode: auto emulates it"),
        ({"model": "gpt2", "seq_length": 1025}, "seq_length 1025 is above the 1024 positions of gpt2"),
        ({"num_nodes": 2}, "num_nodes 2: this release launches on one node only"),
    ],
)
def test_impossible_cell_is_skipped_with_a_reason(matrix: dict[str, Any], reason: str) -> None:
    assert cells(**matrix)[0].skip_reason == reason


def test_cells_at_the_limit_are_launched() -> None:
    assert cells(model="gpt2", world_size=64, seq_length=1024)[0].skip_reason is None


@pytest.mark.parametrize(
    ("strategy", "shared", "gib_per_param_byte"),
    [("z2", False, 2 + 14 / 4), ("z2", True, 4 * 2 + 14), ("z3", False, 16 / 4), ("z3", True, 16), ("ddp", True, 64)],
)
def test_known_misfit(strategy: str, shared: bool, gib_per_param_byte: float) -> None:
    params = count_params(load_config("llama-2-7b"))
    assert params is not None
    needed = params.total * gib_per_param_byte

    def reason(memory: float) -> str | None:
        offer = Resources(device="cuda", slots=4, memory_bytes=int(memory), shared=shared)
        return cells(resources=offer, model="llama-2-7b", strategy=strategy, world_size=4)[0].skip_reason

    assert reason(needed + 1) is None
    assert reason(needed - 1) == (
        f"known misfit: parameters, gradients and Adam states alone need {needed / 2**30:.1f} GiB, "
        f"there are {needed / 2**30:.1f} GiB; mode: emulated needs none of it"
    )


def test_family_without_a_count_is_planned(tmp_path: Path) -> None:
    model = write(tmp_path / "mamba.json", b'{"model_type": "mamba"}')
    entry = cells(model=model)[0]
    assert (entry.params, entry.model_state_bytes, entry.skip_reason) == (None, None, None)


@pytest.mark.parametrize(
    "matrix", [{"model": "lama-tiny"}, {"model": ["llama-tiny", "lama-tiny"]}], ids=["alone", "second"]
)
def test_unknown_model(matrix: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError, match=r"unknown model 'lama-tiny'.*did you mean 'llama-tiny'"):
        cells(**matrix)


def text(path: str) -> dict[str, Any]:
    return {"data": {"kind": "text", "path": path}}


def test_corpus_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"data\.path: cannot read the corpus .*absent"):
        cells(text(str(tmp_path / "absent")))
    with pytest.raises(ScenarioError, match=r"data\.path: the corpus .* holds no text"):
        cells(text(str(tmp_path)))
    with pytest.raises(ScenarioError, match=r"binary\.bin is not text"):
        cells(text(write(tmp_path / "binary.bin", b"\x7fELF\0\0")))


@pytest.mark.parametrize("path", ["~no-such-user/corpus", "a\0b"])
def test_corpus_path_that_is_no_path(path: str) -> None:
    with pytest.raises(ScenarioError):
        cells(text(path))


def test_everything_excluded() -> None:
    with pytest.raises(ScenarioError, match="no cell is left"):
        cells({"exclude": [{"model": "llama-tiny"}]})


def test_exclude_rule_that_matches_nothing_is_named() -> None:
    rules = {"exclude": [{"strategy": "z2"}, {"strategy": "z3", "world_size": 4}, {"dtype": "fp16"}]}
    second, third = unused_rules(scenario(rules, strategy=["z2", "z3"], world_size=[1, 2]))
    assert second.startswith("exclude rule 2 matches no cell: ")
    assert "world_size" in second
    assert third.startswith("exclude rule 3 ")


# --only


@pytest.mark.parametrize(
    ("globs", "labels"),
    [
        ([], ["z1/w1", "z1/w2", "z2/w1", "z2/w2"]),
        (["z1"], ["z1/w1", "z1/w2"]),
        (["w2"], ["z1/w2", "z2/w2"]),
        (["z?"], ["z1/w1", "z1/w2", "z2/w1", "z2/w2"]),
        (["*/z2/w1/*"], ["z2/w1"]),
        (["z1", "w2"], ["z1/w1", "z1/w2", "z2/w2"]),
        (["bf16"], ["z1/w1", "z1/w2", "z2/w1", "z2/w2"]),
    ],
    ids=str,
)
def test_select_by_glob(globs: list[str], labels: list[str]) -> None:
    found = select(cells(strategy=["z1", "z2"], world_size=[1, 2]), globs)
    assert [f"{entry.cell.strategy}/w{entry.cell.world_size}" for entry in found] == labels


def test_select_by_id() -> None:
    planned = cells(strategy=["z1", "z2", "z3"])
    assert select(planned, [planned[1].cell.cell_id]) == [planned[1]]
    assert select(planned, [planned[2].cell.cell_id[:6] + "*"]) == [planned[2]]


STACKS = [None, "deepspeed==0.17.5", "deepspeed==0.18.0 transformers==4.57.0"]


def test_a_cell_has_one_id_in_all_stacks_and_is_planned_once_in_each() -> None:
    planned = cells(strategy=["z0", "z2"], stack=["installed", *STACKS[1:], "deepspeed==0.17.5"])
    expected = [(strategy, stack) for strategy in ("z0", "z2") for stack in STACKS]
    assert [(entry.cell.strategy, entry.stack) for entry in planned] == expected
    assert [entry.cell_id for entry in planned[:3]] == [Cell(model="llama-tiny", strategy="z0").cell_id] * 3
    label = planned[0].cell.label
    assert [entry.label for entry in planned[:2]] == [label, f"{label}/deepspeed==0.17.5"]


def test_rules_see_the_stack() -> None:
    rules = {
        "exclude": [{"stack": "installed"}, {"stack": "deepspeed==0.17.5", "strategy": "z2"}],
        "include": [{"stack": "accelerate==1.0.0", "strategy": "ddp"}],
    }
    planned = cells(rules, strategy=["z0", "z2"], stack=STACKS[:2])
    assert [(entry.cell.strategy, entry.stack) for entry in planned] == [
        ("z0", "deepspeed==0.17.5"),
        ("ddp", "accelerate==1.0.0"),
    ]


@pytest.mark.parametrize(
    ("glob", "found"),
    [
        ("deepspeed==0.17.5", [("z0", 1), ("z2", 1)]),
        ("deepspeed==0.17*", [("z0", 1), ("z2", 1)]),
        ("z2/*/deepspeed==0.1*", [("z2", 1), ("z2", 2)]),
        ("*transformers*", [("z0", 2), ("z2", 2)]),
        ("installed", [("z0", 0), ("z2", 0)]),
        ("z2", [("z2", 0), ("z2", 1), ("z2", 2)]),
        ("ID", [("z0", 0), ("z0", 1), ("z0", 2)]),
        ("ID/installed", [("z0", 0)]),
        ("ID/deepspeed==0.17.5", [("z0", 1)]),
        ("*inst*", None),
    ],
)
def test_select_by_stack(glob: str, found: list[tuple[str, int]] | None) -> None:
    planned = cells(strategy=["z0", "z2"], stack=STACKS)
    globs = [glob.replace("ID", planned[0].cell_id)]
    if found is None:
        with pytest.raises(ScenarioError, match=r"deepspeed==0\.17\.5"):
            select(planned, globs)
    else:
        assert [(e.cell.strategy, STACKS.index(e.stack)) for e in select(planned, globs)] == found


def test_select_by_model_path(tmp_path: Path) -> None:
    model = write(tmp_path / "mine" / "config.json", b'{"model_type": "llama"}').removesuffix("/config.json")
    planned = cells(model=["llama-tiny", model])
    assert select(planned, ["mine"]) == select(planned, [model]) == [planned[1]]


@pytest.mark.parametrize("glob", ["Z1", "z9", "z", "w", ""])
def test_select_nothing_lists_the_parts(glob: str) -> None:
    with pytest.raises(ScenarioError, match=r"no cell matches.*: bf16, gas1, llama-tiny, mbs1, s128, w1, w2, z1$"):
        select(cells(strategy="z1", world_size=[1, 2]), [glob])


def test_relative_paths_are_relative_to_the_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project" / "my-model").mkdir(parents=True)
    (tmp_path / "project" / "my-model" / "config.json").write_text(json.dumps(load_config("llama-tiny")))
    (tmp_path / "project" / "corpus.txt").write_text("some text")
    file = tmp_path / "project" / "cells.yaml"
    file.write_text(
        "matrix: {model: [./my-model, llama-small], strategy: [z0, z1]}\n"
        "exclude: [{model: ./my-model, strategy: z1}]\n"
        "data: {kind: text, path: corpus.txt}\n"
    )
    monkeypatch.chdir(tmp_path)
    offer = Resources(device="cpu", slots=4, memory_bytes=2**40, shared=True)
    _, planned = plan_file(file, offer)
    assert [(e.cell.model_name, e.cell.strategy) for e in planned] == [
        ("my-model", "z0"),
        ("llama-small", "z0"),
        ("llama-small", "z1"),
    ]
    monkeypatch.chdir("/")
    assert [e.cell.cell_id for e in plan_file(file, offer)[1]] == [e.cell.cell_id for e in planned]


def test_exclude_rules_see_the_accumulation_steps_that_follow_from_the_batch(tmp_path: Path) -> None:
    file = tmp_path / "cells.yaml"
    file.write_text(
        "matrix: {model: llama-tiny, strategy: z1, train_batch_size: [2, 8]}\n"
        "exclude: [{gradient_accumulation_steps: 8}]\n"
    )
    scenario, planned = plan_file(file, Resources(device="cpu", slots=4, memory_bytes=2**40, shared=True))
    assert [entry.cell.gradient_accumulation_steps for entry in planned] == [2]
    assert unused_rules(scenario) == []


def test_bytes_as_tokens_need_a_vocabulary_of_256(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(json.dumps(load_config("llama-tiny") | {"vocab_size": 100}))
    file = tmp_path / "cells.yaml"
    file.write_text("matrix: {model: ./m, strategy: z1}\ndata: {kind: text}\n")
    _, (entry,) = plan_file(file, Resources(device="cpu", slots=4, memory_bytes=2**40, shared=True))
    assert entry.skip_reason == "data.kind text needs a vocabulary of 256 bytes, m has 100"


@pytest.mark.parametrize(
    ("glob", "found"), [("z1", True), ("z1/w2", True), ("llama-tiny/z1", True), ("z1/mbs*", False), ("z", False)]
)
def test_a_glob_may_cover_several_parts_of_the_label(glob: str, found: bool) -> None:
    assert Cell(model="llama-tiny", strategy="z1", world_size=2).matches(glob) is found


def test_a_model_edited_after_planning_changes_neither_config_nor_id(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    file = tmp_path / "m" / "config.json"
    file.write_text(json.dumps(load_config("llama-tiny")))
    model = str(tmp_path / "m")
    (entry,) = plan(scenario(model=model, world_size=99), LARGE)
    file.write_text(json.dumps(load_config("llama-small")))
    record = refused(entry, 0, "cpu")
    assert record.cell_id == entry.cell_id != entry.cell.cell_id
    assert record.num_params == count_params(load_config("llama-tiny")).total  # type: ignore[union-attr]
    assert entry.config == load_config("llama-tiny")


# The largest batch that fits

MAX_CELL = {"train_micro_batch_size_per_gpu": "max"}
BUDGET = {"largest_batch": {"memory_gib": 2.0}}


def test_a_cell_whose_batch_is_searched_for_has_one_id_whatever_is_found() -> None:
    number, searched = cells(BUDGET, train_micro_batch_size_per_gpu=[1, "max"])
    assert searched.cell.label == "llama-tiny/z2/w1/mbsmax/gas1/s128/bf16"
    assert searched.cell.largest_batch is not None
    assert searched.cell.largest_batch.memory_bytes == 2**31
    found = searched.cell.model_copy(update={"train_micro_batch_size_per_gpu": 7})
    assert found.cell_id == searched.cell_id != number.cell_id
    assert found.train_batch_size == 7
    assert number.cell.largest_batch is None
    assert cells({"largest_batch": {"memory_gib": 3.0}}, **MAX_CELL)[0].cell_id != searched.cell_id
    assert select([number, searched], ["mbsmax"]) == [searched]


def test_on_cpu_the_budget_must_be_given_and_elsewhere_is_the_devices() -> None:
    with pytest.raises(ScenarioError, match=r"largest_batch\.memory_gib"):
        cells(**MAX_CELL)
    assert cells(mode="emulated", **MAX_CELL)[0].cell.largest_batch is not None
    gpus = Resources(device="cuda", slots=8, memory_bytes=2**36, shared=False)
    (entry,) = cells(resources=gpus, **MAX_CELL)
    assert entry.cell.largest_batch is not None
    assert entry.cell.largest_batch.memory_bytes is None


def test_a_fixed_global_batch_leaves_nothing_to_search_for() -> None:
    plain, searched = cells(BUDGET, train_micro_batch_size_per_gpu=[1, "max"], train_batch_size=8)
    assert plain.refused is None
    assert "train_batch_size 8 fixes the global batch" in (searched.skip_reason or "")


def test_rules_can_name_it() -> None:
    rules = BUDGET | {"exclude": [{"train_micro_batch_size_per_gpu": "max", "strategy": "z1"}]}
    found = cells(rules, strategy=["z1", "z2"], train_micro_batch_size_per_gpu=["max", 2])
    assert [c.label.split("/")[1:4:2] for c in found] == [["z1", "mbs2"], ["z2", "mbsmax"], ["z2", "mbs2"]]
    assert unused_rules(scenario(rules, strategy=["z1", "z2"], **MAX_CELL)) == []


def test_a_step_of_a_search_takes_longer_than_a_launch() -> None:
    known = History("cpu", {}, {}, {}, None, None, {}, None, None)
    number, searched = cells(BUDGET, train_micro_batch_size_per_gpu=[1, "max"])
    assert seconds(searched, known) == ASSUMED_TRIES * seconds(number, known)
