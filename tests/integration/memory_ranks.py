"""One rank of the memory tests: several cells one after another, each counted as bench.worker.main counts it.

Usage: memory_ranks.py CELLS_JSON OUT_FOLDER, with RANK and WORLD_SIZE set. Leaves OUT_FOLDER/rank<r>.json: a list
of what the counting pass of each cell found. A cell may name a fault that holds memory it should not.
"""

import gc
import json
import os
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist

from bench.cell import Cell
from bench.measure.memory import StorageMeter
from bench.models.catalog import load_config
from bench.worker import loop as worker_loop
from bench.worker.composition import Composition
from bench.worker.engine import build_engine, zero_config
from bench.worker.model import DTYPES, build_model

FAULTS = ("extra tensor", "")


def count(cell, fault):
    config = zero_config(cell)
    with StorageMeter() as meter:
        model = build_model(
            load_config(cell.model),
            dtype=DTYPES[cell.dtype],
            device=torch.device("cpu"),
            seed=cell.seed,
            activation_checkpointing=cell.activation_checkpointing,
            zero3_config=config if config and config["zero_optimization"]["stage"] == 3 else None,
        )
        engine = build_engine(cell, model)
        composition = Composition(engine, meter)
        held = torch.zeros(100_000) if fault == "extra tensor" else None
        loop = worker_loop.Loop(cell, engine, model.config.vocab_size, torch.device("cpu"))
        counted = loop.counting_pass(meter, composition)
        del held
    return {
        "points": composition.points(),
        "shards": composition.shards,
        "steady_bytes": counted.steady_bytes,
        "peak_allocated_bytes": counted.peak_allocated_bytes,
        "last_peak_bytes": meter.peak_allocated_bytes(),
        "births": composition.describe() if hasattr(composition, "describe") else None,
    }


def main():
    folder = Path(sys.argv[2])
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    deepspeed.init_distributed(dist_backend="gloo")
    results = []
    for entry in json.loads(Path(sys.argv[1]).read_text()):
        results.append(count(Cell.model_validate(entry["cell"]), entry.get("fault")))
        gc.collect()
    (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


main()
