"""The configurations that projects ship, and what becomes of each."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.configs import Context, read_configs, resolve
from bench.errors import ScenarioError

ROOT = Path(__file__).parents[2]
FACTORY = ROOT / "scenarios" / "llama_factory"
DATA = ROOT / "tests" / "data" / "configs"
# A model of hidden size 3584 (Qwen2.5-7B) on 4 ranks.
ASKED = Context(3584, 4, "bf16", 2, None, None, lr=1e-3, weight_decay=0.01, gradient_clipping=1.0, deepspeed="0.19.8")
LOW = {
    "allgather_bucket_size": 500_000_000,
    "allgather_partitions": True,
    "contiguous_gradients": True,
    "overlap_comm": False,
    "reduce_bucket_size": 500_000_000,
    "reduce_scatter": True,
    "round_robin_gradients": True,
}
STAGE_3 = {
    "contiguous_gradients": True,
    "overlap_comm": False,
    "reduce_bucket_size": 12_845_056,
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
    "stage3_param_persistence_threshold": 35_840,
    "stage3_prefetch_bucket_size": 11_560_550,
    "sub_group_size": 1_000_000_000,
}
CPU = {"device": "cpu", "pin_memory": True}


def one(path):
    (config,) = read_configs(path)
    return config


def resolved(path, **asked):
    return resolve(one(path), replace(ASKED, **asked))


@pytest.mark.parametrize(
    ("name", "strategy", "zero"),
    [
        ("z0", "z0", LOW),
        ("z1", "z1", LOW),
        ("z2", "z2", LOW),
        ("z2_offload", "z2", LOW | {"offload_optimizer": CPU}),
        ("z3", "z3", STAGE_3),
        ("z3_offload", "z3", STAGE_3 | {"offload_optimizer": CPU, "offload_param": CPU}),
        ("z3_fp8", "z3", STAGE_3 | {"offload_optimizer": {"device": "cpu", "pin_memory": False}}),
    ],
)
def test_llama_factory(name, strategy, zero):
    found = resolved(FACTORY / f"ds_{name}_config.json")
    assert (found.strategy, found.zero_optimization, found.impossible) == (strategy, zero, None)
    assert found.settings == {
        "dtype": "bf16",
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "train_batch_size": 8,
    }
    assert found.optimizer == {"lr": 1e-3, "weight_decay": 0.01, "gradient_clipping": 1.0}
    assert found.deepspeed == {}


def test_all_of_llama_factory_is_tested():
    assert len(list(FACTORY.glob("*.json"))) == 7


def test_each_auto_is_explained_with_its_formula():
    notes = resolved(FACTORY / "ds_z3_config.json", hidden_size=4096).notes
    assert [note for note in notes if "as transformers resolves it" in note] == [
        "reduce_bucket_size auto -> 16,777,216 = 4096 x 4096, as transformers resolves it",
        "stage3_prefetch_bucket_size auto -> 15,099,494 = int(0.9 x 4096 x 4096), as transformers resolves it",
        "stage3_param_persistence_threshold auto -> 40,960 = 10 x 4096, as transformers resolves it",
    ]


def test_a_model_without_a_hidden_size_lists_every_key_that_needs_it():
    with pytest.raises(ScenarioError) as error:
        resolved(FACTORY / "ds_z3_config.json", hidden_size=None)
    assert str(error.value) == (
        "ds_z3_config.json: 'auto' cannot be resolved here (the model's hidden size is unknown): "
        "zero_optimization.reduce_bucket_size, zero_optimization.stage3_prefetch_bucket_size, "
        "zero_optimization.stage3_param_persistence_threshold; write the values into the file"
    )


def test_stage_0_names_what_it_ignores():
    notes = resolved(FACTORY / "ds_z0_config.json").notes
    (ignored,) = [note for note in notes if "no effect at z0" in note]
    assert all(key in ignored for key in LOW)
    assert any("BF16_Optimizer there" in note and "this release does not" in note for note in notes)
    old = resolved(FACTORY / "ds_z0_config.json", deepspeed="0.16.4").notes
    assert any("this release is one of them" in note for note in old)
    assert not any("BF16_Optimizer" in note for note in resolved(FACTORY / "ds_z0_config.json", dtype="fp16").notes)


def test_a_device_of_none_is_no_offload():
    found = resolved(DATA / "swift_zero1.json")
    assert found.strategy == "z1"
    assert "offload_optimizer" not in found.zero_optimization
    assert found.zero_optimization["reduce_bucket_size"] == 200_000_000


def test_a_loss_scale_of_2_to_the_32_is_warned_of_where_it_counts():
    found = resolved(DATA / "axolotl_zero1.json", dtype="fp16")
    assert found.deepspeed == {"fp16": {"enabled": True, "initial_scale_power": 32}}
    assert any("skipped" in note and "#931" in note and "#14531" in note for note in found.notes)
    assert not any("skipped" in note for note in resolved(DATA / "axolotl_zero1.json").notes)


@pytest.mark.parametrize("stage", [0, 1])
def test_a_file_of_two_lines(stage):
    found = resolved(DATA / f"hf_zero{stage}.json")
    assert (found.strategy, found.zero_optimization, found.deepspeed) == (f"z{stage}", {}, {})
    assert found.settings["dtype"] == "bf16"
    unasked = resolved(DATA / f"hf_zero{stage}.json", dtype=None)
    assert unasked.settings["dtype"] == "fp32"
    assert any("fp32, DeepSpeed's default" in note for note in unasked.notes)


def test_bf16_at_stage_0_with_a_fixed_total():
    found = resolved(DATA / "bigscience_bf16_stage0.json", train_micro_batch_size_per_gpu=None)
    assert found.strategy == "z0"
    assert found.settings == {
        "dtype": "bf16",
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 256,
        "train_batch_size": 2048,
    }
    assert "gradient_accumulation_steps -> 256, for train_batch_size 2048 on 4 ranks" in found.notes


def test_the_total_of_a_file_must_divide():
    found = resolved(DATA / "bigscience_bf16_stage0.json", world_size=3)
    assert found.impossible == (
        "batch triple impossible: train_batch_size 2048 = train_micro_batch_size_per_gpu 2 x "
        "gradient_accumulation_steps a whole number x world_size 3 does not hold"
    )


def test_a_heredoc_with_variables_names_the_first():
    with pytest.raises(ScenarioError) as error:
        read_configs(DATA / "heredoc.json")
    assert str(error.value) == (
        f"{DATA / 'heredoc.json'}: line 2: the placeholder $MICRO_BATCH_SIZE is not filled in; this is a "
        "template: fill it in before the suite reads it"
    )


def test_a_jinja_template_names_its_placeholder():
    with pytest.raises(ScenarioError, match=r"line 3: the placeholder \{%- if zero_stage == 3 %\} is not filled in"):
        read_configs(DATA / "deepcompile_template.yaml.j2")


def test_a_list_of_stages_is_one_configuration_each():
    two, three = read_configs(DATA / "autotuner_stages.json")
    assert (two.name, three.name) == ("autotuner_stages-stage2", "autotuner_stages-stage3")
    assert two.source == three.source == "autotuner_stages.json"
    two, three = resolve(two, ASKED), resolve(three, ASKED)
    assert (two.strategy, three.strategy) == ("z2", "z3")
    nvme = {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": True, "buffer_count": 4, "fast_init": False}
    assert two.zero_optimization == {"offload_optimizer": nvme}
    assert any("offload_param is set and has no effect at z2" in note for note in two.notes)
    assert three.zero_optimization == {
        "offload_optimizer": nvme,
        "offload_param": {
            "device": "nvme",
            "nvme_path": "/local_nvme",
            "pin_memory": True,
            "buffer_count": 5,
            "buffer_size": 100_000_000,
            "max_in_cpu": 1_000_000_000,
        },
    }
    assert three.deepspeed["aio"]["thread_count"] == 1


def test_accelerate_with_a_stage():
    config = one(DATA / "accelerate_stage.yaml")
    assert config.settings == {"dtype": "bf16", "world_size": 16, "num_nodes": 2}
    found = resolve(config, replace(ASKED, dtype=None))
    assert (found.strategy, found.zero_optimization) == ("z3", {"offload_optimizer": {"device": "cpu"}})
    assert found.settings["gradient_accumulation_steps"] == 4
    assert found.settings["dtype"] == "bf16"
    assert found.optimizer["gradient_clipping"] == 0.5


def test_accelerate_with_a_file():
    config = one(DATA / "accelerate_file.yaml")
    assert config.source == "accelerate_file.yaml: swift_zero1.json"
    assert config.settings == {"world_size": 4, "num_nodes": 1}
    assert resolve(config, ASKED).strategy == "z1"


def test_accelerate_with_both_is_refused_as_accelerate_does():
    with pytest.raises(
        ScenarioError, match=r"deepspeed_config_file together with deepspeed_config\.zero_stage, mixed_pr"
    ):
        read_configs(DATA / "accelerate_conflict.yaml")


def test_llama_factory_arguments():
    config = one(DATA / "llama_factory_sft.yaml")
    assert config.settings == {
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "finetuning": "full",
        "seq_length": 2048,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "lr": 1e-5,
        "dtype": "bf16",
    }
    assert any("recomputes activations" in note for note in config.notes)
    found = resolve(config, replace(ASKED, dtype="fp16", gradient_accumulation_steps=8))
    assert (found.strategy, found.zero_optimization) == ("z3", STAGE_3)
    assert found.settings == {
        "dtype": "bf16",
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "train_batch_size": 8,
    }
    assert "gradient_accumulation_steps 2 is the configuration's, over the scenario's 8" in found.notes
    assert found.optimizer["lr"] == 1e-5
    assert "lr 1e-05 is the configuration's, over the scenario's 0.001" in found.notes
    assert "bf16 is the configuration's, over the scenario's fp16" in found.notes


def test_axolotl_arguments():
    assert one(DATA / "axolotl.yml").settings == {
        "model": "NousResearch/Llama-3.2-1B",
        "finetuning": "lora",
        "seq_length": 4096,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 8,
        "lr": 2e-4,
        "weight_decay": 0.0,
        "dtype": "bf16",
        "activation_checkpointing": "reentrant",
    }


def test_trainer_arguments_with_a_section_of_their_own():
    config = one(DATA / "trainer_args.json")
    assert config.settings["activation_checkpointing"] == "non-reentrant"
    assert config.settings["model"] == "gpt2"
    found = resolve(config, replace(ASKED, dtype=None, train_micro_batch_size_per_gpu=None))
    assert found.zero_optimization == {"reduce_bucket_size": 12_845_056}
    assert any(note.startswith("stage3_prefetch_bucket_size auto: transformers resolves it at") for note in found.notes)
    assert found.settings == {
        "dtype": "bf16",
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "train_batch_size": 32,
    }
    assert found.optimizer == {"lr": 3e-5, "weight_decay": 0.1, "gradient_clipping": 0.5}


def test_a_path_is_beside_the_file_before_it_is_in_the_working_directory(tmp_path, monkeypatch):
    for folder, stage in (("beside", 1), ("here", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "ds.json").write_text(f'{{"zero_optimization": {{"stage": {stage}}}}}')
    arguments = tmp_path / "beside" / "train.yaml"
    arguments.write_text("deepspeed: ds.json\n")
    monkeypatch.chdir(tmp_path / "here")
    assert resolved(arguments).strategy == "z1"
    (tmp_path / "beside" / "ds.json").unlink()
    assert resolved(arguments).strategy == "z2"


def test_a_mistake_in_the_file_that_is_pointed_to_names_both(tmp_path):
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 7}}')
    (tmp_path / "train.yaml").write_text("deepspeed: ds.json\n")
    with pytest.raises(ScenarioError) as error:
        resolved(tmp_path / "train.yaml")
    assert str(error.value) == "train.yaml: ds.json: 'zero_optimization.stage' takes 0, 1, 2 or 3 (got 7)"


def test_a_variable_counts_only_where_it_is_read(tmp_path):
    path = tmp_path / "train.yaml"
    path.write_text("deepspeed: {zero_optimization: {stage: 2}}\noutput_dir: ${OUT}\nmicro_batch_size: 2\n")
    assert one(path).settings == {"train_micro_batch_size_per_gpu": 2}
    path.write_text("deepspeed: {zero_optimization: {stage: 2}}\nmicro_batch_size: $MBS\n")
    with pytest.raises(ScenarioError, match=r"'micro_batch_size': the placeholder \$MBS is not filled in"):
        read_configs(path)
