"""What is trained: the tree of modules with adapters and frozen parameters, against the real models."""

from typing import Any

import pytest

from bench.cell import Cell
from bench.models.catalog import load_config
from bench.models.counts import count_params
from bench.models.modules import calls, parameters
from bench.models.training import count_trained, nothing_to_train, trained_modules
from bench.plan import Resources, plan
from bench.scenario import Freeze, Lora, Scenario
from bench.validity import settings, sharding
from bench.zero.memory import predict
from bench.zero.practice import practice
from bench.zero.theory import model_state_bytes, volumes, wire_bytes_per_step

PSI, ADAPTERS = 315_968, 37_376
WITH = PSI + ADAPTERS
CONFIG = load_config("llama-tiny")
LAST = Freeze(trainable=("model.layers.3.*", "lm_head*"))
MODELS = ("llama-tiny", "llama-tiny-tied", "gpt2-tiny")
OFFER = Resources(device="cpu", slots=8, memory_bytes=2**34, shared=True)


def real(name: str, lora: Lora | None, freeze: Freeze | None) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from bench.worker.training import choose_trained

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**load_config(name)))
    return choose_trained(model, lora, freeze), torch.arange(16)[None]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("target", ["all-linear", "one"])
def test_the_tree_has_the_adapters_of_the_real_model_and_says_what_carries_a_gradient(name: str, target: str) -> None:
    one = "attn.c_proj" if name == "gpt2-tiny" else "o_proj"
    compare(name, Lora(r=4, target_modules=(one if target == "one" else target,)), None)


def test_adapters_in_a_mixture_of_experts_are_not_predicted() -> None:
    assert trained_modules(load_config("mixtral-tiny"), Lora(), None) is None


@pytest.mark.parametrize(
    ("name", "globs"),
    [
        ("llama-tiny", ("lm_head*",)),
        ("llama-tiny", ("*.layers.1.*",)),
        ("llama-tiny", ("*norm*",)),
        ("llama-tiny-tied", ("*.k_proj.weight", "*.mlp.up_proj*")),
        ("gpt2-tiny", ("*.wpe.*", "*.mlp.c_fc.bias")),
        ("mixtral-tiny", ("*.gate.weight",)),
    ],
)
def test_a_frozen_model_says_what_carries_a_gradient(name: str, globs: tuple[str, ...]) -> None:
    compare(name, None, Freeze(trainable=globs))


def compare(name: str, lora: Lora | None, freeze: Freeze | None) -> None:
    """Hold tree and real model side by side: order of calls, parameters, what is trained, what carries a gradient."""
    model, ids = real(name, lora, freeze)
    called: list[str] = []
    carrying: dict[str, bool] = {}

    def note(module: Any, inputs: Any, output: Any, name: str) -> None:
        output = getattr(output, "loss", output)  # of the models; of the body its first
        output = getattr(output, "last_hidden_state", output)
        carrying[name] = (output[0] if isinstance(output, tuple) else output).requires_grad

    for each, module in model.named_modules():
        module.register_forward_pre_hook(lambda module, inputs, name=each: called.append(name))
        module.register_forward_hook(lambda module, inputs, output, name=each: note(module, inputs, output, name))
    model(input_ids=ids, labels=ids, use_cache=False)

    tree = trained_modules(load_config(name), lora, freeze)
    assert tree is not None
    inner = "" if lora is None else "base_model.model."
    leaves = tuple(f"{inner}{module.name}." for module in calls(tree) if module.leaf)
    order = [each for each in called if not each.startswith(leaves or "-")]
    names = [m.name if m.name in ("", "base_model", "base_model.model") else inner + m.name for m in calls(tree)]
    assert names == order
    found = [(inner + p.name, p.numel, p.trainable) for p in parameters(tree)]
    held = [(each.replace("base_layer.", ""), p.numel(), p.requires_grad) for each, p in model.named_parameters()]
    assert held == found
    assert {each: m.differentiable for each, m in zip(names, calls(tree), strict=True)} == {
        each: carrying[each] for each in order
    }


def test_the_counts_of_adapters() -> None:
    # Per layer: q and o 64 + 64, k and v 64 + 32, gate and up 64 + 176, down 176 + 64; times r, times 4 layers.
    by_hand = 4 * 8 * (2 * 128 + 2 * 96 + 3 * 240)
    found = count_trained(CONFIG, Lora(), None)
    assert by_hand == ADAPTERS
    assert found is not None
    assert (found.total, found.active, found.trained) == (WITH, WITH, ADAPTERS)
    assert count_trained(CONFIG, None, None) == count_params(CONFIG)
    assert count_trained(CONFIG, Lora(target_modules=("embed_tokens",)), None) is None  # peft can, the tree cannot


@pytest.mark.parametrize(
    ("matrix", "extra", "words"),
    [
        ({"finetuning": "freeze"}, {}, "needs to be told what is trained"),
        ({"finetuning": "lorra"}, {}, "did you mean 'lora'"),
        ({"activation_checkpointing": "non-reentrent"}, {}, "did you mean 'non-reentrant'"),
        ({}, {"lora": {"target_modules": ["all-linear", "q_proj"]}}, "all-linear stands alone"),
        ({}, {"lora": {"rank": 3}}, "unknown key 'lora.rank'"),
        ({}, {"freeze": {}}, "'freeze.trainable' is required"),
    ],
)
def test_a_mistake_is_named(matrix: dict[str, Any], extra: dict[str, Any], words: str) -> None:
    from bench.errors import ScenarioError
    from bench.scenario_file import parse_scenario

    with pytest.raises(ScenarioError) as caught:
        parse_scenario({"matrix": {"model": "llama-tiny", "strategy": "z1"} | matrix} | extra, "s.yaml")
    assert str(caught.value).startswith("s.yaml: ")
    assert words in str(caught.value)


def planned(matrix: dict[str, Any], **extra: Any) -> Any:
    axes = {"model": "llama-tiny", "strategy": "z1", "world_size": 2} | matrix
    return plan(Scenario.model_validate({"matrix": axes} | extra), OFFER)


def test_the_modes_are_axes_with_names_of_their_own() -> None:
    freeze = {"trainable": ["lm_head*"]}
    modes = {"finetuning": ["full", "lora", "freeze"], "activation_checkpointing": ["none", True, "reentrant"]}
    labels = [
        entry.label.removeprefix("llama-tiny/z1/w2/mbs1/gas1/s128/bf16") for entry in planned(modes, freeze=freeze)
    ]
    assert labels == [
        "", "/lora-r8", "/freeze",
        "/ckpt", "/ckpt/lora-r8", "/ckpt/freeze",
        "/ckpt-reentrant", "/ckpt-reentrant/lora-r8", "/ckpt-reentrant/freeze",
    ]  # fmt: skip


def test_settings_that_a_mode_does_not_use_change_no_id() -> None:
    (plain,) = planned({})
    for extra in ({"lora": {"r": 2}}, {"freeze": {"trainable": ["lm_head*"]}}):
        (entry,) = planned({"finetuning": "full"}, **extra)
        assert entry.cell_id == plain.cell_id
    (again,) = planned({"activation_checkpointing": "none"})
    assert again.cell_id == plain.cell_id
    words = planned({"activation_checkpointing": "non-reentrant"}), planned({"activation_checkpointing": True})
    assert words[0][0].cell_id == words[1][0].cell_id


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"lora": {"target_modules": ["q"]}}, "lora.target_modules: llama has no module 'q'"),
        (
            {"freeze": {"trainable": ["head"]}},
            "freeze.trainable: 'head' matches no parameter of llama (its first is model.embed_tokens.weight)",
        ),
    ],
)
def test_a_name_that_the_model_has_not_is_told_before_the_launch(extra: dict[str, Any], reason: str) -> None:
    (entry,) = planned({"finetuning": next(iter(extra))}, **extra)
    assert entry.refused == ("skipped", reason)
    assert nothing_to_train(CONFIG, Lora(target_modules=("self_attn.q_proj",)), None) is None


def test_theory_follows_the_trained_fraction() -> None:
    """2 psi + 14 psi_trained bytes; 2 psi_trained on the wire, or 2 psi + psi_trained."""
    (entry,) = planned({"finetuning": "lora", "strategy": "z2", "world_size": 4})
    assert entry.model_state_bytes == 2 * WITH + 14 * ADAPTERS / 4
    assert model_state_bytes(WITH, "z0", 4, "bf16", ADAPTERS) == 2 * WITH + 14 * ADAPTERS
    assert model_state_bytes(WITH, "z3", 4, "bf16", ADAPTERS) == (2 * WITH + 14 * ADAPTERS) / 4
    for strategy, elements in (("ddp", 2 * ADAPTERS), ("z1", 2 * ADAPTERS), ("z3", 2 * WITH + ADAPTERS)):
        assert wire_bytes_per_step(WITH, strategy, 4, "bf16", ADAPTERS) == elements * 2 * 3 / 4
    assert volumes(WITH, "z3", "bf16", ADAPTERS) == {
        ("forward", "all_gather_into_tensor"): 2 * WITH,
        ("backward", "all_gather_into_tensor"): 2 * WITH,
        ("backward", "reduce_scatter_tensor"): 2 * ADAPTERS,
    }


def cell(strategy: str, **changes: Any) -> Cell:
    return Cell(**{"model": "llama-tiny", "strategy": strategy, "world_size": 2, "lora": Lora()} | changes)


@pytest.mark.parametrize(
    ("strategy", "moved"),
    [
        ("z0", {("backward", "all_reduce"): 2 * ADAPTERS}),
        ("z1", {("backward", "all_reduce"): 2 * ADAPTERS, ("step", "all_gather_into_tensor"): 2 * ADAPTERS}),
        ("z2", {("backward", "all_reduce"): 2 * ADAPTERS, ("step", "all_gather_into_tensor"): 2 * ADAPTERS}),
    ],
)
def test_frozen_parameters_are_never_reduced_nor_gathered_below_stage_3(strategy: str, moved: Any) -> None:
    found = practice(cell(strategy), CONFIG, "gloo")
    assert found is not None
    assert {(row.phase, row.op): row.num_bytes for row in found.volumes} == moved


def test_stage_3_gathers_all_and_reduces_what_is_trained() -> None:
    names = ("prefetch_bucket_size", "max_live_parameters", "max_reuse_distance", "param_persistence_threshold")
    nothing_kept = {f"stage3_{name}": 0 for name in names}

    def moved(**changes: Any) -> dict[tuple[str, str], int]:
        found = practice(cell("z3", zero_optimization=nothing_kept, **changes), CONFIG, "gloo")
        assert found is not None
        return {(row.phase, row.op): row.num_bytes for row in found.volumes}

    # Nothing below the first layer's adapters has a backward: not the embedding, the first norm, its q, k and v.
    unused = 65_536 + 64 + 64 * (64 + 32 + 32)
    assert moved() == {
        ("forward", "all_gather_into_tensor"): 2 * WITH,
        ("backward", "all_gather_into_tensor"): 2 * (WITH - unused),
        ("backward", "reduce_scatter_tensor"): 2 * ADAPTERS,
    }
    # A frozen layer that recomputation has gathered stays for its backward (deepspeedai/DeepSpeed#8148), adapters go.
    again = moved(activation_checkpointing="reentrant")
    assert again["backward", "all_gather_into_tensor"] == 2 * (WITH + ADAPTERS)


def test_adapters_are_made_last_so_a_budget_for_what_persists_is_not_predicted() -> None:
    budget = {"stage3_model_persistence_threshold": 5_000}
    assert practice(cell("z3", zero_optimization=budget), CONFIG, "gloo") is None
    assert practice(cell("z3", zero_optimization=budget, lora=None), CONFIG, "gloo") is not None


@pytest.mark.parametrize(
    ("strategy", "held", "states"),
    [("z0", WITH, 12 * ADAPTERS + 4 * 56), ("z2", WITH, 6 * ADAPTERS + 4), ("z3", WITH // 2, 6 * ADAPTERS + 4)],
)
def test_memory_has_states_of_the_trained_alone(strategy: str, held: int, states: int) -> None:
    params = count_trained(CONFIG, Lora(), None)
    assert params is not None
    found = predict(cell(strategy, seq_length=32), CONFIG, params, "step")
    assert (found["parameters"], found["optimizer_states"]) == (2 * held, states)


def test_sharding_is_judged_by_what_is_trained() -> None:
    def held(states: int) -> dict[str, Any]:
        shards = {"parameters": WITH, "gradients": None, "optimizer_states": states}
        effective = {"num_trainable_params": ADAPTERS}
        return {"num_params": WITH, "num_tensors": 95, "effective": effective, "ranks": [{"shards": shards}] * 2}

    assert sharding.check(cell("z1"), held(3 * ADAPTERS // 2)) == []
    (found,) = sharding.check(cell("z1"), held(3 * ADAPTERS))
    assert "optimizer states, but they are not sharded: 112,128 of 112,128" in found.text


def test_what_runs_otherwise_than_asked_is_named() -> None:
    effective = {"finetuning": "lora", "lora_r": 4, "lora_alpha": 16.0, "lora_dropout": 0.0}
    effective |= {"activation_checkpointing": "non-reentrant"}
    texts = [found.text for found in settings.differences(cell("z1", activation_checkpointing="reentrant"), effective)]
    assert texts == [
        "asked for activation_checkpointing reentrant, the engine runs non-reentrant",
        "asked for lora_r 8, the engine runs 4",
    ]
