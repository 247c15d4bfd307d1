"""The same rank of a cell in a real gloo run and emulated: what was counted in each, to be held side by side."""

import gzip
import json
from itertools import product

import left_collectives
from forked import planned

MODELS = ("llama-tiny", "gpt2-tiny", "mixtral-tiny")
STRATEGIES = ("z0", "z1", "z2", "z3")
WORLD_SIZES = (2, 4)
# The experts' default implementation has shapes that depend on what tokens hold; these two have not.
EXPERTS = {"mixtral-tiny": {"experts_implementation": "grouped_mm"}}
# As in scenarios/smoke.yaml: DeepSpeed's defaults would put a tiny model into one bucket, and shard none of it.
SMALL_BUCKETS = {
    "reduce_bucket_size": 400_000,
    "stage3_prefetch_bucket_size": 100_000,
    "stage3_param_persistence_threshold": 1_000,
    "stage3_max_live_parameters": 400_000,
    "stage3_max_reuse_distance": 400_000,
}


def cross(model, strategy, world_size):
    """Return the settings of the cells of one line of the table: accumulation and recomputation."""
    return [
        {
            "model": model,
            "strategy": strategy,
            "world_size": world_size,
            "gradient_accumulation_steps": steps,
            "activation_checkpointing": recompute,
            "zero_optimization": SMALL_BUCKETS,
        }
        | EXPERTS.get(model, {})
        for steps, recompute in product((1, 2), (False, True))
    ]


def _counted(record, number, collectives):
    memory = record.memory.ranks[number].model_dump()
    del memory["host_peak_rss_bytes"], memory["peak_reserved_bytes"]  # of the process; of CUDA's allocator
    return {"collectives": collectives, **memory, "shards": record.shards[number].model_dump()}


def real(ranks, settings):
    """Return what every rank of a real run counted, in rank order, as `measured` does."""
    return measured(ranks, settings)[1]


def measured(ranks, settings):
    """Return the record of a real run, and what every rank of it counted, in rank order.

    Bytes of memory, elements of shards, and ``collectives``: every one of the last counted step, in the order of issue.
    """
    cell = planned(**settings)
    record = ranks.measure(cell, left_collectives.NAME)
    assert record.status == "completed", record.reason
    left = [ranks.path / f"collectives.rank{rank}.json" for rank in range(cell.cell.world_size)]
    found = [_counted(record, rank, json.loads(file.read_text())) for rank, file in enumerate(left)]
    for file in left:
        file.unlink()
    return record, found


def emulated(ranks, settings, rank, path="cpu"):
    """Return what the emulated ``rank`` counted, as `real` does; ``path`` is the scenario's ``accelerator_path``."""
    target = {"rank": rank, "accelerator_path": path}
    record = ranks.measure(planned(mode="emulated", emulation=target, **settings))
    assert record.status == "completed", record.reason
    assert record.findings == []
    trace = json.loads(gzip.decompress((ranks.path / record.emulation.trace).read_bytes()))
    # The trace places every collective among the operators; it must place each once, in order.
    numbers = [-number for number in trace["order"] if number < 0]
    assert numbers == list(range(1, len(trace["collectives"]) + 1))
    return _counted(record, 0, trace["collectives"])
