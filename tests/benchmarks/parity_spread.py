"""How far honest runs lie from their reference: the spread that the tolerances of bench.validity.parity stand on.

    python tests/benchmarks/parity_spread.py [RUNS] [SEED]

Draws RUNS cells at random (model, strategy, ranks, batch, length, dtype, recomputation, data, weights), measures
each with its reference, and prints the largest relative differences by dtype, and every verdict that is an alarm.
"""

import random
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
from forked import Ranks, planned

BUCKETS = {
    "reduce_bucket_size": 400_000,
    "stage3_prefetch_bucket_size": 100_000,
    "stage3_max_live_parameters": 400_000,
    "stage3_max_reuse_distance": 400_000,
}
MEASURES = ("worst_loss_difference", "worst_grad_norm_difference", "worst_applied_grad_norm_difference")

MODELS = ["llama-tiny", "llama-tiny-tied", "gpt2-tiny", "mixtral-tiny"]


def draw(choose):
    """Return the settings of one honest cell."""
    persistent = {"stage3_param_persistence_threshold": choose.choice([0, 1_000, 100_000])}
    return {
        "model": choose.choice(MODELS),
        "strategy": choose.choice(["ddp", "z0", "z1", "z2", "z3"]),
        "world_size": choose.choice([1, 2, 2, 4]),
        "train_micro_batch_size_per_gpu": choose.choice([1, 2]),
        "gradient_accumulation_steps": choose.choice([1, 1, 2]),
        "seq_length": choose.choice([8, 16, 24]),
        "dtype": choose.choice(["bf16", "bf16", "fp32"]),
        "activation_checkpointing": choose.choice([False, True]),
        "data": {"kind": choose.choice(["synthetic", "text"])},
        "seed": choose.randrange(10**6),
        "zero_optimization": BUCKETS | persistent,
        "warmup_steps": 1,
        "steps": 1,
    }


def main(runs, seed):
    """Measure, and print what was seen."""
    choose, seen, alarms, largest = random.Random(seed), defaultdict(list), 0, {}
    with Ranks([planned(model=model, world_size=4) for model in MODELS]) as ranks:
        for number in range(1, runs + 1):
            cell = planned(**draw(choose))
            record = ranks.measure(cell)
            if record.parity is None or record.parity.reference is None:
                alarms += 1
                print(f"no comparison: {record.label}: {record.status} {record.reason} {record.findings}", flush=True)
                continue
            for name in MEASURES:
                value = getattr(record.parity, name)
                if value is None:
                    continue
                key = (cell.cell.dtype, name)
                seen[key].append(value)
                if value >= max(seen[key]):
                    largest[key] = f"{record.label} seed {cell.cell.seed} {cell.cell.data.kind}"
            bad = [finding for finding in record.findings if finding.affects == "figures" and finding.verdict != "note"]
            if bad:
                alarms += 1
                print(f"alarm: {record.label} seed {cell.cell.seed}: {[finding.text for finding in bad]}", flush=True)
            print(f"{number}/{runs}", file=sys.stderr, flush=True)
    for (dtype, name), values in sorted(seen.items()):
        middle = sorted(values)[len(values) // 2]
        where = largest[dtype, name]
        print(f"{dtype} {name}: {len(values)} runs, median {middle:.1e}, largest {max(values):.1e} ({where})")
    print(f"{alarms} alarms in {runs} runs")


if __name__ == "__main__":
    main(int((sys.argv[1:] or ["200"])[0]), int((sys.argv[2:] or ["0"])[0]))
