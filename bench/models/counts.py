"""Parameters and training FLOPs of a model, by closed formula from its configuration.

The formulas cover the families of the catalog. For any other ``model_type`` the answer is ``None``, never a
guess. A key that the configuration leaves out takes the default of that family in transformers.
"""

from dataclasses import dataclass
from typing import Any

from bench.errors import ScenarioError

FLOPS_CONVENTION = "palm"

_DECODER: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "tie_word_embeddings": True,
    },
    "llama": {**_DECODER, "intermediate_size": 11008, "num_key_value_heads": None},
    "mistral": _DECODER,
    "qwen2": {**_DECODER, "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32},
    "mixtral": {**_DECODER, "num_local_experts": 8, "num_experts_per_tok": 2},
}
# The other spellings that transformers takes for the same value.
_ALIASES = {
    "gpt2": {
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    "mixtral": {"num_experts": "num_local_experts"},
}


@dataclass(frozen=True)
class ParamCount:
    """Numbers of parameters; a table shared by input and output embedding counts once.

    ``active`` is what one token uses: everything but the experts that its router leaves out, so it equals
    ``total`` in a dense model. ``embedding`` is the input side: the token table and learned positions.
    """

    total: int
    active: int
    embedding: int


def count_params(config: dict[str, Any]) -> ParamCount | None:
    """Return the parameter counts of the model that ``config`` describes, or ``None`` for an unknown family.

    ``config`` has the keys of a Hugging Face ``config.json``. Raises ``ScenarioError`` when a size in it is
    not a positive whole number.
    """
    values = with_defaults(config)
    # Cross-attention belongs to an encoder-decoder pair, which the formula does not describe.
    if values is None or values.get("add_cross_attention"):
        return None
    return _count_gpt2(values) if values["model_type"] == "gpt2" else _count_decoder(values)


def tensor_sizes(config: dict[str, Any]) -> list[int] | None:
    """Return the elements of every parameter tensor, in the order in which the transformers model lists them.

    ``None`` for an unknown family, and for mixtral, whose experts are one tensor or many, by the release of
    transformers. Raises ``ScenarioError`` as `count_params` does.
    """
    values = with_defaults(config)
    if values is None or values.get("add_cross_attention") or values["model_type"] == "mixtral":
        return None
    return _gpt2_tensors(values) if values["model_type"] == "gpt2" else _decoder_tensors(values)


def flops_per_token(config: dict[str, Any], seq_length: int) -> float | None:
    """Return the model FLOPs of training on one token of a sequence of ``seq_length`` tokens.

    Forward and backward pass together, by the PaLM convention (see `palm_flops_per_token`): N is every active
    parameter, embeddings included, as PaLM and llm-foundry count. A sliding window is not taken into account.
    ``None`` for an unknown family; raises ``ScenarioError`` as `count_params` does.
    """
    params, values = count_params(config), with_defaults(config)
    if params is None or values is None:
        return None
    if values["model_type"] == "gpt2":
        layers, width = _size(values, "n_layer"), _size(values, "n_embd")
    else:
        layers, width = (
            _size(values, "num_hidden_layers"),
            _size(values, "num_attention_heads") * _head(values),
        )
    return palm_flops_per_token(params.active, layers, width, seq_length)


def palm_flops_per_token(num_params: int, num_layers: int, attention_width: int, seq_length: int) -> float:
    """Return ``6 N + 12 L (H Q) T``, the training FLOPs per token of PaLM, appendix B (arXiv 2204.02311).

    A multiply-add is 2 FLOPs and the backward pass costs twice the forward pass, hence 6 for each of the N
    parameters. The attention term is the full square of the sequence, though a causal model needs half of
    it, and recomputed activations are not counted: it measures the model, not the implementation.
    ``attention_width`` is heads times head size.
    """
    return 6.0 * num_params + 12.0 * num_layers * attention_width * seq_length


def _count_gpt2(values: dict[str, Any]) -> ParamCount:
    vocab, width = _size(values, "vocab_size"), _size(values, "n_embd")
    inner = 4 * width if values.get("n_inner") is None else _size(values, "n_inner")
    norm = 2 * width  # weight and bias
    attention = 4 * width * width + 4 * width  # query, key, value and output
    mlp = 2 * width * inner + inner + width
    embedding = vocab * width + _size(values, "n_positions") * width
    head = 0 if values["tie_word_embeddings"] else vocab * width
    total = embedding + _size(values, "n_layer") * (attention + mlp + 2 * norm) + norm + head
    return ParamCount(total=total, active=total, embedding=embedding)


def _count_decoder(values: dict[str, Any]) -> ParamCount:
    family, layers = values["model_type"], _size(values, "num_hidden_layers")
    width, inner = _size(values, "hidden_size"), _size(values, "intermediate_size")
    queries, keys = attention_widths(values)

    attention = 2 * width * queries + 2 * width * keys
    if family == "qwen2":  # always a bias on query, key and value, never on the output
        attention += queries + 2 * keys
    elif family == "llama" and values.get("attention_bias"):
        attention += queries + 2 * keys + width

    mlp = 3 * width * inner  # gate, up and down
    if family == "llama" and values.get("mlp_bias"):
        mlp += 2 * inner + width

    unused = 0
    if family == "mixtral":
        experts, chosen = _size(values, "num_local_experts"), _size(values, "num_experts_per_tok")
        unused = layers * (experts - chosen) * mlp
        mlp = experts * mlp + width * experts  # the router scores every expert

    embedding = _size(values, "vocab_size") * width
    head = 0 if values["tie_word_embeddings"] else embedding
    total = embedding + layers * (attention + mlp + 2 * width) + width + head
    return ParamCount(total=total, active=total - unused, embedding=embedding)


def _gpt2_tensors(values: dict[str, Any]) -> list[int]:
    vocab, width = _size(values, "vocab_size"), _size(values, "n_embd")
    inner = 4 * width if values.get("n_inner") is None else _size(values, "n_inner")
    norm = [width, width]
    attention = [3 * width * width, 3 * width, width * width, width]
    mlp = [width * inner, inner, inner * width, width]
    head = [] if values["tie_word_embeddings"] else [vocab * width]
    layers = (norm + attention + norm + mlp) * _size(values, "n_layer")
    return [vocab * width, _size(values, "n_positions") * width, *layers, *norm, *head]


def _decoder_tensors(values: dict[str, Any]) -> list[int]:
    width, inner = _size(values, "hidden_size"), _size(values, "intermediate_size")
    queries, keys = attention_widths(values)
    llama_bias = values["model_type"] == "llama" and bool(values.get("attention_bias"))
    bias = llama_bias or values["model_type"] == "qwen2"
    attention = [size for out in (queries, keys, keys) for size in ([width * out, out] if bias else [width * out])]
    attention += [queries * width, width] if llama_bias else [queries * width]
    mlp_bias = values["model_type"] == "llama" and bool(values.get("mlp_bias"))
    mlp = [size for out in (inner, inner, width) for size in ([width * inner, out] if mlp_bias else [width * inner])]
    embedding = _size(values, "vocab_size") * width
    head = [] if values["tie_word_embeddings"] else [embedding]
    layers = (attention + mlp + [width, width]) * _size(values, "num_hidden_layers")
    return [embedding, *layers, width, *head]


def attention_widths(values: dict[str, Any]) -> tuple[int, int]:
    """Return (all query heads' width, all key heads' width) of a Llama-style configuration with its defaults."""
    kv_heads = "num_attention_heads" if values["num_key_value_heads"] is None else "num_key_value_heads"
    return _size(values, "num_attention_heads") * _head(values), _size(values, kv_heads) * _head(values)


def with_defaults(config: dict[str, Any]) -> dict[str, Any] | None:
    """Return ``config`` with its family's defaults filled in and its keys' usual spelling; ``None`` if unknown."""
    family = config.get("model_type")
    if not isinstance(family, str) or family not in _DEFAULTS:
        return None
    aliases = _ALIASES.get(family, {})
    return {**_DEFAULTS[family], **{aliases.get(key, key): value for key, value in config.items()}}


def _head(values: dict[str, Any]) -> int:
    if values.get("head_dim") is not None:
        return _size(values, "head_dim")
    return _size(values, "hidden_size") // _size(values, "num_attention_heads")


def _size(values: dict[str, Any], key: str) -> int:
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ScenarioError(f"model configuration: {key} must be a positive whole number, not {value!r}")
    if value >= 2**40:
        raise ScenarioError(f"model configuration: {key} is too large to be a size (2^40 or more)")
    return value
