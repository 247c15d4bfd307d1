"""What each rank should hold, against numbers worked out by hand for llama-tiny (psi = 315,968)."""

import pytest

from bench.cell import Cell
from bench.models import catalog
from bench.models.activations import activation_bytes, logits_loss_bytes
from bench.models.counts import count_params
from bench.models.modules import tensor_sizes
from bench.zero.memory import CATEGORIES, POINTS, predict

PSI = 315_968
CONFIG = catalog.load_config("llama-tiny")
COUNTERS = 4 * 39  # Adam's step counters: 39 tensors


def expected(point: str, strategy: str, rank: int = 0, model: str = "llama-tiny", **settings):
    settings = {"world_size": 2, "seq_length": 32, "train_micro_batch_size_per_gpu": 2} | settings
    cell = Cell(model=model, strategy=strategy, **settings)
    config = catalog.load_config(model)
    return predict(cell, config, count_params(config), point, rank)


def states(point: str, strategy: str, **settings) -> list[float]:
    found = expected(point, strategy, **settings)
    return [found["parameters"], found.get("gradients"), found["optimizer_states"]]


@pytest.mark.parametrize("name", catalog.names())
def test_tensor_sizes_are_those_of_the_real_model(name):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = catalog.load_config(name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    assert tensor_sizes(config) == [parameter.numel() for parameter in model.parameters()]


@pytest.mark.parametrize("key", ["attention_bias", "mlp_bias"])
def test_tensor_sizes_sum_to_the_count_with_biases(key):
    config = CONFIG | {key: True}
    assert sum(tensor_sizes(config)) == count_params(config).total


@pytest.mark.parametrize(
    ("strategy", "init", "backward"),
    [
        # z0's wrapper takes a step when it is built, so its moments exist at init; ddp's do not.
        ("ddp", [2 * PSI, None, 4 * PSI], [2 * PSI, 2 * PSI, 12 * PSI + COUNTERS]),
        ("z0", [2 * PSI, 0, 12 * PSI + COUNTERS], [2 * PSI, 2 * PSI, 12 * PSI + COUNTERS]),
        # Rank 0's half ends 32 elements into a q_proj of 4,096 elements, which it holds whole: 162,048 elements.
        ("z1", [2 * PSI, 0, 2 * PSI], [2 * PSI, 2 * 162_048, 6 * PSI + 4]),
        ("z2", [2 * PSI, 0, 2 * PSI], [2 * PSI, 2 * 162_048, 6 * PSI + 4]),
        ("z3", [PSI, PSI, 2 * PSI], [PSI, PSI, 6 * PSI + 4]),
    ],
)
def test_states_in_16_bit_on_two_ranks(strategy, init, backward):
    assert states("init", strategy) == init
    assert states("backward", strategy) == backward


def test_rank_1_holds_the_rest_of_the_tensor_that_the_halves_share():
    assert expected("backward", "z2", rank=1)["gradients"] == 2 * (PSI - 157_952)


@pytest.mark.parametrize(
    ("strategy", "optimizer"), [("z0", 8 * PSI + COUNTERS), ("z1", 6 * PSI + 4), ("z3", 6 * PSI + 4)]
)
def test_fp32_shards_keep_a_master_copy_and_whole_parameters_do_not(strategy, optimizer):
    assert expected("step", strategy, dtype="fp32")["optimizer_states"] == optimizer


def test_padding_to_the_ranks():
    """Stages 1 and 2 pad the whole to a multiple of 2 N, stage 3 every tensor to one of N."""
    assert expected("init", "z1", world_size=7)["parameters"] == 2 * 315_980  # 14 x 22,570
    by_tensor = sum(-(-size // 7) for size in tensor_sizes(CONFIG))
    assert expected("init", "z3", world_size=7)["parameters"] == 2 * by_tensor > 2 * PSI / 7


def test_gradients_while_they_accumulate():
    at = {
        name: expected("forward", name, gradient_accumulation_steps=2)["gradients"]
        for name in ("ddp", "z0", "z1", "z2")
    }
    assert at == {"ddp": 4 * PSI, "z0": 2 * PSI, "z1": 2 * PSI, "z2": 2 * 162_048}
    assert expected("forward", "z1")["gradients"] == 0


def test_temporaries_of_the_update():
    # The output embedding is the largest tensor; of the norm before it one temporary is still there.
    assert expected("step", "z0")["step_temporaries"] == 4 * PSI + 8 * 65_536 + 4 * 64
    assert expected("step", "z1")["step_temporaries"] == 12 * PSI / 2


@pytest.mark.parametrize(
    ("sub_group_size", "groups", "largest"),
    [
        (0, 39, 32_768),  # half of the embedding; 0 acts like 1: each tensor is a group
        (1, 39, 32_768),
        # The last three norms (32 each) begin a group that the output embedding fills.
        (1000, None, 32_864),
        (PSI, 1, PSI // 2),
    ],
)
def test_stage_3_updates_in_groups_that_cut_no_tensor(sub_group_size, groups, largest):
    zero = {"zero_optimization": {"sub_group_size": sub_group_size}}
    found = expected("step", "z3", **zero)
    assert found["step_temporaries"] == 12 * largest
    if groups:
        assert found["optimizer_states"] == 6 * PSI + 4 * groups


def test_stage_3_buffers():
    zero = {
        "reduce_bucket_size": 50_000,
        "stage3_param_persistence_threshold": 64,
        "stage3_max_live_parameters": 100_000,
    }
    found = expected("forward", "z3", zero_optimization=zero)
    assert found["zero_buckets"] == 100_000
    assert found["persisted_parameters"] == 2 * 9 * 64  # the norms
    assert found["gathered_parameters"] == 200_000
    assert (
        expected("forward", "z3")["gathered_parameters"] + expected("forward", "z3")["persisted_parameters"] == 2 * PSI
    )
    assert expected("step", "z3", zero_optimization=zero)["persisted_parameters"] == 0


def test_llama_activations_by_hand():
    """h 64, Q 64, K 32, f 176, a 4: in bf16 2,840 bytes per token and layer, final norm 516, rotary 2 x 2 x 16."""
    assert activation_bytes(CONFIG, 2, 32, 2, False) == 64 * (4 * 2840 + 516) + 32 * 64
    assert activation_bytes(CONFIG, 2, 32, 4, False) == 64 * (4 * 5144 + 772) + 32 * 128
    assert activation_bytes(CONFIG, 2, 32, 2, True) == 64 * (4 * 128 + 516) + 32 * (64 + 8)


def test_llama_3_1_8b_activations_per_token_and_layer():
    """200,840 bytes: 24.5 copies of the hidden state in bf16."""
    config = catalog.load_config("llama-3.1-8b")
    one, two = (activation_bytes(config | {"num_hidden_layers": layers}, 1, 1, 2, False) for layers in (1, 2))
    assert two - one == 200_840


def test_gpt2_activations_by_hand():
    config = catalog.load_config("gpt2-tiny")
    assert activation_bytes(config, 2, 32, 2, False) == 64 * (4 * 3608 + 260) + 32 * 8
    assert activation_bytes(config, 2, 32, 4, False) == 64 * (4 * 7200 + 520) + 32 * 8
    assert activation_bytes(config | {"resid_pdrop": 0.1}, 2, 32, 2, False) is None
    assert activation_bytes(config | {"activation_function": "relu"}, 2, 32, 2, False) is None


def test_logits_and_loss():
    assert logits_loss_bytes(CONFIG, 2, 32, at_peak=False) == 64 * (4 * 1024 + 8) + 8
    assert logits_loss_bytes(CONFIG, 2, 32, at_peak=True) == 64 * 12 * 1024 + 4


def test_the_peak_is_where_most_is_held():
    small = {"zero_optimization": {"reduce_bucket_size": 1000}}
    assert expected("peak", "z2", **small)["step_temporaries"] == 6 * PSI
    assert expected("peak", "z2", seq_length=512, **small)["logits_loss"] == 1024 * 12 * 1024 + 4
    assert expected("peak", "z2")["zero_buckets"] == 1_000_000_000  # DeepSpeed's default


def test_a_family_without_formula_has_fewer_categories_and_no_peak():
    found = expected("forward", "z0", model="mixtral-tiny")
    assert found["parameters"] == 2 * count_params(catalog.load_config("mixtral-tiny")).total
    assert "activations" not in found
    assert expected("peak", "z0", model="mixtral-tiny") == {}
    halves = sum(-(-size // 2) for size in tensor_sizes(catalog.load_config("mixtral-tiny")))
    assert expected("init", "z3", model="mixtral-tiny")["parameters"] == 2 * halves


@pytest.mark.parametrize("strategy", ["ddp", "z0", "z1", "z2", "z3"])
def test_every_category_is_one_of_the_list(strategy):
    for point in POINTS:
        found = expected(point, strategy)
        assert set(found) <= set(CATEGORIES)
        assert all(size >= 0 for size in found.values())
