"""Ranks that train from exported folders under HF Trainer, and then each row's own engine, and leave what they saw.

Usage, under torchrun: trainer_under_export.py ROWS_JSON OUT_JSON. ROWS_JSON is a list of [folder, cell, model
configuration]. OUT_JSON gets, from rank 0, for each row the settings that HF Trainer's engine ended with, its losses,
and collectives, each as a list: of a settled step, of the step after it, at whose beginning Trainer logs, and of a
settled step of zerostage's own loop. One start of the ranks for all rows: importing the stack takes longer than
training these models.
"""

import gc
import json
import os
import runpy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from deepspeed.runtime.zero.partition_parameters import Init
from transformers.integrations.deepspeed import unset_hf_deepspeed_config
from watch import SETTLED, Watch, plain

from bench.cell import Cell
from bench.measure.memory import memory_meter
from bench.worker.effective import effective_settings
from bench.worker.engine import build_engine, zero_config
from bench.worker.loop import Loop
from bench.worker.model import DTYPES, build_model
from bench.worker.rank import RealRank


def under_trainer(folder):
    os.chdir(folder)
    Init.num_persisted_elements = 0  # counted over all models of a process
    trainer = runpy.run_path("train.py")["make_trainer"]()
    trainer.args.logging_steps = SETTLED  # the one change: the file's 10 steps would log nothing here
    watch = Watch()
    trainer.add_callback(watch)
    trainer.train()
    seen = {
        "effective": effective_settings(trainer.model_wrapped) if zero_config(CELL) else None,
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "steps": trainer.state.global_step,
    } | watch.seen()
    if zero_config(CELL):
        trainer.model_wrapped.destroy()
    unset_hf_deepspeed_config()
    return seen


def under_zerostage(config):
    device = torch.device("cpu")
    zero = zero_config(CELL)
    Init.num_persisted_elements = 0
    with memory_meter(device) as meter:
        model = build_model(
            config,
            dtype=DTYPES[CELL.dtype],
            device=device,
            seed=CELL.seed,
            activation_checkpointing=CELL.activation_checkpointing,
            zero3_config=zero if zero and zero["zero_optimization"]["stage"] == 3 else None,
        )
        engine = build_engine(CELL, model)
        vocab_size = model.config.get_text_config().vocab_size
        counted = Loop(CELL, engine, vocab_size, RealRank(device, meter, "gloo")).counting_pass()
    assert counted.steady
    if zero:
        engine.destroy()
    return plain(counted.collectives)


rows, out = (Path(argument) for argument in sys.argv[1:])
found = []
for folder, settings, config in json.loads(rows.read_text()):
    CELL = Cell(**settings)
    seen = under_trainer(folder)
    gc.collect()
    found.append(seen | {"ours": under_zerostage(config)})
    gc.collect()
if dist.get_rank() == 0:
    out.write_text(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
