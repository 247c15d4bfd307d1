"""One rank of the fidelity benchmark: a hand-written DeepSpeed loop and the suite's timed pass, pair by pair.

Usage, under the deepspeed launcher: fidelity_ranks.py CELL_JSON NUM_PAIRS OUT_JSON
Two engines of the same cell live side by side. One has only ever been driven by the bare loop below; the other
has been through the suite's counting pass. The order within each pair is drawn at random, the same in all ranks.
"""

import json
import random
import sys
import time
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist

from bench.cell import Cell
from bench.measure.memory import memory_meter
from bench.models.catalog import load_config
from bench.worker.engine import build_engine, zero_config
from bench.worker.loop import Loop
from bench.worker.model import DTYPES, build_model
from bench.worker.rank import RealRank

cell = Cell.model_validate_json(Path(sys.argv[1]).read_text())
deepspeed.init_distributed(dist_backend="gloo")
device = torch.device("cpu")
config = zero_config(cell)


def new_model():
    return build_model(
        load_config(cell.model),
        dtype=DTYPES[cell.dtype],
        device=device,
        seed=cell.seed,
        activation_checkpointing=False,
        zero3_config=config if config["zero_optimization"]["stage"] == 3 else None,
    )


bare_model = new_model()
optimizer = torch.optim.AdamW(bare_model.parameters(), lr=cell.optimizer.lr, weight_decay=0.01, foreach=False)
bare_engine, *_ = deepspeed.initialize(model=bare_model, optimizer=optimizer, config=config)
vocab_size = bare_model.config.vocab_size


def bare():
    spent = []
    for _ in range(cell.warmup_steps + cell.steps):
        ids = torch.randint(vocab_size, (cell.train_micro_batch_size_per_gpu, cell.seq_length))
        dist.barrier()
        start = time.thread_time()
        loss = bare_engine(input_ids=ids, labels=ids).loss
        bare_engine.backward(loss)
        bare_engine.step()
        loss.item()
        spent.append(time.thread_time() - start)
    return sum(spent[cell.warmup_steps :])


with memory_meter(device) as meter:
    loop = Loop(cell, build_engine(cell, new_model()), vocab_size, RealRank(device, meter, "gloo"))
    loop.counting_pass()


def suite():
    return sum(loop.timed_pass().thread_cpu_s)


bare(), bare()  # stage 3 records its trace in the first steps
order = random.Random(0)
pairs = []
for _ in range(int(sys.argv[2])):
    if order.random() < 0.5:
        suite_s, bare_s = suite(), bare()
    else:
        bare_s, suite_s = bare(), suite()
    pairs.append({"suite_s": suite_s, "bare_s": bare_s})
ranks = [None] * dist.get_world_size()
dist.all_gather_object(ranks, pairs)
if dist.get_rank() == 0:
    Path(sys.argv[3]).write_text(json.dumps(ranks))
dist.barrier()
dist.destroy_process_group()
