"""What each rank should hold, by category, at each point of a step: DeepSpeed 0.19 as its code has it. Pure arithmetic.

The paper's table 1 (bench.zero.theory) has states only. Beside them stands what the code of DeepSpeed 0.19.8 and of
bench.worker.ddp keeps: gradients whole or sharded at each point, buckets, gathered parameters, padding, the
temporaries of the for-loop AdamW. A category without a formula is missing, never guessed; for fsdp2 there
is none. Symbols: psi parameters, N ranks, w bytes of an element of the model's dtype.
"""

from itertools import pairwise
from typing import Any

from bench.cell import Cell
from bench.models.activations import activation_bytes, logits_loss_bytes
from bench.models.counts import ParamCount
from bench.models.modules import parameters
from bench.models.training import trained_modules
from bench.zero.defaults import SIZES, SWITCHES
from bench.zero.stages import HPZ_KEY, STRATEGIES
from bench.zero.theory import BYTES_PER_ELEMENT

# Every category that bench.worker.composition finds, in the order of the tables.
CATEGORIES = (
    "parameters",
    "gradients",
    "optimizer_states",
    "zero_buckets",
    "bucket_copies",
    "offload_buffers",
    "secondary_parameters",
    "gathered_parameters",
    "persisted_parameters",
    "activations",
    "logits_loss",
    "backward_temporaries",
    "step_temporaries",
    "other",
)
POINTS = ("init", "forward", "backward", "step", "peak")

# Stage 0 reduces in buckets of this many elements whatever is set (engine.py, MEMORY_OPT_ALLREDUCE_SIZE).
_STAGE_0_BUCKET = 500_000_000
_ALIGNMENT = 2  # stages 1 and 2 pad their flat group to a multiple of 2 N elements (nccl_start_alignment_factor)

Bytes = dict[str, float]


class RankSizes:
    """The sizes that the formulas share: one cell, seen from one rank."""

    def __init__(self, cell: Cell, config: dict[str, Any], params: ParamCount, rank: int) -> None:
        self.cell, self.config, self.rank = cell, config, rank
        self.stage = STRATEGIES[cell.strategy].zero_stage
        self.width = BYTES_PER_ELEMENT[cell.dtype]
        self.ranks = cell.world_size
        tree = trained_modules(config, cell.lora, cell.freeze)
        self.known = tree is not None
        held = parameters(tree) if tree else []
        self.all_sizes = [parameter.numel for parameter in held] or [params.total]
        # Of the trained ones, which alone have gradients and optimizer states.
        self.sizes = [parameter.numel for parameter in held if parameter.trainable] or [params.trained]
        self.total, self.frozen = params.trained, params.total - params.trained
        self.flat = -(-self.total // (_ALIGNMENT * self.ranks)) * _ALIGNMENT * self.ranks
        self.sharded = self._sharded(self.sizes)
        self.all_sharded = self._sharded(self.all_sizes)
        self.batch = (cell.train_micro_batch_size_per_gpu, cell.seq_length)

    def _sharded(self, sizes: list[int]) -> int:
        return sum(-(-size // self.ranks) for size in sizes)  # stage 3 pads each tensor

    def setting(self, name: str) -> int:
        """The value of a ``zero_optimization`` key, in elements."""
        return int(self.cell.zero_optimization.get(name, SIZES[name]))

    @property
    def contiguous(self) -> bool:
        """Whether gradients are copied into a bucket."""
        name = "contiguous_gradients"
        return bool(self.cell.zero_optimization.get(name, SWITCHES[name]))

    @property
    def bucket(self) -> int:
        """Bytes of the IPG bucket: ``reduce_bucket_size`` x w, if gradients are made contiguous."""
        return self.setting("reduce_bucket_size") * self.width if self.contiguous else 0

    @property
    def overlap(self) -> bool:
        """Whether gradients are reduced while backward goes on (below stage 3)."""
        return bool(self.cell.zero_optimization.get("overlap_comm", False))

    @property
    def losses(self) -> int:
        """Bytes of the losses that the training loop keeps until the step ends, one fp32 number per micro-step."""
        return 4 * self.cell.gradient_accumulation_steps

    @property
    def partition(self) -> tuple[int, int]:
        """This rank's part of the flat group of stages 1 and 2: its first element, and the first of the next rank."""
        part = self.flat // self.ranks
        return self.rank * part, (self.rank + 1) * part

    @property
    def touching(self) -> int:
        """Elements of the tensors that touch this rank's partition, whole."""
        first, last = self.partition
        start = found = 0
        for size in self.sizes:
            if start < last and start + size > first:
                found += size
            start += size
        return found

    @property
    def owned_gradients(self) -> int:
        """Bytes of the whole gradients that touch this rank's partition (stage_1_and_2.get_flat_partition)."""
        first, last = self.partition
        return (self.touching + max(0, last - max(first, self.total))) * self.width

    @property
    def offload_buffers(self) -> tuple[int, int]:
        """Bytes of the buffers that optimizer offload adds, on the host and on the device.

        Stages 1 and 2 (stage_1_and_2.py): on the host the fp32 gradient of the partition, a copy of it in the model's
        dtype (param_buffer_of_bit16_for_cpu_offload_groups), one buffer of the largest tensor, and at stage 2, while it
        accumulates, the whole gradients that touch the partition; on the device another buffer of the largest tensor.
        Stage 3 (stage3.py, initialize_optimizer_states): the fp32 gradients of the shards.
        """
        if self.stage == 3:
            return 4 * self.sharded, 0
        through = max(self.sizes) * self.width
        accumulates = self.stage == 2 and self.cell.gradient_accumulation_steps > 1
        accumulated = self.touching * self.width if accumulates else 0
        return (4 + self.width) * (self.flat // self.ranks) + through + accumulated, through

    @property
    def sub_groups(self) -> list[int]:
        """Elements of this rank in each sub-group of stage 3, which updates one after the other.

        A sub-group is full when it has ``sub_group_size`` elements or more; no tensor is cut, so at 0 and 1 each
        tensor is one (stage3.py, _create_fp16_sub_groups).
        """
        found, size = [], 0
        for numel in self.sizes:
            size += -(-numel // self.ranks)
            if size >= self.setting("sub_group_size"):
                found.append(size)
                size = 0
        return [*found, size] if size else found

    @property
    def persisted(self) -> int:
        """Bytes of the parameters that stage 3 keeps within a step, in module order up to the model's limit."""
        threshold, left = (self.setting(f"stage3_{name}_persistence_threshold") for name in ("param", "model"))
        kept = 0
        for size in self.all_sizes if self.ranks > 1 else ():  # of one rank, the shard is the parameter
            if size <= threshold and kept + size <= left:
                kept += size
        return kept * self.width


def predict(cell: Cell, config: dict[str, Any], params: ParamCount, point: str, rank: int = 0) -> Bytes:
    """Return the expected bytes by category on ``rank`` at ``point`` (one of ``POINTS``).

    ``peak`` is the highest of four moments: the gradients of the logits, the first gradient, the reduction, the step.
    """
    if cell.strategy == "fsdp2":
        return {}
    at = RankSizes(cell, config, params, rank)
    if at.stage == 3 and not at.known:
        return {}
    if point == "peak":
        return max(peaks(at), key=lambda candidate: sum(candidate.values()), default={})
    found = _states(at, point) | _gradients(at, point)
    if at.stage == 3:
        found |= _stage_3(at, point)
    if point == "forward":
        found |= _saved(at, at_peak=False)
    if point in ("backward", "step"):
        found |= {"logits_loss": at.losses}
    if at.stage in (1, 2):
        found |= {"zero_buckets": _waiting_bucket(at, point)}
    if point == "step":
        found |= _temporaries(at)
    return found


def peaks(at: RankSizes) -> list[Bytes]:
    """Return the moments of a step one of which is its peak; none where there is no formula for it."""
    if not at.known or "activations" not in _saved(at, at_peak=True) or _peaks_elsewhere(at):
        return []
    return [_loss_backward(at), _first_gradient(at), _reduction(at), _step(at)]


def _peaks_elsewhere(at: RankSizes) -> bool:
    """Where states are small, the recomputation of a block may hold most, or what stage 3 has gathered then.

    What ZeRO++ (hpZ) leaves gathered has no formula.
    """
    small = at.frozen > 0 and (bool(at.cell.activation_checkpointing) or at.stage == 3)
    return small or at.setting(HPZ_KEY) > 1


def _states(at: RankSizes, point: str) -> Bytes:
    """Parameters and optimizer states.

    16-bit: w psi and 12 psi, of which moments (8) exist from the first step on, but at stage 0, whose wrapper takes a
    step when it is built. fp32: 4 psi and 8 psi, the parameters being their own master copy; stages 1 to 3 keep an fp32
    copy of their shard besides (12 psi / N). Stages 1 and 2 divide the states by N, stage 3 the parameters too. Adam's
    step counter is 4 bytes per tensor that it updates: each parameter at stage 0 and under DDP, the flat shard above.
    States are those of the trained parameters; frozen ones are held whole but at stage 3.
    """
    shard = {1: at.flat // at.ranks, 2: at.flat // at.ranks, 3: at.sharded}.get(at.stage or 0, at.total)
    own_master = bool(at.stage) or at.width == 2
    moments_exist = point != "init" or (at.stage == 0 and at.width == 2)
    groups = len(at.sub_groups) if at.stage == 3 else 1 if at.stage else len(at.sizes)
    counters = 4 * groups if at.stage or at.known else 0
    states = 4 * shard * own_master + (8 * shard + counters) * moments_exist
    held = {1: at.flat, 2: at.flat, 3: at.all_sharded}.get(at.stage or 0, at.total)
    held += 0 if at.stage == 3 else at.frozen
    found: Bytes = {"parameters": held * at.width, "optimizer_states": states}
    return found | ({"offload_buffers": sum(at.offload_buffers)} if at.cell.offloads_optimizer else {})


def _gradients(at: RankSizes, point: str) -> Bytes:
    """Gradients held at ``point``.

    DDP: its buckets, w psi, at all times (at init only C++ holds them: no figure), and while it accumulates as much
    again: without synchronisation gradients are born outside the buckets. Stage 0: w psi from the first backward
    of a step until its end. Stage 1: the same while it accumulates; when the last backward ends, what touches the
    rank's partition. Stage 2: what touches the partition. Stage 3: a flat buffer of w psi / N at all times.
    """
    if at.stage == 3:
        return {"gradients": at.sharded * at.width}
    if at.stage is None:
        twice = 2 if point == "forward" and at.cell.gradient_accumulation_steps > 1 else 1
        return {} if point == "init" else {"gradients": at.total * at.width * twice}
    if point == "init" or (point == "forward" and at.cell.gradient_accumulation_steps == 1):
        return {"gradients": 0}
    if at.stage and point == "step":
        return {"gradients": 0}  # copied to fp32 and freed before the update
    if at.cell.offloads_optimizer and (at.stage == 2 or point == "backward"):
        return {"gradients": 0}  # each is moved to the host when it is reduced
    if at.stage == 0 or (at.stage == 1 and point == "forward"):
        return {"gradients": at.total * at.width}
    return {"gradients": at.owned_gradients} if at.known else {}


def _waiting_bucket(at: RankSizes, point: str) -> int:
    """Stage 1 makes its bucket at the first gradient of a step and frees it when the last backward ends."""
    accumulating = point == "forward" and at.cell.gradient_accumulation_steps > 1
    return at.bucket if at.stage == 1 and accumulating else 0


def _stage_3(at: RankSizes, point: str) -> Bytes:
    """Stage 3's bucket (permanent), persisted parameters, and parameters that stay gathered.

    At the end of forward about ``stage3_max_live_parameters`` elements are gathered, at least the last tensor in use,
    the output embedding; never more than the model has; no figure where some are frozen, whose modules backward may
    leave out. Before the first step and inside the optimizer step, none. ZeRO++ (hpZ) has a second shard of each
    parameter, one for each node.
    """
    found: Bytes = {"zero_buckets": at.bucket}
    gathered = point == "forward"
    rest = (at.total + at.frozen) * at.width - at.persisted
    live = max(at.setting("stage3_max_live_parameters"), max(at.all_sizes[0], at.all_sizes[-1])) * at.width
    found["persisted_parameters"] = at.persisted if point in ("forward", "backward") else 0
    if (group := at.setting(HPZ_KEY)) > 1:
        # Gone when the optimizer step ends, made again by the first forward. What stays gathered has no formula.
        found["secondary_parameters"] = sum(-(-size // min(group, at.ranks)) for size in at.all_sizes) * at.width
    elif not (gathered and at.frozen):
        found["gathered_parameters"] = min(rest, live) if gathered and at.ranks > 1 else 0
    return found


def _saved(at: RankSizes, *, at_peak: bool) -> Bytes:
    """Activations, logits and loss (bench.models.activations)."""
    kept = activation_bytes(
        at.config,
        *at.batch,
        at.width,
        bool(at.cell.activation_checkpointing),
        attention=at.cell.attn_implementation or "sdpa",
        lora=at.cell.lora,
        frozen=at.cell.freeze is not None,
        linear_keeps_input=at.stage == 3,
    )
    logits = logits_loss_bytes(at.config, *at.batch, at_peak=at_peak)
    if logits is not None:
        logits += at.losses - 4  # those of the micro-steps before
    return {name: float(size) for name, size in (("activations", kept), ("logits_loss", logits)) if size is not None}


def _temporaries(at: RankSizes) -> Bytes:
    """Temporaries of the for-loop AdamW, whose update needs two fp32 tensors like the one it updates (8 B per element).

    DDP and stage 0: 8 B x the largest tensor (and 4 B x the tensor before, of which one is still there), and in 16-bit
    an fp32 copy of all gradients (4 psi). Stages 1 to 3: the
    fp32 gradient of the shard, 4 B, and 8 B x the same; at stage 3 sub-group by sub-group. Norms are not in it.
    """
    if at.stage:
        shard = max(at.sub_groups) if at.stage == 3 else at.flat // at.ranks
        # Offload keeps the fp32 gradient at all times.
        return {"step_temporaries": (8 if at.cell.offloads_optimizer else 12) * shard}
    if not at.known:
        return {}
    update = max(8 * size + 4 * before for before, size in pairwise([0, *at.sizes]))
    return {"step_temporaries": update + (4 * at.total if at.width == 2 else 0)}


def _step(at: RankSizes) -> Bytes:
    found = _states(at, "step") | _gradients(at, "step") | _temporaries(at) | {"logits_loss": at.losses}
    return found | (_stage_3(at, "step") if at.stage == 3 else {})


def _loss_backward(at: RankSizes) -> Bytes:
    """All activations, and the gradients of the logits."""
    found = _states(at, "forward") | _gradients(at, "forward") | _saved(at, at_peak=True)
    if at.stage in (1, 2):
        found |= {"zero_buckets": _waiting_bucket(at, "forward")}
    return found | (_stage_3(at, "forward") if at.stage == 3 else {})


def _reduction(at: RankSizes) -> Bytes:
    """While gradients are reduced, after the last one is made.

    Stage 0: all of them, w psi, and a flat copy of a bucket of 5e8 elements. Stage 1 without ``overlap_comm``: all of
    them, and beside the bucket room for the rank's share; stage 2: its share. Where one bucket takes them all, they
    are in it, and its flat copy beside. Stage 3: the bucket and the copy that is handed to reduce-scatter. DDP
    reduces its buckets in place.
    """
    found = _states(at, "backward") | _gradients(at, "backward") | {"logits_loss": at.losses}
    whole = at.total * at.width
    if at.stage == 0:
        found["bucket_copies"] = min(_STAGE_0_BUCKET, at.total) * at.width
    elif at.stage == 3:
        found |= _stage_3(at, "backward") | {"bucket_copies": min(at.bucket, whole)}
    elif at.stage:
        found["zero_buckets"] = at.bucket * (1 + at.overlap)
        if at.bucket >= whole:
            found |= {"gradients": 0, "bucket_copies": whole}
        elif at.stage == 1 and not at.overlap:
            found["gradients"] += whole
    return found


def _first_gradient(at: RankSizes) -> Bytes:
    """Stages 1 and 2 make their bucket at the first gradient, the output embedding's, with all activations still there.

    At stage 2 the last rank, whose that gradient is, then makes room for its share, if the bucket is too small to wait.
    """
    if at.stage not in (1, 2):
        return {}
    found = _states(at, "backward") | _saved(at, at_peak=False)
    room = at.owned_gradients if at.stage == 2 and at.rank == at.ranks - 1 and at.bucket < at.total * at.width else 0
    return found | {
        "logits_loss": at.losses,
        "zero_buckets": at.bucket * (1 + at.overlap),
        "gradients": room + at.sizes[-1] * at.width,
    }
