"""Ranks that train from an exported file as `llamafactory-cli train` does, and leave what they saw.

Usage, under torchrun, in the folder of the file: llamafactory_under_export.py OUT_JSON.
"""

import gc
import json
import sys
from pathlib import Path

import deepspeed
import torch.distributed as dist
import yaml
from deepspeed.runtime.engine import DeepSpeedEngine
from llamafactory.train.tuner import run_exp
from transformers import TrainerCallback
from watch import SETTLED, Watch

from bench.worker.effective import effective_settings


class Settings(TrainerCallback):
    """Reads the engine before LLaMA-Factory takes the process group away."""

    def on_train_end(self, args, state, control, **others):
        (engine,) = (found for found in gc.get_objects() if isinstance(found, DeepSpeedEngine))
        if dist.get_rank() == 0:
            seen = {"effective": effective_settings(engine), "steps": state.global_step} | watch.seen()
            Path(sys.argv[1]).write_text(json.dumps(seen))


deepspeed.init_distributed("gloo")  # on CPUs stage 3 needs it, as the exported file says
watch = Watch()
settings = yaml.safe_load(Path("llamafactory.yaml").read_text())
run_exp(settings | {"logging_steps": SETTLED}, callbacks=[watch, Settings()])
