"""Which cells are emulated, on what, and under which names."""

import json

import pytest

from bench.cell import Cell, EmulatedRank
from bench.errors import ScenarioError, StoreError
from bench.plan import Resources, plan, repeats
from bench.quick import numbers, write_scenario
from bench.scenario import Scenario
from bench.scenario_file import load_scenario, parse_scenario
from bench.store import locked

TWO_SLOTS = Resources(device="cpu", slots=2, memory_bytes=2**30, shared=True)


def cells(emulation=None, resources=TWO_SLOTS, **matrix):
    content = {"matrix": {"model": "llama-tiny", "strategy": "z2", **matrix}, "emulation": emulation or {}}
    return plan(Scenario.model_validate(content), resources)


def test_auto_measures_where_there_are_slots_and_emulates_beyond():
    found = cells(mode="auto", world_size=[1, 2, 3, 64])
    assert [(each.cell.world_size, each.cell.provenance) for each in found] == [
        (1, "measured"),
        (2, "measured"),
        (3, "emulated"),
        (64, "emulated"),
    ]
    assert [each.skip_reason for each in found] == [None] * 4


def test_an_emulated_cell_needs_neither_slots_nor_memory():
    (cell,) = cells(mode="emulated", model="llama-3.1-70b", strategy="z0", world_size=1024)
    assert cell.skip_reason is None
    assert cell.cell.num_processes == 1
    (measured,) = cells(model="llama-2-7b", strategy="z0")
    assert measured.skip_reason.startswith("known misfit")


def test_both_modes_are_two_cells_and_the_same_cell_asked_for_twice_is_one():
    both = cells(mode=["measured", "emulated"])
    assert [each.cell.provenance for each in both] == ["measured", "emulated"]
    assert len({each.cell_id for each in both}) == 2
    assert len(cells(mode=["measured", "auto"])) == 1


@pytest.mark.parametrize(
    ("rank", "world_size", "expected"), [("first", 8, 0), ("middle", 8, 4), ("last", 8, 7), ("last", 1, 0), (5, 8, 5)]
)
def test_the_rank_is_settled_per_world_size(rank, world_size, expected):
    (cell,) = cells({"rank": rank}, mode="emulated", world_size=world_size)
    assert cell.cell.emulation.rank == expected
    assert cell.cell.emulation.position == (rank if isinstance(rank, str) else f"rank {rank}")
    assert cell.label.endswith("/emulated" + (f"/rank{expected}" if expected else ""))


def test_a_rank_that_does_not_exist_is_skipped_with_a_reason():
    few, many = cells({"rank": 5}, mode="emulated", world_size=[4, 8])
    assert few.skip_reason == "emulation.rank 5: the last of world_size 4 is 3"
    assert many.skip_reason is None


def test_nodes_follow_from_the_gpus_of_one():
    found = cells({"gpus_per_node": 8}, mode="emulated", world_size=[1, 8, 12, 1024])
    assert [each.cell.num_nodes for each in found] == [1, 1, 2, 128]
    (other,) = cells({"gpus_per_node": 8}, mode="emulated", world_size=8, num_nodes=2)
    assert other.skip_reason == "num_nodes 2: emulation.gpus_per_node 8 makes it 1"


def test_more_ranks_than_torch_can_count_are_skipped():
    (cell,) = cells(mode="emulated", world_size=5_000_000_000)
    assert cell.skip_reason == "world_size 5000000000 is above the 1,000,000 that are emulated"


def test_the_memory_is_the_catalogs_or_the_users_never_the_hosts():
    (catalog,) = cells({"gpu": "h200-sxm"}, mode="emulated")
    assert catalog.cell.emulation.gpu_memory_bytes == 141 * 2**30
    (own,) = cells({"gpu": "H200 SXM", "gpu_memory_gib": 24.5}, mode="emulated")
    assert own.cell.emulation.gpu_memory_bytes == int(24.5 * 2**30)
    (host,) = cells(mode="emulated", resources=TWO_SLOTS.model_copy(update={"memory_bytes": 1}))
    assert host.cell_id == cells(mode="emulated")[0].cell_id


def test_what_is_never_timed_is_of_no_emulated_cells_id():
    content = {"matrix": {"model": "llama-tiny", "strategy": "z2", "mode": "emulated"}}
    usual, other = (
        plan(Scenario.model_validate(content | times), TWO_SLOTS)[0] for times in ({}, {"steps": 3, "warmup_steps": 1})
    )
    assert usual.cell_id == other.cell_id
    assert usual.cell.total_steps == 5  # the counting pass alone


def test_an_emulated_cell_is_computed_once_however_often_others_are_repeated():
    scenario = Scenario.model_validate(
        {"matrix": {"model": "llama-tiny", "strategy": "z2", "mode": ["measured", "emulated"]}, "repeat": 3}
    )
    assert [repeats(each, scenario) for each in plan(scenario, TWO_SLOTS)] == [3, 1]


def test_the_ids_of_emulated_cells_stay():
    cell = Cell(model="llama-tiny", strategy="z2", world_size=64, num_nodes=8, emulation=EmulatedRank())
    assert cell.cell_id == "54c522c8022d"
    assert cell.cell_id != cell.model_copy(update={"emulation": None}).cell_id
    assert cell.cell_id != cell.model_copy(update={"emulation": EmulatedRank(accelerator_path="cpu")}).cell_id


def test_experts_are_set_only_where_there_are_some():
    content = {"matrix": {"model": ["llama-tiny", "mixtral-tiny"], "strategy": "z2"}, "experts_implementation": "eager"}
    found = plan(Scenario.model_validate(content), TWO_SLOTS)
    assert [each.cell.experts_implementation for each in found] == [None, "eager"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"emulation": {"gpu": "H300"}}, ["emulation.gpu", "unknown GPU 'H300'", "H200 SXM"]),
        ({"emulation": {"rank": "lst"}}, ["emulation.rank", "'first', 'middle', 'last' or a whole number from 0"]),
        ({"emulation": {"rank": -1}}, ["emulation.rank", "-1"]),
        ({"emulation": {"rank": True}}, ["emulation.rank", "True"]),
        ({"emulation": {"gpus_per_nod": 8}}, ["emulation.gpus_per_nod", "did you mean 'gpus_per_node'"]),
        ({"emulation": {"accelerator_path": "cuda"}}, ["emulation.accelerator_path", "'cuda-like' or 'cpu'"]),
        ({"emulation": {"gpu_memory_gib": 0}}, ["emulation.gpu_memory_gib"]),
        ({"optimizer": {"implementation": "for-each"}}, ["optimizer.implementation", "did you mean 'foreach'"]),
    ],
)
def test_a_wrong_setting_is_named_with_the_remedy(content, words):
    with pytest.raises(ScenarioError) as caught:
        parse_scenario({"matrix": {"model": "llama-tiny", "strategy": "z2"}} | content, "my.yaml")
    for word in ["my.yaml: ", *words]:
        assert word in str(caught.value)


def test_a_quick_answer_leaves_the_scenario_that_it_stands_for(tmp_path):
    path = write_scenario(
        tmp_path,
        matrix={"model": ["gpt2", "llama-2-7b"], "strategy": ["z3"], "world_size": [8], "seq_length": None},
        emulation={"rank": "last", "gpu_memory_gib": None},
        optimizer={"implementation": "fused"},
    )
    assert path == tmp_path / "emulate.yaml"
    scenario = load_scenario(path)
    assert scenario.matrix.mode == ("emulated",)
    assert scenario.matrix.seq_length == (1024,)  # gpt2 takes no more
    assert (scenario.emulation.rank, scenario.optimizer.implementation) == ("last", "fused")


def test_a_model_of_ones_own_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 96}))
    path = write_scenario(tmp_path / "runs", matrix={"model": ["./mine.json"], "strategy": ["z1"]}, emulation={})
    scenario = load_scenario(path)
    assert scenario.matrix.model == (str(tmp_path / "mine.json"),)
    assert scenario.matrix.seq_length == (96,)


def test_a_call_that_is_still_running_keeps_its_scenario(tmp_path):
    first = write_scenario(tmp_path, matrix={"model": ["gpt2"], "strategy": ["z1"]}, emulation={})
    before = first.read_text()
    with locked(tmp_path / "emulate"), pytest.raises(StoreError, match="another zerostage run"):
        write_scenario(tmp_path, matrix={"model": ["gpt2"], "strategy": ["z2"]}, emulation={})
    assert first.read_text() == before


def test_lists_of_numbers_are_checked():
    assert numbers("--gpus", "8, 64") == [8, 64]
    with pytest.raises(ScenarioError, match="--gpus: whole numbers with commas between are needed"):
        numbers("--gpus", "8;64")
