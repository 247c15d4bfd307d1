import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bench.errors import ScenarioError
from bench.models import catalog
from bench.models.counts import FLOPS_CONVENTION, count_params, flops_per_token, palm_flops_per_token

# Total parameters as the models' own pages state them (safetensors metadata, or the sum over the weights).
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "llama-3.2-1b": 1_235_814_400,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
}
TEST_SIZES = {"gpt2-tiny", "llama-small", "llama-tiny", "llama-tiny-tied", "mixtral-tiny"}


def parameters_of_real_model(config: dict[str, Any]) -> tuple[int, int]:
    """Total and input-embedding parameters of the model that transformers builds, without its memory."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    # parameters() gives a tied table once.
    total = sum(parameter.numel() for parameter in model.parameters())
    positions = sum(p.numel() for name, p in model.named_parameters() if name.endswith("wpe.weight"))
    return total, model.get_input_embeddings().weight.numel() + positions


def write_config(folder: Path, text: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(text)
    return str(folder)


def test_catalog_holds_the_test_sizes_and_the_published_models() -> None:
    assert catalog.names() == sorted(TEST_SIZES | PUBLISHED.keys())


@pytest.mark.parametrize("name", catalog.names())
def test_count_matches_the_real_model(name: str) -> None:
    config = catalog.load_config(name)
    params = count_params(config)
    assert params is not None
    assert (params.total, params.embedding) == parameters_of_real_model(config)


@pytest.mark.parametrize(("name", "total"), PUBLISHED.items())
def test_count_matches_the_published_total(name: str, total: int) -> None:
    params = count_params(catalog.load_config(name))
    assert params is not None
    assert params.total == total


@pytest.mark.parametrize("name", catalog.names())
def test_transformers_keeps_every_key_of_the_config(name: str) -> None:
    from transformers import AutoConfig

    config = catalog.load_config(name)
    read = AutoConfig.for_model(**config)
    rope = getattr(read, "rope_parameters", None) or {}
    assert rope.get("rope_theta") == config.pop("rope_theta", None)
    assert (config.pop("rope_scaling", None) or {}).items() <= rope.items()
    if not config.get("use_sliding_window", True):
        config.pop("sliding_window")  # transformers clears a window that is off
    assert {key: getattr(read, key) for key in config} == config


@pytest.mark.parametrize("name", ["gpt2", "gpt2-medium", "gpt2-tiny"])
def test_gpt2_has_no_dropout(name: str) -> None:
    config = catalog.load_config(name)
    assert [config[key] for key in ("attn_pdrop", "embd_pdrop", "resid_pdrop")] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gpt2", "n_inner": 100, "tie_word_embeddings": False},
        {"model_type": "gpt2", "hidden_size": 96, "num_hidden_layers": 3, "max_position_embeddings": 32},
        {"model_type": "llama"},
        {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "head_dim": 64},
        {"model_type": "mistral"},
        {"model_type": "mistral", "num_key_value_heads": 4, "head_dim": 160},
        {"model_type": "qwen2", "num_key_value_heads": None},
        {"model_type": "qwen2"},
        {"model_type": "qwen2", "head_dim": 64, "num_key_value_heads": 4, "tie_word_embeddings": True},
        {"model_type": "mixtral"},
        {"model_type": "mixtral", "num_experts": 3, "head_dim": 64, "tie_word_embeddings": True},
    ],
    ids=str,
)
def test_defaults_biases_and_head_size_match_the_real_model(config: dict[str, Any]) -> None:
    params = count_params(config)
    assert params is not None
    assert (params.total, params.embedding) == parameters_of_real_model(config)


def test_dense_model_uses_every_parameter() -> None:
    params = count_params(catalog.load_config("llama-tiny"))
    assert params is not None
    assert params.active == params.total


@pytest.mark.parametrize(
    ("name", "idle_expert_weights"),
    # layers x experts left out x (gate, up and down)
    [("mixtral-tiny", 2 * 2 * (3 * 64 * 176)), ("mixtral-8x7b", 32 * 6 * (3 * 4096 * 14336))],
)
def test_mixture_counts_only_the_chosen_experts_as_active(name: str, idle_expert_weights: int) -> None:
    params = count_params(catalog.load_config(name))
    assert params is not None
    assert params.active == params.total - idle_expert_weights


def test_mixtral_active_is_the_published_13b() -> None:
    params = count_params(catalog.load_config("mixtral-8x7b"))
    assert params is not None
    assert params.active == pytest.approx(12.9e9, rel=0.005)


@pytest.mark.parametrize("config", [{"model_type": "mamba"}, {}, {"model_type": ["gpt2"]}])
def test_unknown_family_gives_none(config: dict[str, Any]) -> None:
    assert count_params(config) is None
    assert flops_per_token(config, 128) is None


def test_cross_attention_gives_none() -> None:
    config = {**catalog.load_config("gpt2-tiny"), "add_cross_attention": True}
    assert count_params(config) is None
    assert flops_per_token(config, 128) is None


@pytest.mark.parametrize("size", ["64", 0, -64, 64.0, True, None])
def test_size_that_is_no_positive_whole_number_is_refused(size: object) -> None:
    config = {**catalog.load_config("llama-tiny"), "hidden_size": size}
    with pytest.raises(ScenarioError, match="hidden_size must be a positive whole number"):
        count_params(config)


# Rows of github.com/mosaicml/llm-foundry, scripts/train/benchmarking/README.md: parameters, layers, width,
# sequence length, tokens per second and GPU, and the model FLOP per second and GPU that it states.
@pytest.mark.parametrize(
    ("params", "layers", "width", "seq_length", "tokens_per_second", "published"),
    [
        (6_658_859_008, 32, 4096, 2048, 10_643, 4.595096e14),  # 7b, 8 x H100
        (6_658_859_008, 32, 4096, 2048, 4_641, 2.003836e14),  # 7b, 8 x A100 80GB
        (6_918_905_856, 32, 4096, 65_536, 1_956, 2.829422e14),  # 7b, 8 x H100, attention dominates
        (12_853_954_560, 40, 5120, 2048, 4_800, 3.943653e14),  # 13b, 64 x H100
        (29_975_214_080, 48, 7168, 2048, 2_308, 4.346371e14),  # 30b, 32 x H100
    ],
)
def test_flops_reproduce_published_rows(
    params: int, layers: int, width: int, seq_length: int, tokens_per_second: int, published: float
) -> None:
    flops = palm_flops_per_token(params, layers, width, seq_length) * tokens_per_second
    assert flops == pytest.approx(published, rel=0.001)


def test_flops_of_a_config_by_hand() -> None:
    assert FLOPS_CONVENTION == "palm"
    gpt2 = 6 * 124_439_808 + 12 * 12 * 768 * 1024
    assert flops_per_token(catalog.load_config("gpt2"), 1024) == gpt2
    # Grouped keys do not shrink the attention square, and only active experts count.
    mixtral = 6 * (46_702_792_704 - 32 * 6 * 3 * 4096 * 14336) + 12 * 32 * 4096 * 4096
    assert flops_per_token(catalog.load_config("mixtral-8x7b"), 4096) == mixtral


def test_flops_take_the_head_size_from_the_config() -> None:
    config = {**catalog.load_config("llama-tiny"), "head_dim": 32}
    params = count_params(config)
    assert params is not None
    assert flops_per_token(config, 128) == 6 * params.active + 12 * 4 * (4 * 32) * 128


@pytest.mark.parametrize("word", ["lama-tiny", "llama_tiny"])
def test_misspelt_name_gets_a_suggestion(word: str) -> None:
    with pytest.raises(ScenarioError, match=r"unknown model .*llama-2-7b, .*did you mean 'llama-tiny'\?"):
        catalog.load_config(word)


@pytest.mark.parametrize("word", ["", "..", "a/b/c", "nothing at all", "a\0b"])
def test_words_that_name_no_model_are_refused(word: str) -> None:
    with pytest.raises(ScenarioError):
        catalog.load_config(word)


def test_content_key_refuses_an_unknown_word() -> None:
    with pytest.raises(ScenarioError, match="did you mean 'llama-tiny'"):
        catalog.content_key("lama-tiny")


def test_local_folder_and_file_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = catalog.load_config("llama-tiny")
    folder = write_config(tmp_path / "org" / "mine", json.dumps(config))
    assert catalog.load_config(folder) == config
    assert catalog.load_config(f"{folder}/config.json") == config
    # A folder that exists wins over a hub id of the same spelling.
    monkeypatch.chdir(tmp_path)
    assert catalog.load_config("org/mine") == catalog.load_config("./org/mine") == config
    monkeypatch.setenv("HOME", str(tmp_path))
    assert catalog.load_config("~/org/mine") == config


def test_catalog_name_wins_over_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(tmp_path / "gpt2", '{"model_type": "llama"}')
    monkeypatch.chdir(tmp_path)
    assert catalog.load_config("gpt2")["model_type"] == "gpt2"
    assert catalog.load_config("./gpt2") == {"model_type": "llama"}


def test_path_problems_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"has no config\.json"):
        catalog.load_config(str(tmp_path))
    with pytest.raises(ScenarioError, match="no file or folder"):
        catalog.load_config(str(tmp_path / "absent"))
    (tmp_path / "config.yaml").touch()
    with pytest.raises(ScenarioError, match=r"a \.json file"):
        catalog.load_config(str(tmp_path / "config.yaml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "not a JSON object"),
        ('{"vocab_size": 8}', "no model_type"),
        ('{"model_type": "llama", "auto_map": {"AutoConfig": "a.B"}}', "trust_remote_code stays off"),
    ],
)
def test_unusable_config_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    folder = write_config(tmp_path, text)
    with pytest.raises(ScenarioError, match=message) as caught:
        catalog.load_config(folder)
    assert str(tmp_path / "config.json") in str(caught.value)


def test_config_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScenarioError, match="cannot be read"):
        catalog.load_config(str(tmp_path))


def test_content_key_depends_on_content_alone(tmp_path: Path) -> None:
    config = catalog.load_config("llama-tiny")
    first = write_config(tmp_path / "a", json.dumps(config))
    second = write_config(tmp_path / "b", json.dumps(dict(reversed(config.items())), indent=4))
    other = write_config(tmp_path / "c", json.dumps({**config, "vocab_size": 8}))
    key = catalog.content_key(first)
    assert key.startswith("sha256:")
    assert len(key) == len("sha256:") + 16
    assert catalog.content_key(second) == catalog.content_key(f"{first}/config.json") == key
    assert catalog.content_key(other) != key


def test_content_key_of_names_is_the_name() -> None:
    assert catalog.content_key("gpt2") == "gpt2"
    assert catalog.content_key("some-org/some.model-1") == "some-org/some.model-1"


def fake_hub(monkeypatch: pytest.MonkeyPatch, download: Any) -> None:
    hub = ModuleType("huggingface_hub")
    hub.hf_hub_download = download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)


def test_hub_id_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = catalog.load_config("llama-tiny")
    folder = write_config(tmp_path, json.dumps(config))
    asked = []

    def download(repo: str, file: str) -> str:
        asked.append((repo, file))
        return f"{folder}/{file}"

    fake_hub(monkeypatch, download)
    assert catalog.load_config("some-org/some-model") == config
    assert asked == [("some-org/some-model", "config.json")]


def test_failed_download_names_model_and_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(repo: str, file: str) -> str:
        raise ConnectionError("no route\nto host")

    fake_hub(monkeypatch, download)
    with pytest.raises(ScenarioError, match=r"'o/m'.*ConnectionError: no route\).*local folder"):
        catalog.load_config("o/m")


def test_missing_hub_client_names_model_and_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ScenarioError, match=r"'o/m'.*huggingface_hub cannot be imported.*local folder"):
        catalog.load_config("o/m")


def test_import_is_light() -> None:
    heavy = "{'torch', 'transformers', 'huggingface_hub'}"
    check = f"import sys, bench.models.catalog, bench.models.counts; assert not {heavy} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", check], check=True, cwd=Path(__file__).parents[2])
