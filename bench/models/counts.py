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
    ``total`` in a dense model. ``embedding`` is the input side: the token table and learned positions. ``trainable`` is
    set where not all are trained (bench.models.training).
    """

    total: int
    active: int
    embedding: int
    trainable: int | None = None

    @property
    def trained(self) -> int:
        """Parameters that the optimizer updates."""
        return self.total if self.trainable is None else self.trainable


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
        layers, width = size(values, "n_layer"), size(values, "n_embd")
    else:
        layers, width = (
            size(values, "num_hidden_layers"),
            size(values, "num_attention_heads") * head_size(values),
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
    vocab, width = size(values, "vocab_size"), size(values, "n_embd")
    inner = 4 * width if values.get("n_inner") is None else size(values, "n_inner")
    norm = 2 * width  # weight and bias
    attention = 4 * width * width + 4 * width  # query, key, value and output
    mlp = 2 * width * inner + inner + width
    embedding = vocab * width + size(values, "n_positions") * width
    head = 0 if values["tie_word_embeddings"] else vocab * width
    total = embedding + size(values, "n_layer") * (attention + mlp + 2 * norm) + norm + head
    return ParamCount(total=total, active=total, embedding=embedding)


def _count_decoder(values: dict[str, Any]) -> ParamCount:
    family, layers = values["model_type"], size(values, "num_hidden_layers")
    width, inner = size(values, "hidden_size"), size(values, "intermediate_size")
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
        experts, chosen = size(values, "num_local_experts"), size(values, "num_experts_per_tok")
        unused = layers * (experts - chosen) * mlp
        mlp = experts * mlp + width * experts  # the router scores every expert

    embedding = size(values, "vocab_size") * width
    head = 0 if values["tie_word_embeddings"] else embedding
    total = embedding + layers * (attention + mlp + 2 * width) + width + head
    return ParamCount(total=total, active=total - unused, embedding=embedding)


def attention_widths(values: dict[str, Any]) -> tuple[int, int]:
    """Return (all query heads' width, all key heads' width) of a Llama-style configuration with its defaults."""
    kv_heads = "num_attention_heads" if values["num_key_value_heads"] is None else "num_key_value_heads"
    return size(values, "num_attention_heads") * head_size(values), size(values, kv_heads) * head_size(values)


def with_defaults(config: dict[str, Any]) -> dict[str, Any] | None:
    """Return ``config`` with the defaults of its family filled in, in one spelling; ``None`` for an unknown family."""
    family = config.get("model_type")
    if not isinstance(family, str) or family not in _DEFAULTS:
        return None
    aliases = _ALIASES.get(family, {})
    return {**_DEFAULTS[family], **{aliases.get(key, key): value for key, value in config.items()}}


def head_size(values: dict[str, Any]) -> int:
    """Return the size of one attention head, from values that `with_defaults` returned."""
    if values.get("head_dim") is not None:
        return size(values, "head_dim")
    return size(values, "hidden_size") // size(values, "num_attention_heads")


def size(values: dict[str, Any], key: str) -> int:
    """Return ``values[key]``; ``ScenarioError`` when it is not a positive whole number."""
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ScenarioError(f"model configuration: {key} must be a positive whole number, not {value!r}")
    if value >= 2**40:
        raise ScenarioError(f"model configuration: {key} is too large to be a size (2^40 or more)")
    return value
