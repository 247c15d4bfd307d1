"""One rank that trains several cells one after another and leaves what each moved in its counted step.

Usage, with RANK and WORLD_SIZE set: traffic_ranks.py CELLS_JSON OUT_JSON. CELLS_JSON is a list of
[cell, model configuration]; OUT_JSON gets, from rank 0, a list of [[phase, op, dtype, bytes], ...].
One start of the ranks for all cells: importing the stack takes longer than training these models.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.zero.partition_parameters import Init

from bench.cell import Cell
from bench.measure.memory import memory_meter
from bench.worker.engine import build_engine, zero_config
from bench.worker.loop import Loop
from bench.worker.model import DTYPES, build_model
from bench.worker.rank import RealRank
from bench.zero.practice import CONTROL_ELEMENTS

cells, out = (Path(argument) for argument in sys.argv[1:])
deepspeed.init_distributed(dist_backend="gloo")
device = torch.device("cpu")
moved = []
for settings, config in json.loads(cells.read_text()):
    cell = Cell(**settings)
    zero = zero_config(cell)
    Init.num_persisted_elements = 0  # counted over all models of a process
    with memory_meter(device) as meter:
        model = build_model(
            config,
            dtype=DTYPES[cell.dtype],
            device=device,
            seed=cell.seed,
            activation_checkpointing=cell.activation_checkpointing,
            zero3_config=zero if zero and zero["zero_optimization"]["stage"] == 3 else None,
        )
        engine = build_engine(cell, model)
        rank = RealRank(device, meter, "gloo")
        counted = Loop(cell, engine, model.config.get_text_config().vocab_size, rank).counting_pass()
    assert counted.steady, cell
    sums: Counter[tuple[str, str, str]] = Counter()
    for event in counted.collectives:
        if event.num_elements > CONTROL_ELEMENTS:
            sums[event.phase, event.op, event.dtype] += event.num_bytes
    moved.append([[*key, num_bytes] for key, num_bytes in sums.items()])
    if zero is not None:
        engine.destroy()
    del engine, model
if dist.get_rank() == 0:
    out.write_text(json.dumps(moved))
dist.barrier()
dist.destroy_process_group()
