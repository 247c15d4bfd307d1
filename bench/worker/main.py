"""What every rank does: ``python -m bench.worker.main JOB`` under a launcher that sets RANK and WORLD_SIZE.

A warm agent (bench.worker.agent) calls ``main`` in a child that it has forked.

JOB is a JSON file that bench.job writes. Rank 0 leaves ``result.json`` beside it; a rank that fails leaves
``failure.rank<r>.json``. ``stacks.rank<r>.txt`` is written on SIGUSR1. No other result crosses the
process border, and exit status 0 proves nothing.
"""

import contextlib
import dataclasses
import faulthandler
import importlib.metadata
import json
import os
import platform
import random
import signal
import sys
import time
import traceback
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

# What must outlive the run, for the reason that `leave` gives.
_KEPT: list[Any] = []


def _merged(events: list[Any]) -> list[dict[str, Any]]:
    """Merge equal collectives of one step, in order of first appearance, with their count."""
    return [dataclasses.asdict(event) | {"count": count} for event, count in Counter(events).items()]


def _spent(began: dict[str, float]) -> dict[str, float]:
    """Return how long each activity took: it ended when the next one began, the last one now."""
    times = [*began.values(), time.monotonic()]
    return {name: after - before for name, (before, after) in zip(began, pairwise(times), strict=True)}


def _run(job: dict[str, Any], now: dict[str, float]) -> dict[str, Any]:
    now["importing torch, deepspeed and transformers"] = time.monotonic()
    import deepspeed
    import numpy
    import torch
    import torch.distributed as dist
    import transformers

    from bench.cell import Cell
    from bench.corpus import check_unchanged
    from bench.environment import cpu_name
    from bench.measure.memory import StorageMeter, host_peak_rss_bytes
    from bench.worker.composition import Composition
    from bench.worker.effective import effective_settings
    from bench.worker.engine import build_engine, optimizer_steps, zero_config
    from bench.worker.holdings import fingerprint
    from bench.worker.loop import Loop
    from bench.worker.model import DTYPES, build_model, count_params
    from bench.worker.rank import real_rank

    cell = Cell.model_validate(job["cell"])
    check_unchanged(cell.data.path, job.get("corpus"))
    now["joining the process group"] = time.monotonic()
    with contextlib.ExitStack() as instruments:
        if cell.emulation is None:
            rank: Any = instruments.enter_context(real_rank(cell, job["device"]))
        else:
            from bench.emulate.rank import emulated_rank

            faulthandler.enable()  # what reads a tensor without memory, read by bench.status
            rank = instruments.enter_context(emulated_rank(cell))
        # All of them: a forked rank has inherited the state of those that no fork renews.
        random.seed(cell.seed)
        numpy.random.seed(cell.seed % 2**32)
        torch.manual_seed(cell.seed)
        meter = rank.meter
        config = zero_config(cell)
        now["building the model"] = time.monotonic()
        model = build_model(
            job["model_config"],
            dtype=DTYPES[cell.dtype],
            device=rank.device,
            seed=cell.seed,
            activation_checkpointing=cell.activation_checkpointing,
            experts_implementation=cell.experts_implementation,
            attn_implementation=cell.attn_implementation,
            lora=cell.lora,
            freeze=cell.freeze,
            zero3_config=config if config and config["zero_optimization"]["stage"] == 3 else None,
        )
        num_params = count_params(model)
        now["building the engine"] = time.monotonic()
        engine = build_engine(cell, model)
        effective = effective_settings(engine)
        init_peak_bytes = meter.peak_allocated_bytes()
        # The storages that CUDA's allocator counts are not known one by one.
        composition = Composition(engine, meter, apart=rank.apart) if isinstance(meter, StorageMeter) else None
        now["counting pass"] = time.monotonic()
        loop = Loop(cell, engine, model.config.get_text_config().vocab_size, rank)
        counted = loop.counting_pass(composition)
    times = None
    if cell.emulation is None:
        now["timed pass"] = time.monotonic()
        times = loop.timed_pass()
    now["gathering the results"] = time.monotonic()
    result = {
        "num_params": num_params,
        "num_tensors": sum(1 for _ in model.parameters()),
        "tensor_names": [name for name, param in model.named_parameters() if param.requires_grad],
        "device_name": torch.cuda.get_device_name() if rank.device.type == "cuda" else cpu_name(),
        "backend": rank.backend,
        "stack": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            # What was imported, which need not be what is installed under that name.
            "deepspeed": deepspeed.__version__,
            "transformers": transformers.__version__,
            "accelerate": importlib.metadata.version("accelerate"),
            **({"peft": importlib.metadata.version("peft")} if cell.lora else {}),
        },
        "num_threads": torch.get_num_threads(),
        "effective": effective,
        "skipped_steps": int(engine.skipped_steps),
        "memory_kind": meter.kind,
    }
    mine = {
        "rank": dist.get_rank(),
        "shards": counted.shards,
        "collectives": _merged(counted.collectives),
        "steady": counted.steady,
        "memory": {
            "init_peak_bytes": init_peak_bytes,
            "steady_bytes": counted.steady_bytes,
            "peak_allocated_bytes": counted.peak_allocated_bytes,
            "peak_reserved_bytes": counted.peak_reserved_bytes,
            "host_peak_rss_bytes": host_peak_rss_bytes(),
            "points": composition.points() if composition else [],
        },
        "offload": composition.offload() if composition else None,
    }
    if times is None:
        result |= {"ranks": [mine], "emulated": rank.found(Path(job["trace"]))}
    else:
        taken = optimizer_steps(engine) - effective["optimizer_steps_at_start"]
        mine |= _trained(counted, times, loop) | {"optimizer_steps": taken, "fingerprint": fingerprint(engine)}
        result["ranks"] = _gathered(mine)
    _KEPT.append(engine)
    return result | {"activity_s": _spent(now)}


def _trained(counted: Any, times: Any, loop: Any) -> dict[str, Any]:
    """Return what a rank that really computes and is timed has to say besides."""
    return {
        "pid": os.getpid(),
        "node": int(os.environ.get("GROUP_RANK") or os.environ.get("CROSS_RANK") or 0),
        "grad_norms": counted.grad_norms,
        "gradients": counted.gradients,
        "applied": [dataclasses.asdict(seen) for seen in counted.applied],
        "skipped_in_counting": counted.skipped_steps,
        "skipped_in_timing": times.skipped_steps,
        "tokens_per_step": times.tokens,
        "step_times_s": times.wall_s,
        "step_thread_cpu_s": times.thread_cpu_s,
        "witness_s": times.witness_s,
        "losses": loop.losses,
    }


def _gathered(mine: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what every rank found, by rank. All ranks must call it."""
    import torch.distributed as dist

    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, mine)
    dist.barrier()
    return ranks


def main(job_path: Path) -> None:
    """Run the job; any exception becomes a failure file and exit status 1. SIGUSR1 writes this rank's stacks."""
    rank = int(os.environ.get("RANK", "0"))
    stacks = job_path.with_name(f"stacks.rank{rank}.txt").open("w")  # read by bench.launch.witness
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    activities = {"reading the job": time.monotonic()}
    try:
        result = _run(json.loads(job_path.read_text()), activities)
        if rank == 0:
            part = job_path.with_name("result.json.part")
            part.write_text(json.dumps(result))
            part.replace(job_path.with_name("result.json"))
    except BaseException as error:
        from bench.worker.failure import write_failure

        write_failure(job_path.parent, rank, list(activities)[-1], error)
        raise


def leave(status: int) -> None:
    """End the process without freeing anything.

    DDP's reducer, freed with Python's lock in hand, joins gloo's threads, and one of these may be waiting for that very
    lock to free the tensor of the last barrier (torch 2.13): about one run in two hundred would never end.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except BaseException:
        traceback.print_exc()
        leave(1)
    leave(0)
