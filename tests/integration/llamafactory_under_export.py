"""Ranks that train from an exported file as `llamafactory-cli train` does, and leave what they saw.

Usage, under torchrun, in the folder of the file: llamafactory_under_export.py OUT_JSON.
"""

import gc
import json
import sys
from pathlib import Path

import torch.distributed as dist
import yaml
from deepspeed.runtime.engine import DeepSpeedEngine
from llamafactory.train.tuner import run_exp
from watch import SETTLED, Watch

from bench.worker.effective import effective_settings

watch = Watch()
settings = yaml.safe_load(Path("llamafactory.yaml").read_text())
run_exp(settings | {"logging_steps": SETTLED}, callbacks=[watch])
(engine,) = (found for found in gc.get_objects() if isinstance(found, DeepSpeedEngine))
if dist.get_rank() == 0:
    Path(sys.argv[1]).write_text(json.dumps({"effective": effective_settings(engine)} | watch.seen()))
