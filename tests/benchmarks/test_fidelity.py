"""Does the suite's timed pass cost what a hand-written DeepSpeed loop costs? Run on a quiet machine:

    scripts/test.sh tests/benchmarks/test_fidelity.py -s --benchmark-only --benchmark-json fidelity.json

Every pair is in the JSON file. The verdict is on CPU time of the driving thread, which neighbours hardly disturb.
"""

import json
import statistics
import subprocess
from pathlib import Path

import pytest
from interval import interval_95

from bench.cell import Cell
from bench.environment import fingerprint
from bench.launch.deepspeed import command, environment
from bench.launch.extensions import folder

PAIRS = 40
STEPS = 5


@pytest.mark.parametrize("strategy", ["z1", "z3"])
def test_timed_pass_costs_what_a_bare_loop_costs(benchmark, tmp_path, strategy):
    cell = Cell(model="llama-tiny", strategy=strategy, world_size=2, seq_length=64, warmup_steps=1, steps=STEPS)
    (tmp_path / "cell.json").write_text(cell.model_dump_json())
    argv = command(2, "cpu", tmp_path / "cell.json")
    argv = [part for part in argv[:-2] if part != "--module"]
    argv += [str(Path(__file__).with_name("fidelity_ranks.py")), str(tmp_path / "cell.json"), str(PAIRS)]
    argv += [str(tmp_path / "pairs.json")]

    stack = fingerprint()["stack"]
    env = environment("cpu", folder({name: stack[name] for name in ("python", "torch", "deepspeed")}))

    def launch():
        subprocess.run(argv, env=env, check=True, timeout=1200)

    benchmark.pedantic(launch, rounds=1)
    ranks = json.loads((tmp_path / "pairs.json").read_text())
    ratios = [pair["suite_s"] / pair["bare_s"] for pairs in ranks for pair in pairs]
    low, high = interval_95(ratios)
    benchmark.extra_info |= {"ranks": ranks, "median": statistics.median(ratios), "interval_95": [low, high]}
    print(
        f"{strategy}: suite/bare thread CPU time, median {statistics.median(ratios):.3f}, 95% [{low:.3f}, {high:.3f}]"
    )
    assert 0.95 <= low <= high <= 1.05
