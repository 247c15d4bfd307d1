"""Faults put into a rank on purpose: each breaks the running worker, its engine or its instruments, never a record.

Every function is called in the rank, after the fork and before the worker's main.
"""

import threading

import torch
import torch.distributed as dist

import bench.measure.clock as clock
import bench.measure.comm as comm
import bench.measure.memory as memory
import bench.worker.data as data
import bench.worker.effective as effective
import bench.worker.engine as engine
import bench.worker.loop as loop
import bench.worker.model as model


def every_rank_reads_the_same_rows():
    real = data.micro_batches
    loop.micro_batches = lambda cell, vocab, step, rank: real(cell, vocab, step, 0)


def the_same_batch_in_every_step():
    real = data.micro_batches
    loop.micro_batches = lambda cell, vocab, step, rank: real(cell, vocab, 0, rank)


def sequences_cut_in_half():
    real = data.micro_batches
    loop.micro_batches = lambda *args: [batch[:, : batch.shape[1] // 2] for batch in real(*args)]


def _backward(change):
    """Let ``change(loss, micro_step)`` stand for the loss of every micro-step."""
    real = engine.build_engine

    def build(cell, module):
        built = real(cell, module)
        backward, count = built.backward, [0]

        def changed(loss, *args, **kwargs):
            micro_step = count[0] % cell.gradient_accumulation_steps
            count[0] += 1
            return backward(change(loss, micro_step, cell), *args, **kwargs)

        built.backward = changed
        return built

    engine.build_engine = build


def a_micro_batch_is_lost():
    _backward(lambda loss, micro_step, cell: loss * 0 if micro_step == 0 else loss)


def gradients_are_summed_not_averaged():
    _backward(lambda loss, micro_step, cell: loss * cell.world_size)


def accumulation_is_divided_twice():
    _backward(lambda loss, micro_step, cell: loss / cell.gradient_accumulation_steps)


def _config(**changes):
    real = engine.ds_config

    def changed(cell):
        config = real(cell)
        for key, value in changes.items():
            config[key] = {**config[key], **value} if isinstance(value, dict) else value
        return config

    engine.ds_config = changed


def the_stage_is_another():
    _config(zero_optimization={"stage": 0})


def _claim(**claims):
    real = effective.effective_settings
    effective.effective_settings = lambda built: real(built) | claims


def the_stage_is_taken_from_the_label():
    _config(zero_optimization={"stage": 0})
    _claim(zero_stage=2, optimizer_steps_at_start=0)


def parameters_are_not_sharded():
    _config(zero_optimization={"stage": 2})
    _claim(zero_stage=3)


def clipping_is_off():
    _config(gradient_clipping=0.0)


def accumulation_is_ignored():
    real = engine.ds_config

    def changed(cell):
        steps = {"gradient_accumulation_steps": 1, "train_batch_size": cell.train_batch_size // 2}
        return real(cell) | steps

    engine.ds_config = changed


def _adamw(**changes):
    real = torch.optim.AdamW.__init__

    def init(self, params, **settings):
        real(self, params, **(settings | changes))

    torch.optim.AdamW.__init__ = init


def the_learning_rate_is_another():
    _adamw(lr=3e-3)


def the_learning_rate_is_another_and_hidden():
    _adamw(lr=1e-2)
    _claim(lr=1e-3)


def one_optimizer_step_is_left_out():
    real, calls = torch.optim.AdamW.step, [0]

    def step(self, closure=None):
        calls[0] += 1
        return None if calls[0] == 2 else real(self, closure)

    torch.optim.AdamW.step = step


def the_optimizer_has_a_past():
    real = engine.build_engine

    def build(cell, module):
        built = real(cell, module)
        inner = engine.inner_optimizer(built)
        params = [param for group in inner.param_groups for param in group["params"]]
        for param in params:
            param.grad = torch.zeros_like(param)
        inner.step()
        for param in params:
            param.grad = None
        return built

    engine.build_engine = build


def the_dtype_is_another():
    model.DTYPES["bf16"] = torch.float32


def the_weights_are_another_seeds():
    real = model._seed_weights
    model._seed_weights = lambda module, seed, std: real(module, seed + 1, std)


def _built(change):
    real = model.build_model

    def build(config, **settings):
        built = real(config, **settings)
        change(built)
        return built

    model.build_model = build


def _small_gradients(change):
    def hook(module):
        for name, param in module.named_parameters():
            if "k_proj" in name:
                param.register_hook(change)

    _built(hook)


def the_gradients_of_some_tensors_are_lost():
    _small_gradients(lambda grad: grad * 0)


def the_gradients_of_some_tensors_have_the_wrong_sign():
    _small_gradients(lambda grad: -grad)


def dropout_is_on():
    def change(module):
        for part in module.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.1

    _built(change)


def a_layer_is_frozen():
    _built(lambda module: module.get_input_embeddings().requires_grad_(False))


def nothing_is_recomputed():
    _built(lambda module: module.gradient_checkpointing_disable())


def the_updated_parameters_are_not_gathered():
    import deepspeed.runtime.zero.stage_1_and_2 as stage_1_and_2

    stage_1_and_2.all_gather_dp_groups = lambda *args, **kwargs: None


def one_rank_loses_its_loss():
    if dist_rank() == 1:
        real = loop.train_step
        loop.train_step = lambda *args: real(*args) * float("nan")


def dist_rank():
    import os

    return int(os.environ["RANK"])


def all_results_are_of_rank_0():
    real = dist.all_gather_object

    def gather(found, mine, *args):
        real(found, mine, *args)
        found[:] = [found[0]] * len(found)

    dist.all_gather_object = gather


def the_clock_does_not_wait_for_the_device():
    """A device that queues its work, as a GPU does: only a synchronisation that waits for it sees the work's time."""
    real_step, queue = loop.train_step, []

    def queued(*args):
        wait(None)  # one stream: a step begins when the one before has ended
        thread = threading.Thread(target=lambda: real_step(*args))
        thread.start()
        queue.append(thread)
        return 0.0

    def wait(device):
        while queue:
            queue.pop().join()

    def timed_pass(self):
        loop.train_step, loop.synchronize = queued, wait
        return real_pass(self)

    real_pass, barrier = loop.Loop.timed_pass, dist.barrier
    loop.Loop.timed_pass = timed_pass
    dist.barrier = lambda: (wait(None), barrier())[1]
    clock.synchronize = lambda device: None


def traffic_of_the_step_before_is_counted_too():
    real, events = comm.CollectiveRecorder.__init__, []

    def init(self, *args):
        real(self, *args)
        self.events = events

    comm.CollectiveRecorder.__init__ = init


def the_smaller_side_of_a_collective_is_counted():
    comm.max = lambda sides, key, default: min(sides, key=key, default=default)


def a_rank_counts_no_gathers():
    if dist_rank() == 1:
        comm._NAMES = {name: op for name, op in comm._NAMES.items() if "gather" not in name}
        real = comm.CollectiveRecorder._record
        comm.CollectiveRecorder._record = lambda self, name, args: None if "gather" in name else real(self, name, args)


def a_collective_too_many():
    real = loop.train_step

    def step(*args):
        dist.all_reduce(torch.zeros(1000, dtype=torch.bfloat16))
        return real(*args)

    loop.train_step = step


def the_meter_starts_after_the_model():
    real = memory.StorageMeter.__init__

    def init(self, *args):
        real(self, *args)
        self._late = True

    enter, see = memory.StorageMeter.__enter__, memory.StorageMeter._see
    memory.StorageMeter.__init__ = init

    def watch(self, *args):
        if not getattr(self, "_late", False):
            see(self, *args)

    def build(cell, module):
        built = real_build(cell, module)
        for meter in meters:
            meter._late = False
        return built

    meters, real_build = [], engine.build_engine
    memory.StorageMeter.__enter__ = lambda self: (meters.append(self), enter(self))[1]
    memory.StorageMeter._see = watch
    engine.build_engine = build


def the_peak_is_reset_before_it_is_read():
    real, meters = loop.train_step, []
    enter = memory.StorageMeter.__enter__
    memory.StorageMeter.__enter__ = lambda self: (meters.append(self), enter(self))[1]

    def step(*args):
        loss = real(*args)
        for meter in meters:
            meter.reset_peak()
        return loss

    loop.train_step = step


def timed_steps_are_fed_half():
    real = loop.Loop.timed_pass

    def timed_pass(self):
        batches = loop.micro_batches
        loop.micro_batches = lambda *args: [batch[:, : batch.shape[1] // 2] for batch in batches(*args)]
        return real(self)

    loop.Loop.timed_pass = timed_pass


def a_replica_drifts():
    if dist_rank() == 1:
        real = loop.train_step

        def step(built, *args):
            loss = real(built, *args)
            with torch.no_grad():
                next(built.module.parameters())[0].mul_(1.01)
            return loss

        loop.train_step = step


def inputs_require_no_gradient():
    """As if neither transformers nor peft saw to it (enable_input_require_grads)."""
    from transformers import PreTrainedModel

    PreTrainedModel.enable_input_require_grads = lambda self: None


FAULTS = {
    name: value
    for name, value in globals().items()
    if callable(value)
    and getattr(value, "__module__", "") == __name__
    and not name.startswith("_")
    and name != "dist_rank"
}
