"""The search for the largest batch: whatever fits, it ends, asks no size twice, and its result is what was asked."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.largest import judged, largest, predicted, size_text
from bench.plan import Resources, plan
from bench.record import AllocatorModel, Emulation, Failure, parse_record
from bench.scenario import Scenario

V1 = Path(__file__).parents[1] / "data" / "records" / "v1-completed.json"
CUDA = Resources(device="cuda", slots=8, memory_bytes=80 * 2**30, shared=False)


class Asked:
    """Fits or not, by ``fits``; keeps what was asked."""

    def __init__(self, fits):
        self.fits, self.sizes = fits, []

    def __call__(self, size):
        self.sizes.append(size)
        return self.fits(size)


sizes = st.integers(1, 5000)


@given(border=st.integers(0, 6000), at_most=sizes, start=sizes)
def test_of_sizes_that_fit_up_to_a_border_the_border_is_found(border, at_most, start):
    asked = Asked(lambda size: size <= border)
    found, failing = largest(asked, at_most, start)
    assert found == min(border, at_most)
    assert failing == (border + 1 if border < at_most else None)
    assert len(set(asked.sizes)) == len(asked.sizes)
    assert {found, failing} - {0, None} <= set(asked.sizes)
    assert len(asked.sizes) <= 2 * math.log2(abs(min(start, at_most) - found) + 1) + 3


@given(answers=st.lists(st.booleans(), min_size=1, max_size=300), start=sizes)
def test_whatever_fits_the_search_ends_with_what_was_asked(answers, start):
    asked = Asked(lambda size: answers[size - 1])
    found, failing = largest(asked, len(answers), start)
    assert all(1 <= size <= len(answers) for size in asked.sizes)
    assert len(set(asked.sizes)) == len(asked.sizes)
    assert found == 0 or (found in asked.sizes and answers[found - 1])
    if failing is None:
        assert found == len(answers)
    else:
        assert failing == found + 1
        assert failing in asked.sizes
        assert not answers[failing - 1]


def test_a_start_that_is_right_asks_two_sizes():
    asked = Asked(lambda size: size <= 37)
    assert largest(asked, 4096, 37) == (37, 38)
    assert asked.sizes == [37, 38]


@pytest.mark.parametrize(("border", "at_most"), [(0, 1), (1, 1), (1, 2), (2, 2), (3, 4), (4, 4)])
def test_the_edges_are_tried(border, at_most):
    assert largest(lambda size: size <= border, at_most) == (border, None if border == at_most else border + 1)


# What a launch says


@pytest.fixture
def record():
    return parse_record(V1.read_text(), str(V1))


def with_peaks(record, init, step, reserved=None):
    ranks = [
        rank.model_copy(
            update={
                "init_peak_bytes": init,
                "peak_allocated_bytes": step,
                "peak_reserved_bytes": reserved,
                "points": [],
            }
        )
        for rank in record.memory.ranks
    ]
    return record.model_copy(update={"memory": record.memory.model_copy(update={"ranks": ranks})})


@pytest.mark.parametrize(("budget", "fits"), [(1000, True), (999, False)])
def test_on_cpu_the_larger_of_building_and_stepping_counts(record, budget, fits):
    for init, step in ((1000, 10), (10, 1000)):
        made = judged(with_peaks(record, init, step), budget)
        assert (made.fits, made.peak_bytes, made.status) == (fits, 1000, "completed")
        assert (made.reason is None) == fits
        assert made.phase == ("init" if init == 1000 else None)


def test_on_cuda_what_the_allocator_holds_counts(record):
    assert not judged(with_peaks(record, 10, 10, reserved=2000), 1999).fits
    assert judged(with_peaks(record, 10, 10, reserved=2000), 2000).fits
    assert judged(with_peaks(record, 10, 10, reserved=2000), None).fits  # it did not run out


def test_running_out_of_memory_does_not_fit_and_says_where(record):
    failure = Failure(rank=1, activity="counting pass", type="E", message="m", traceback=[], phase="backward")
    broken = record.model_copy(update={"status": "oom", "reason": "no memory", "memory": None, "failure": failure})
    made = judged(broken, None)
    assert (made.fits, made.phase, made.reason, made.peak_bytes) == (False, "backward", "no memory", None)


@pytest.mark.parametrize(("refused", "fits"), [(None, True), (2**21, False)])
def test_emulated_the_modelled_allocator_decides_unless_a_budget_is_less(record, refused, fits):
    model = AllocatorModel(
        peak_allocated_bytes=1, peak_reserved_bytes=5000, num_alloc_retries=0, out_of_memory_bytes=refused
    )
    emulation = Emulation(fits=fits, allocator=model, guesses=[], flops_per_step=1, trace="", not_known=[])
    emulated = with_peaks(record, 10, 1000).model_copy(update={"provenance": "emulated", "emulation": emulation})
    made = judged(emulated, None)
    assert (made.how, made.fits, made.peak_bytes) == ("emulated", fits, 5000)
    assert not judged(emulated, 999).fits
    assert judged(emulated, 1000).fits == fits


def test_what_formulas_say_of_a_size():
    axes = {"model": "llama-tiny", "strategy": ["z1", "fsdp2"], "train_micro_batch_size_per_gpu": "max"}
    stage_1, fsdp2 = plan(Scenario.model_validate({"matrix": axes}), CUDA)
    small, large = (predicted(stage_1, 2**31, size) for size in (1, 2))
    assert small.fits
    assert (small.how, large.peak_bytes > small.peak_bytes) == ("predicted", True)
    assert not predicted(stage_1, small.peak_bytes - 1, 1).fits
    assert predicted(fsdp2, 2**31, 1) is None


def test_sizes_in_words():
    assert size_text(80 * 2**30) == "80 GiB"
    assert size_text(6.3 * 2**20) == "6.3 MiB"
