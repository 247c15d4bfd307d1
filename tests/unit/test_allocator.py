"""The model of PyTorch's CUDA caching allocator: its rules one by one, by hand, and what must hold of any sequence."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.emulate.allocator import Allocator

MIB = 2**20


def after(*changes, capacity=2**40):
    """Return the allocator after ``changes``: (key, bytes) each."""
    allocator = Allocator(capacity)
    for key, size in changes:
        allocator.change(key, int(size))
    return allocator


def held(allocator):
    return allocator.allocated_bytes, allocator.reserved_bytes


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),  # the largest of the small pool
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB - 511, 10 * MIB, 10 * MIB),  # rounded first
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # 1 MiB is left over, and is not split off
        (11 * MIB - 512, 11 * MIB - 512, 12 * MIB),
        (1000 * MIB, 1000 * MIB, 1000 * MIB),
    ],
)
def test_one_request(size, allocated, reserved):
    assert held(after((0, size))) == (allocated, reserved)


def test_nothing_is_allocated_for_nothing():
    assert held(after((0, 0))) == (0, 0)


def test_a_small_segment_is_shared_down_to_its_last_512_bytes():
    shared = [(0, MIB), (1, MIB - 512), (2, 1)]
    assert held(after(*shared)) == (2 * MIB, 2 * MIB)
    assert held(after(*shared, (3, 1))) == (2 * MIB + 512, 4 * MIB)


def test_a_large_segment_is_shared():
    shared = [(key, 5 * MIB) for key in range(4)]
    assert held(after(*shared)) == (20 * MIB, 20 * MIB)
    assert held(after(*shared, (4, 5 * MIB))) == (25 * MIB, 40 * MIB)


def test_a_large_block_is_split_if_more_than_1_mib_is_left():
    assert held(after((0, 9.5 * MIB), (1, 9.5 * MIB))) == (20 * MIB, 20 * MIB)
    assert held(after((0, 9.5 * MIB), (1, 9.5 * MIB - 512))) == (19 * MIB - 512, 20 * MIB)


def test_small_and_large_do_not_share():
    assert held(after((0, 2 * MIB), (1, 512))) == (2 * MIB + 512, 22 * MIB)
    assert held(after((0, 20 * MIB), (0, 0), (1, 512))) == (512, 22 * MIB)


def test_a_freed_block_joins_both_neighbours_and_is_used_again():
    four = [(key, 5 * MIB) for key in range(4)]
    joined = after(*four, (0, 0), (2, 0), (1, 0), (4, 15 * MIB))
    assert held(joined) == (20 * MIB, 20 * MIB)


def test_enough_in_all_is_not_enough_in_one_piece():
    four = [(key, 5 * MIB) for key in range(4)]
    assert held(after(*four, (0, 0), (2, 0), (4, 6 * MIB))) == (16 * MIB, 40 * MIB)
    assert held(after(*four, (0, 0), (1, 0), (4, 6 * MIB))) == (16 * MIB, 20 * MIB)


def test_the_smallest_block_that_fits_is_taken():
    two = after((0, 16 * MIB), (1, 12 * MIB), (0, 0), (1, 0), (2, 11.5 * MIB))
    assert held(two) == (12 * MIB, 28 * MIB)  # of the 16 MiB, 4.5 would have been split off


def test_a_small_part_of_a_large_free_block_may_be_taken():
    assert held(after((0, 1000 * MIB), (0, 0), (1, 2 * MIB))) == (2 * MIB, 1000 * MIB)


def test_at_capacity_whole_free_segments_are_given_back():
    full = [(0, 12 * MIB), (1, 12 * MIB), (2, 12 * MIB), (3, 512), (3, 0)]
    kept = after(*full, (0, 0), (1, 0), capacity=40 * MIB)
    assert (held(kept), kept.num_alloc_retries) == ((12 * MIB, 38 * MIB), 0)
    kept.change(4, 20 * MIB)
    assert (held(kept), kept.num_alloc_retries) == ((32 * MIB, 32 * MIB), 1)
    assert kept.out_of_memory is None
    assert kept.peak_reserved_bytes == 38 * MIB


def test_a_segment_that_is_used_in_part_is_not_given_back():
    four = [(key, 5 * MIB) for key in range(4)]
    split = after(*four, (4, 20 * MIB), *((key, 0) for key in (0, 1, 2, 4)), capacity=40 * MIB)
    split.change(5, 25.5 * MIB)
    assert (held(split), split.num_alloc_retries) == ((31 * MIB, 46 * MIB), 1)  # the rest of 0.5 MiB is not split off


def test_what_does_not_fit_is_noted_once_as_pytorch_says_it():
    over = after((0, 5 * MIB), (1, 15.5 * MIB), (2, 15.5 * MIB), (3, 50 * MIB), capacity=40 * MIB)
    assert over.out_of_memory == 16 * MIB  # "Tried to allocate 16.00 MiB": the segment
    assert over.num_alloc_retries == 2
    assert over.summary() == {
        "peak_allocated_bytes": 87 * MIB,
        "peak_reserved_bytes": 102 * MIB,
        "num_alloc_retries": 2,
        "out_of_memory_bytes": 16 * MIB,
    }


def test_a_resized_storage_is_copied():
    resized = after((0, 12 * MIB), (0, 14 * MIB))
    assert held(resized) == (14 * MIB, 26 * MIB)
    assert (resized.peak_allocated_bytes, resized.peak_reserved_bytes) == (26 * MIB, 26 * MIB)


def test_a_new_peak_starts_from_what_is_held_now():
    freed = after((0, 12 * MIB), (1, 14 * MIB), (0, 0))
    freed.reset_peak()
    assert (freed.peak_allocated_bytes, freed.peak_reserved_bytes) == (14 * MIB, 26 * MIB)


def sizes():
    edges = st.sampled_from([512, MIB, 2 * MIB, 10 * MIB, 19 * MIB, 20 * MIB])
    return st.one_of(
        st.just(0),
        st.integers(1, 4096),
        st.integers(1, 40 * MIB),
        st.builds(int.__add__, edges, st.sampled_from([-512, -1, 0, 1, 512])),
    )


@given(
    st.lists(st.tuples(st.integers(0, 9), sizes()), max_size=80),
    st.sampled_from([30 * MIB, 100 * MIB, 2**40]),
)
def test_any_sequence(changes, capacity):
    allocator, live, peak = Allocator(capacity), {}, 0
    for key, size in changes:
        allocator.change(key, size)
        live[key] = size
        taken, free = allocator._taken, allocator._by_address
        assert set(taken) == {key for key, size in live.items() if size}
        for each, block in taken.items():
            rounded = -(-live[each] // 512) * 512
            assert rounded <= block.size <= rounded + (0 if rounded <= MIB else MIB)
        assert allocator.allocated_bytes == sum(block.size for block in taken.values())
        blocks = sorted([*taken.values(), *free.values()], key=lambda block: block.address)
        assert all(one.address + one.size <= two.address for one, two in pairwise(blocks))
        assert allocator.reserved_bytes == sum(block.size for block in blocks)
        assert not any(block.free and block.next is not None and block.next.free for block in blocks)
        peak = max(peak, allocator.reserved_bytes)
        assert allocator.out_of_memory is not None or allocator.reserved_bytes <= capacity
    assert allocator.peak_reserved_bytes == peak
    for key in live:
        allocator.change(key, 0)
    assert allocator.allocated_bytes == 0
    assert all(block.previous is None and block.next is None for block in allocator._by_address.values())


def test_an_emptied_cache_keeps_the_segments_of_which_something_is_taken():
    allocator = Allocator(80 << 30)
    allocator.change(1, 12 << 20)
    allocator.change(2, 1000)
    allocator.change(3, 1000)
    allocator.change(1, 0)
    allocator.change(2, 0)
    assert allocator.reserved_bytes == (12 << 20) + (2 << 20)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 2 << 20  # the small one holds the third
    assert allocator.num_alloc_retries == 0
