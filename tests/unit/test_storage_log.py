"""The meter's log, on real operators: any moment can be replayed, the peak included."""

import torch

from bench.measure.memory import StorageMeter
from bench.measure.storage_log import Birth, StorageLog


def total(live: dict[Birth, int]) -> int:
    return sum(live.values())


def test_every_moment_is_replayed_from_what_was_live_at_the_beginning():
    with StorageMeter() as meter:
        old = torch.zeros(10)
        log = meter.begin_log()
        moments = {0: meter.allocated_bytes()}
        new = torch.ones(100)
        moments[len(log)] = meter.allocated_bytes()
        new.resize_(1000)
        moments[len(log)] = meter.allocated_bytes()
        del old
        moments[len(log)] = meter.allocated_bytes()
        del new
        moments[len(log)] = meter.allocated_bytes()
    assert list(moments.values()) == [40, 440, 4040, 4000, 0]
    assert {moment: total(log.live(moment)) for moment in moments} == moments


def test_the_highest_moment_is_the_meters_peak_and_names_what_led_there():
    with StorageMeter() as meter:
        meter.place = lambda: ("forward", "mlp")
        log = meter.begin_log()
        meter.reset_peak()
        (torch.ones(1000) * 2).sum()
        peak = log.highest(0, len(log))
        assert total(log.live(peak)) == meter.peak_allocated_bytes() == 8000
        assert log.newest(peak).op == "aten::mul"
        assert log.newest(peak)[1:3] == ("forward", "mlp")
    assert log.newest(0) is None
    assert log.highest(len(log), len(log)) == len(log)


def test_a_storage_keeps_where_it_was_born_and_views_share_it():
    with StorageMeter() as meter:
        meter.place = lambda: ("init", "")
        weight = torch.zeros(100)
        meter.place = lambda: ("step", "")
        weight.mul_(2)
        assert meter.birth(weight.view(10, 10)) == Birth(0, "init", "", "aten::zeros")
        assert meter.birth(torch.zeros(3, device="meta")) is None
        assert meter.birth(torch.eye(3).to_sparse()) is None


def test_an_address_that_is_used_again_is_another_storage():
    with StorageMeter() as meter:
        log = meter.begin_log()
        numbers = set()
        for _ in range(50):
            tensor = torch.empty(1000)
            numbers.add(meter.birth(tensor).number)
            del tensor
    assert len(numbers) == 50
    assert log.live(len(log)) == {}


def test_nothing_is_logged_after_the_end():
    with StorageMeter() as meter:
        log = meter.begin_log()
        kept = torch.zeros(10)
        meter.end_log()
        more = torch.zeros(10)
    assert len(log) == 1
    assert kept.numel() == more.numel()


def test_the_earliest_of_equal_moments_is_the_highest():
    storage = Birth(0, "", "", "op")
    log = StorageLog({})
    for size in (5, 0, 5):
        log.change(storage, size)
    assert log.highest(0, 3) == 1
    assert log.highest(2, 3) == 3
