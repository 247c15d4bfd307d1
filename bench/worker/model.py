"""The model of a cell: a real transformers architecture with random weights that a seed fixes."""

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM

from bench.scenario import Freeze, Lora
from bench.worker.failure import UnsupportedError
from bench.worker.training import choose_trained

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def build_model(
    config: dict[str, Any],
    *,
    dtype: torch.dtype,
    device: torch.device,
    seed: int,
    activation_checkpointing: bool | str,
    experts_implementation: str | None = None,
    attn_implementation: str | None = None,
    lora: Lora | None = None,
    freeze: Freeze | None = None,
    zero3_config: dict[str, Any] | None,
) -> Any:
    """Build the causal language model that ``config`` (the content of a ``config.json``) describes.

    With ``zero3_config``, parameters are partitioned as they are made (``deepspeed.zero.Init``), so no rank
    ever holds the whole model. The weights depend on ``seed`` and each parameter's name only, so they are
    the same in every strategy. With ``lora`` the model is peft's, around the same one.

    Raises:
        UnsupportedError: the architecture or this machine lacks what is asked for.
    """
    settings = {key: value for key, value in config.items() if key not in ("architectures", "dtype", "torch_dtype")}
    model_config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    model_config.use_cache = False
    # Loads the class now: what it imports (torch._dynamo) does not bear the constructors that zero.Init puts in place.
    MODEL_FOR_CAUSAL_LM_MAPPING.get(type(model_config), None)
    chosen = {"experts_implementation": experts_implementation, "attn_implementation": attn_implementation}
    with _partitioned(zero3_config), _attention_there(attn_implementation):
        model = AutoModelForCausalLM.from_config(
            model_config,
            dtype=dtype,
            trust_remote_code=False,
            **{name: value for name, value in chosen.items() if value},
        )
    if not zero3_config:
        model.to(device)
    # DeepSpeed casts a whole module, buffers too, at stages 0 to 2 and none of them at stage 3.
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device=device, dtype=dtype if buffer.is_floating_point() else None))
    std = float(getattr(model_config, "initializer_range", 0.02))
    _seed_weights(model, seed, std)
    if activation_checkpointing:
        reentrant = activation_checkpointing == "reentrant"
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        # What a frozen embedding makes requires no gradient, and then a reentrant block trains nothing, silently.
        # transformers 5 and peft see to that by themselves, transformers 4 without peft does not.
        if freeze is not None:
            model.enable_input_require_grads()
    trained = choose_trained(model, lora, freeze)
    if trained is not model:
        _seed_weights(trained, seed, std, only_trained=True)
    return trained.train()


@contextlib.contextmanager
def _attention_there(asked: str | None) -> Iterator[None]:
    """Say why an attention that was ``asked`` for cannot be had, in transformers' words."""
    try:
        yield
    except (ImportError, ValueError) as error:
        if asked is None:
            raise
        raise UnsupportedError(f"attn_implementation {asked}: {str(error).splitlines()[0]}") from error


def _partitioned(zero3_config: dict[str, Any] | None) -> contextlib.AbstractContextManager[Any]:
    if zero3_config is None:
        return contextlib.nullcontext()
    import deepspeed  # here: the reference run is plain PyTorch, and this file is its too

    return deepspeed.zero.Init(config_dict_or_path=zero3_config)  # type: ignore[no-any-return]


def _whole(parameter: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    if not hasattr(parameter, "ds_id"):
        return contextlib.nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters(parameter, modifier_rank=0)  # type: ignore[no-any-return]


def count_params(model: nn.Module) -> int:
    """Parameters of the whole model, also where stage 3 has left only a shard of each on this rank."""
    return sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in model.parameters())


@torch.no_grad()
def _seed_weights(model: nn.Module, seed: int, std: float, *, only_trained: bool = False) -> None:
    for name, parameter in model.named_parameters():
        if only_trained and not parameter.requires_grad:
            continue
        with _whole(parameter):
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.dim() == 1:  # the gain of a norm
                parameter.fill_(1)
            else:
                digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
                generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
                parameter.copy_(torch.randn(parameter.shape, generator=generator).mul_(std))
