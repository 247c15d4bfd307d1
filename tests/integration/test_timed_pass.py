"""The timed pass has no instrument in it: looked at from inside a real rank, while the clock runs."""

import json
import subprocess
import sys

import pytest

from bench.cell import Cell
from bench.environment import fingerprint
from bench.launch.deepspeed import environment
from bench.launch.extensions import folder
from bench.models.catalog import load_config
from bench.shared_memory import remove_buffers

pytestmark = pytest.mark.ranks

PROBE = """
import contextlib, json, pathlib, sys
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.overrides import _get_current_function_mode_stack
import torch.nn.modules.module as module
import bench.worker.loop as loop
from bench.worker.main import main

def hooks(model):
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    on_modules = [len(getattr(part, kind)) for part in model.modules() for kind in kinds]
    return on_modules + [len(parameter._backward_hooks or {}) for parameter in model.parameters()]

seen = {"counting": [], "timed": []}
def look(engine):
    return {
        "dispatch_modes": [type(mode).__name__ for mode in _get_current_dispatch_mode_stack()],
        "function_modes": len(_get_current_function_mode_stack()),
        "profiler": torch.autograd._profiler_enabled(),
        "trace": sys.gettrace() is not None or sys.getprofile() is not None,
        "global_hooks": len(module._global_forward_hooks) + len(module._global_forward_pre_hooks),
        "hooks": hooks(engine.module),
    }

train_step, counting_pass = loop.train_step, loop.Loop.counting_pass
now = ["timed"]
def watched(engine, *rest):
    seen[now[0]].append(look(engine))
    return train_step(engine, *rest)
def counting(self, *instruments):
    seen["built"] = hooks(self.engine.module)
    now[0] = "counting"
    result = counting_pass(self, *instruments)
    now[0] = "timed"
    return result
loop.train_step, loop.Loop.counting_pass = watched, counting
main(pathlib.Path(sys.argv[1]))
pathlib.Path(sys.argv[2]).write_text(json.dumps(seen))
"""


@pytest.mark.parametrize("strategy", ["ddp", "z3"])
def test_no_mode_hook_or_profiler_is_active_while_steps_are_timed(tmp_path, strategy):
    cell = Cell(model="llama-tiny", strategy=strategy, seq_length=32, warmup_steps=1, steps=2)
    job = {"cell": cell.model_dump(mode="json"), "model_config": load_config(cell.model), "device": "cpu"}
    (tmp_path / "job.json").write_text(json.dumps(job))
    (tmp_path / "probe.py").write_text(PROBE)
    stack = fingerprint()["stack"]
    env = environment("cpu", folder({name: stack[name] for name in ("python", "torch", "deepspeed")})) | {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }  # fmt: skip
    argv = [sys.executable, tmp_path / "probe.py", tmp_path / "job.json", tmp_path / "seen.json"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300)
    remove_buffers(0)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert len(seen["counting"]) == 5
    assert all("StorageMeter" in step["dispatch_modes"] for step in seen["counting"])  # the probe can see one
    assert len(seen["timed"]) == 3
    for step in seen["timed"]:
        assert step["dispatch_modes"] == []
        assert step["function_modes"] == 0
        assert not step["profiler"]
        assert not step["trace"]
        assert step["global_hooks"] == 0
        assert step["hooks"] == seen["built"]  # DeepSpeed's own, and none of ours
