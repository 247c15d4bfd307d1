"""What a forward pass leaves in memory for backward, to the byte: the modules of Hugging Face transformers 5 on CPU.

Every formula is what autograd saves, read off the storages that are live after a forward pass (dropout 0;
tests/integration/test_memory.py and test_training_modes.py hold them against real runs). On a GPU other kernels save
other things (log-sum-exp padded, fused activations), so there they are an estimate. Korthikanti et al. (arXiv
2205.05198) give the GPT formula with dropout and materialised attention, which these models do not have.

Symbols: w bytes per element, h hidden size, Q and K widths of all query and key heads, f inner width, a query heads, L
layers, V vocabulary, b batch, s sequence.
"""

from typing import Any

from bench.models.counts import attention_widths, with_defaults
from bench.models.training import ALL_LINEAR
from bench.scenario import Lora

_TARGETS = 7  # linear layers of a Llama-style block


def activation_bytes(
    config: dict[str, Any],
    batch: int,
    seq_length: int,
    width: int,
    recompute: bool,
    *,
    attention: str = "sdpa",
    lora: Lora | None = None,
    frozen: bool = False,
    linear_keeps_input: bool = False,
) -> int | None:
    """Return the bytes kept for backward when forward ends, logits and loss apart; ``None`` where there is no formula.

    ``width``: bytes of an element of the model's dtype (w). ``recompute``: every block is checkpointed. ``attention``:
    ``sdpa`` or, Llama style, ``eager``. ``lora``: adapters beside every linear layer of Llama-style blocks, without
    dropout. ``frozen``: only some parameters are trained, for which there is no formula. ``linear_keeps_input``: a
    frozen linear layer too keeps what it is given, as under stage 3 (DeepSpeed 0.19.8, runtime/zero/linear.py,
    ``LinearFunctionForZeroStage3``).

    Llama style, per token and layer, in 16-bit ``16 h + 4 Q + 4 K + 8 f + 4 a + 8``, in fp32 ``24 h + 8 Q + 8 K +
    16 f + 4 a + 8``: two RMSNorms (fp32 input, normalised value and output, 8 h each in 16-bit, 12 h in fp32, and an
    fp32 rstd), query and attention output, key and value, the log-sum-exp of each head, gate, its silu, up and their
    product. GPT-2: ``w (8 h + 5 f + 4) + 4 a``: residual, norm and norm statistics twice, query, key and value,
    attention output, and five tensors of the MLP (gelu by its formula saves four). With recompute, per token and
    layer: ``w h``, the block's input. Beside them: the final norm, and the cosines and sines of the positions or the
    position ids.

    Eager attention keeps query, key and value for every query head and the scores: in 16-bit ``8 Q + 6 a s`` in place
    of ``4 Q + 4 K + 4 a`` (fp32 softmax and its 16-bit copy), in fp32 ``16 Q + 4 a s``; with recompute, the causal mask
    ``w b s^2`` once. Frozen norms do not keep their normalised value (``w h`` each), a frozen layer keeps no input: the
    adapters do, and their inner ``w r``. The output of the last norm goes to a frozen layer, which keeps nothing; the
    first has nothing to pass a gradient to, unless activations are recomputed: then the embedding's output needs one.
    """
    values = with_defaults(config)
    if values is None or values["model_type"] == "mixtral" or frozen or attention not in ("sdpa", "eager"):
        return None
    tokens = batch * seq_length
    if values["model_type"] == "gpt2":
        if lora is not None or attention != "sdpa":
            return None
        return _gpt2(values, tokens, seq_length, width, recompute)
    hidden, inner = values["hidden_size"], values["intermediate_size"]
    queries, keys = attention_widths(values)
    heads = values["num_attention_heads"]
    if lora is not None and (lora.lora_dropout or lora.target_modules != (ALL_LINEAR,)):
        return None
    norm_input = 4 * hidden + 4  # fp32, and the root of its mean square
    norm = norm_input + (2 if lora is None else 1) * width * hidden
    final = norm_input + width * hidden * (2 if lora is None else linear_keeps_input)
    attended = 2 * width * (queries + keys) + 4 * heads
    if attention == "eager":
        attended = 4 * width * queries + (6 if width == 2 else 4) * heads * seq_length
    block = 2 * norm + attended + 4 * width * inner
    positions = 2 * width * seq_length * (queries // heads)
    if lora is not None:
        block += _TARGETS * width * lora.r
        positions -= 0 if recompute else tokens * norm_input  # of the first norm
    if recompute:
        block = width * hidden
        positions += 8 * seq_length  # the ids, which the checkpoint keeps to run the block again
        positions += width * batch * seq_length**2 if attention == "eager" else 0
    return int(tokens * (values["num_hidden_layers"] * block + final) + positions)


def _gpt2(values: dict[str, Any], tokens: int, seq_length: int, width: int, recompute: bool) -> int | None:
    if values.get("activation_function", "gelu_new") != "gelu_new":
        return None
    if any(values.get(name, 0.1) for name in ("attn_pdrop", "embd_pdrop", "resid_pdrop")):
        return None  # dropout masks
    hidden = values["n_embd"]
    inner = values.get("n_inner") or 4 * hidden
    block = width * (8 * hidden + 5 * inner + 4) + 4 * values["n_head"]
    if recompute:
        block = width * hidden
    final = width * (2 * hidden + 2)
    return int(tokens * (values["n_layer"] * block + final) + 8 * seq_length)


def logits_loss_bytes(config: dict[str, Any], batch: int, seq_length: int, *, at_peak: bool) -> int | None:
    """Return the bytes of logits and loss: when forward ends, or at their highest, early in backward.

    ``at_peak`` false: fp32 log-probabilities (4 V per token) and the shifted labels (int64; of one sequence they are a
    view, with one label more), the loss and its divisor.
    True: 12 V per token, as the gradients of the negative log-likelihood and of the log-softmax, fp32 both, stand
    beside them; the labels are freed by then, the loss is held. The logits themselves (w V) and, in 16-bit, their fp32
    copy are freed during forward, whose own highest is 10 V (8 V in fp32), because the training loop drops the output.
    """
    values = with_defaults(config)
    if values is None:
        return None
    tokens, vocab = batch * seq_length, values["vocab_size"]
    return int(tokens * 12 * vocab + 4 if at_peak else tokens * (4 * vocab + 8) + 8 + 8 * (batch == 1))
