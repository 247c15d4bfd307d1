from typing import Any

import pytest

from bench.models import catalog
from bench.models.counts import count_params
from bench.models.modules import calls, modules, parameters

NARROW = {
    "vocab_size": 101,
    "hidden_size": 24,
    "intermediate_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"} | NARROW,
    "llama tied, biases, wide heads": {"model_type": "llama", "tie_word_embeddings": True, "head_dim": 10}
    | {"attention_bias": True, "mlp_bias": True}
    | NARROW,
    "mistral": {"model_type": "mistral", "sliding_window": 8} | NARROW,
    "qwen2 tied": {"model_type": "qwen2", "tie_word_embeddings": True} | NARROW,
    "mixtral": {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 2} | NARROW,
    "gpt2": {"model_type": "gpt2", "vocab_size": 101, "n_positions": 40, "n_embd": 24, "n_layer": 2, "n_head": 4},
    "gpt2 untied": {"model_type": "gpt2", "vocab_size": 101, "n_positions": 40, "n_embd": 24, "n_layer": 2}
    | {"n_head": 4, "n_inner": 30, "tie_word_embeddings": False},
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_tree_is_that_of_the_real_model_in_the_order_of_its_calls(config: dict[str, Any]) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    real = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    called: list[str] = []
    for name, module in real.named_modules():
        module.register_forward_pre_hook(lambda module, inputs, name=name: called.append(name))
    real(input_ids=torch.arange(16)[None], use_cache=False)

    tree = modules(config)
    assert tree is not None
    leaves = tuple(f"{module.name}." for module in calls(tree) if module.leaf)
    assert [module.name for module in calls(tree)] == [name for name in called if not name.startswith(leaves or "-")]
    assert [(p.name, p.numel, p.position, p.rows) for p in parameters(tree)] == [
        (name, parameter.numel(), position, parameter.shape[0])
        for position, (name, parameter) in enumerate(real.named_parameters())
    ]
    owners = {module.name: {p.name for p in module.parameters} for module in calls(tree)}
    names = {parameter: name for name, parameter in real.named_parameters()}
    for name, module in real.named_modules():
        if name in owners:
            assert owners[name] == {names[p] for p in module.parameters(recurse=name + "." in leaves)}


@pytest.mark.parametrize("name", catalog.names())
def test_the_tree_of_every_catalog_model_holds_all_its_parameters(name: str) -> None:
    config = catalog.load_config(name)
    tree, count = modules(config), count_params(config)
    assert tree is not None
    assert count is not None
    assert sum(parameter.numel for parameter in parameters(tree)) == count.total


@pytest.mark.parametrize("config", [{"model_type": "falcon"}, {"model_type": "gpt2", "add_cross_attention": True}])
def test_an_unknown_architecture_has_no_tree(config: dict[str, Any]) -> None:
    assert modules(config) is None
