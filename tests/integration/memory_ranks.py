"""One rank of the memory tests: several cells one after another, each counted as bench.worker.main counts it.

Usage: memory_ranks.py ENTRIES_JSON OUT_FOLDER, with RANK and WORLD_SIZE set. An entry is a cell, and the bytes of a
tensor that the rank holds on to though nothing needs it. Leaves OUT_FOLDER/rank<r>.json, one result per entry.
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
from bench.worker.composition import Composition
from bench.worker.engine import build_engine, zero_config
from bench.worker.loop import Loop
from bench.worker.model import DTYPES, build_model
from bench.worker.rank import RealRank


def count(cell, held_bytes):
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
        held = torch.zeros(held_bytes, dtype=torch.uint8)
        loop = Loop(cell, engine, model.config.vocab_size, RealRank(torch.device("cpu"), meter, "gloo"))
        unwatched = loop.counting_pass()
        watched = loop.counting_pass(composition)
        del held
    return {
        "points": composition.points(),
        "shards": watched.shards,
        "unwatched_peak_bytes": unwatched.peak_allocated_bytes,
        "peak_bytes": watched.peak_allocated_bytes,
        "steady_bytes": watched.steady_bytes,
    }


def main():
    entries, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    rank = int(os.environ["RANK"])
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=int(os.environ["WORLD_SIZE"])
    )
    deepspeed.init_distributed(dist_backend="gloo")
    results = []
    for entry in entries:
        results.append(count(Cell.model_validate(entry["cell"]), entry["held_bytes"]))
        gc.collect()
    (folder / f"rank{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


main()
