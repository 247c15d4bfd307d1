"""A record is the same whichever way its ranks were started: everything but times, to the last bit."""

import pytest
from exact import exact
from forked import OFFER, planned

import bench.job
from bench.job import Job

pytestmark = pytest.mark.ranks

SPLIT = {"reduce_bucket_size": 400_000, "stage3_prefetch_bucket_size": 100_000, "stage3_param_persistence_threshold": 0}
CELLS = [
    planned(strategy="z1", model="mixtral-tiny"),
    planned(strategy="z2", gradient_accumulation_steps=2, zero_optimization=SPLIT),
    planned(strategy="z3", activation_checkpointing=True, train_micro_batch_size_per_gpu=2),
]
# Each takes a launch of its own, 12 seconds.
MORE = [
    planned(strategy="ddp"),
    planned(strategy="z0", gradient_accumulation_steps=2),
    planned(strategy="z3", zero_optimization=SPLIT),
    planned(strategy="z0", dtype="fp32"),
    planned(strategy="z1", world_size=1),
    planned(strategy="z2", data={"kind": "text"}),
    planned(strategy="z3", model="gpt2-tiny", dtype="fp32", zero_optimization=SPLIT),
]


@pytest.mark.parametrize(
    "cell", [*CELLS, *(pytest.param(cell, marks=pytest.mark.slow) for cell in MORE)], ids=lambda cell: cell.label
)
def test_a_record_is_the_same_in_both_ways(ranks, cell):
    forked = ranks.measure(cell)
    launched = bench.job.measure(Job(cell, 0), ranks.path, ranks.host, OFFER.device, None, timeout_s=120.0)
    assert forked.status == "completed", forked.reason
    assert (forked.launch.isolation, launched.launch.isolation) == ("fork", "process")
    assert exact(forked) == exact(launched)
    assert list(forked.activity_s) == list(launched.activity_s)
