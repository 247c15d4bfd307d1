"""The modules of a model as one forward pass calls them, with the parameters that each holds. No torch.

The layouts are those of transformers 5.24 (``models/<family>/modeling_<family>.py``) for the families of
bench.models.counts; tests/unit/test_modules.py compares them with the real classes. Modules without parameters are
in it too, because DeepSpeed's stage 3 counts every call (bench.zero.gathers).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.models.counts import count_params, head_size, size, with_defaults


@dataclass(frozen=True)
class Parameter:
    """One parameter; ``position`` orders ``model.parameters()``, which need not be the order of use.

    ``rows``: the size of its first dimension, along which FSDP2 shards it.
    """

    name: str
    numel: int
    position: int
    rows: int = 1
    trainable: bool = True


@dataclass(frozen=True)
class Module:
    """One module; ``children`` in the order in which its forward calls them.

    ``differentiable``: its output carries a gradient, so backward passes through it. ``grad_input``: so does what it is
    given (an embedding is given token ids). ``saves``: its own operations save a tensor for backward (a dropout of 0
    does not). ``block``: activation checkpointing recomputes it as one piece. ``leaf``: DeepSpeed 0.19 treats it with
    all below it as one module (``runtime/zero/leaf_module_config.py``), so its children are not listed.
    ``from_parent``: it is given what its parent is given, else what the calls before it made of that. ``shape``: inputs
    and outputs of a linear layer. ``embeds``: it is the input embedding.
    """

    name: str
    parameters: tuple[Parameter, ...] = ()
    children: tuple["Module", ...] = ()
    differentiable: bool = True
    grad_input: bool = True
    saves: bool = True
    block: bool = False
    leaf: bool = False
    from_parent: bool = False
    shape: tuple[int, int] | None = None
    embeds: bool = False


def modules(config: dict[str, Any]) -> Module | None:
    """Return the module tree of the model that ``config`` (a ``config.json``) describes; ``None`` if not known.

    A tied output embedding holds the same `Parameter` as the input embedding.
    """
    values = with_defaults(config)
    if values is None or count_params(config) is None:
        return None
    return _gpt2(values) if values["model_type"] == "gpt2" else _decoder(values)


def calls(module: Module) -> Iterator[Module]:
    """Yield the modules in the order in which one forward pass enters them."""
    yield module
    for child in module.children:
        yield from calls(child)


def parameters(module: Module) -> list[Parameter]:
    """Return the parameters below ``module``, each once, in the order of ``model.parameters()``."""
    found = {parameter for called in calls(module) for parameter in called.parameters}
    return sorted(found, key=lambda parameter: parameter.position)


def tensor_sizes(config: dict[str, Any]) -> list[int] | None:
    """Return the elements of every parameter, in the order of ``model.parameters()``; ``None`` if not known."""
    tree = modules(config)
    return None if tree is None else [parameter.numel for parameter in parameters(tree)]


class _Build:
    """Makes modules whose parameters are numbered in the order of their making, as torch registers them."""

    def __init__(self) -> None:
        self.made = 0

    def parameter(self, name: str, numel: int, rows: int) -> Parameter:
        self.made += 1
        return Parameter(name, numel, self.made - 1, rows)

    def linear(
        self,
        name: str,
        inputs: int,
        outputs: int,
        bias: bool,
        *,
        transposed: bool = False,
        from_parent: bool = False,
    ) -> Module:
        """``transposed``: the weight is inputs x outputs, as in GPT-2's Conv1D."""
        found = [self.parameter(f"{name}.weight", inputs * outputs, inputs if transposed else outputs)]
        if bias:
            found.append(self.parameter(f"{name}.bias", outputs, outputs))
        return Module(name, tuple(found), from_parent=from_parent, shape=(inputs, outputs))

    def norm(self, name: str, width: int, bias: bool) -> Module:
        return Module(name, self.linear(name, 1, width, bias).parameters)

    def embedding(self, name: str, rows: int, width: int, *, embeds: bool = False) -> Module:
        weight = self.parameter(f"{name}.weight", rows * width, rows)
        return Module(name, (weight,), grad_input=False, embeds=embeds)


def _head(build: _Build, values: dict[str, Any], embedding: Module, vocab: int, width: int) -> Module:
    if values["tie_word_embeddings"]:
        return Module("lm_head", embedding.parameters, shape=(width, vocab))
    return build.linear("lm_head", width, vocab, bias=False)


def _decoder(values: dict[str, Any]) -> Module:
    """Llama, Mistral, Qwen2 and Mixtral: rotary positions, grouped attention, a gated MLP or experts."""
    build = _Build()
    vocab, width = size(values, "vocab_size"), size(values, "hidden_size")
    embedding = build.embedding("model.embed_tokens", vocab, width, embeds=True)
    blocks = [
        _decoder_block(build, values, f"model.layers.{layer}") for layer in range(size(values, "num_hidden_layers"))
    ]
    final = build.norm("model.norm", width, bias=False)
    rotary = Module("model.rotary_emb", differentiable=False)
    body = Module("model", children=(embedding, rotary, *blocks, final), grad_input=False)
    return Module("", children=(body, _head(build, values, embedding, vocab, width)), grad_input=False)


def _decoder_block(build: _Build, values: dict[str, Any], name: str) -> Module:
    family, width, inner = values["model_type"], size(values, "hidden_size"), size(values, "intermediate_size")
    queries = size(values, "num_attention_heads") * head_size(values)
    kv_heads = "num_attention_heads" if values["num_key_value_heads"] is None else "num_key_value_heads"
    keys = size(values, kv_heads) * head_size(values)
    every = family == "llama" and bool(values.get("attention_bias"))
    attention = Module(
        f"{name}.self_attn",
        children=(
            build.linear(f"{name}.self_attn.q_proj", width, queries, every or family == "qwen2", from_parent=True),
            build.linear(f"{name}.self_attn.k_proj", width, keys, every or family == "qwen2", from_parent=True),
            build.linear(f"{name}.self_attn.v_proj", width, keys, every or family == "qwen2", from_parent=True),
            build.linear(f"{name}.self_attn.o_proj", queries, width, every),
        ),
    )
    if family == "mixtral":
        mlp = _experts(build, values, f"{name}.mlp")
    else:
        bias = family == "llama" and bool(values.get("mlp_bias"))
        gate = build.linear(f"{name}.mlp.gate_proj", width, inner, bias, from_parent=True)
        up = build.linear(f"{name}.mlp.up_proj", width, inner, bias, from_parent=True)
        down = build.linear(f"{name}.mlp.down_proj", inner, width, bias)
        mlp = Module(f"{name}.mlp", children=(gate, Module(f"{name}.mlp.act_fn"), up, down))
    before = build.norm(f"{name}.input_layernorm", width, bias=False)
    between = build.norm(f"{name}.post_attention_layernorm", width, bias=False)
    return Module(name, children=(before, attention, between, mlp), block=True)


def _experts(build: _Build, values: dict[str, Any], name: str) -> Module:
    """Mixtral's router and experts; transformers 5 holds all experts of a layer in two parameters."""
    experts, width = size(values, "num_local_experts"), size(values, "hidden_size")
    inner = size(values, "intermediate_size")
    held = (
        build.parameter(f"{name}.gate.weight", experts * width, experts),
        build.parameter(f"{name}.experts.gate_up_proj", experts * 2 * inner * width, experts),
        build.parameter(f"{name}.experts.down_proj", experts * width * inner, experts),
    )
    return Module(name, held, leaf=True)


def _gpt2(values: dict[str, Any]) -> Module:
    build = _Build()
    vocab, width = size(values, "vocab_size"), size(values, "n_embd")
    words = build.embedding("transformer.wte", vocab, width, embeds=True)
    places = build.embedding("transformer.wpe", size(values, "n_positions"), width)
    drop = Module("transformer.drop", saves=values.get("embd_pdrop", 0.1) > 0)
    blocks = [_gpt2_block(build, values, f"transformer.h.{layer}") for layer in range(size(values, "n_layer"))]
    final = build.norm("transformer.ln_f", width, bias=True)
    body = Module("transformer", children=(words, places, drop, *blocks, final), grad_input=False)
    return Module("", children=(body, _head(build, values, words, vocab, width)), grad_input=False)


def _gpt2_block(build: _Build, values: dict[str, Any], name: str) -> Module:
    width = size(values, "n_embd")
    inner = 4 * width if values.get("n_inner") is None else size(values, "n_inner")
    dropout = values.get("resid_pdrop", 0.1) > 0
    before = build.norm(f"{name}.ln_1", width, bias=True)
    attention = Module(
        f"{name}.attn",
        children=(
            build.linear(f"{name}.attn.c_attn", width, 3 * width, bias=True, transposed=True),
            build.linear(f"{name}.attn.c_proj", width, width, bias=True, transposed=True),
            Module(f"{name}.attn.resid_dropout", saves=dropout),
        ),
    )
    between = build.norm(f"{name}.ln_2", width, bias=True)
    mlp = Module(
        f"{name}.mlp",
        children=(
            build.linear(f"{name}.mlp.c_fc", width, inner, bias=True, transposed=True),
            Module(f"{name}.mlp.act"),
            build.linear(f"{name}.mlp.c_proj", inner, width, bias=True, transposed=True),
            Module(f"{name}.mlp.dropout", saves=dropout),
        ),
    )
    return Module(name, children=(before, attention, between, mlp), block=True)
