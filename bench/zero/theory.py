"""What the ZeRO paper says a stage costs: model-state memory and traffic. Pure arithmetic.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC'20,
arXiv 1910.02054: section 5 and table 1 for memory, section 7 for communication. What DeepSpeed really
does differs (stages 1 and 2 all-reduce where the paper reduce-scatters); the tables show both.
"""

from bench.zero.stages import STRATEGIES

BYTES_PER_ELEMENT = {"fp32": 4, "bf16": 2, "fp16": 2}
TORCH_DTYPE = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # as records of what ran have them


def adam_bytes_per_param(dtype: str) -> tuple[int, int, int]:
    """Return (parameter, gradient, optimizer-state) bytes per parameter under Adam.

    16-bit training keeps an fp32 master copy beside both moments (K = 12); fp32 training needs only the
    moments (8). Both sum to the paper's 16 bytes.
    """
    width = BYTES_PER_ELEMENT[dtype]
    return width, width, 8 if dtype == "fp32" else 12


def model_state_bytes(
    num_params: int,
    strategy: str,
    world_size: int,
    dtype: str,
    trained: int | None = None,
    on_host: frozenset[str] = frozenset(),
) -> float:
    """Bytes of parameters, gradients and optimizer states on each of ``world_size`` GPUs (paper, table 1).

    Of ``num_params`` parameters ``trained`` (all, if it is left out) have gradients and optimizer states: 2 psi + 14
    psi_trained bytes in 16-bit, each part divided as the stage says. The paper trains all.

    ``on_host``: what is offloaded (``optimizer``, ``param``) and so not on the GPU: with the optimizer states go the
    gradients (Ren et al., "ZeRO-Offload", ATC'21, arXiv 2101.06840, section 4), with the parameters of stage 3 these
    (Rajbhandari et al., "ZeRO-Infinity", SC'21, arXiv 2104.07857).
    """
    params, grads, states = adam_bytes_per_param(dtype)
    if "optimizer" in on_host:
        grads = states = 0
    if "param" in on_host:
        params = 0
    shards = STRATEGIES[strategy].shards
    per_trained = grads / (world_size if "gradients" in shards else 1)
    per_trained += states / (world_size if "optimizer states" in shards else 1)
    held = num_params * (params / (world_size if "parameters" in shards else 1))
    return held + (num_params if trained is None else trained) * per_trained


def wire_bytes_per_step(
    num_params: int, strategy: str, world_size: int, dtype: str, trained: int | None = None
) -> float:
    """Bytes each GPU sends per optimizer step (paper, section 7): 2 psi, or 3 psi with sharded parameters.

    ``psi`` is ``num_params`` elements; the ring factor (N-1)/N, which the paper drops, is applied so
    that the figure is comparable with counted wire bytes. The paper has no gradient accumulation: this
    is the volume of one micro-step. With frozen parameters: 2 psi_trained, or 2 psi + psi_trained.
    """
    moved = 2 * num_params if trained is None else 2 * trained
    if "parameters" in STRATEGIES[strategy].shards:
        moved = 2 * num_params + (num_params if trained is None else trained)
    return moved * BYTES_PER_ELEMENT[dtype] * (world_size - 1) / world_size


def volumes(num_params: int, strategy: str, dtype: str, trained: int | None = None) -> dict[tuple[str, str], int]:
    """Return the bytes of the larger side by (phase, operation) that `wire_bytes_per_step` is made of.

    Data parallelism all-reduces psi gradients. With sharded optimizer states the gradients are reduce-scattered and the
    updated parameters gathered; with sharded parameters these are gathered in forward and again in backward. Only
    ``trained`` parameters have gradients and are updated.
    """
    width, shards = BYTES_PER_ELEMENT[dtype], STRATEGIES[strategy].shards
    psi, own = num_params * width, (num_params if trained is None else trained) * width
    if not shards:
        return {("backward", "all_reduce"): own}
    gather, reduction = "all_gather_into_tensor", ("backward", "reduce_scatter_tensor")
    if "parameters" in shards:
        return {("forward", gather): psi, ("backward", gather): psi, reduction: own}
    return {reduction: own, ("step", gather): own}
