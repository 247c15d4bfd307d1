"""Host memory in the instruments, on small cases worked out by hand."""

from types import SimpleNamespace

import pytest
import torch

from bench.emulate.emulator import Emulator
from bench.emulate.places import DEVICE, HOST, host_and_device, pinned_like
from bench.measure.memory import StorageMeter
from bench.measure.places import host_kind, moved_bytes, note_host
from bench.measure.storage_log import Birth, StorageLog, on_device
from bench.worker.offload import OffloadWatch

BF16, FP32 = torch.bfloat16, torch.float32
ZEROS = torch.ops.aten.zeros.default


@pytest.mark.parametrize(
    ("target", "source", "to_host", "non_blocking", "expected"),
    [
        # 100 elements; CUDA converts on the device where it does not block on the way to the host...
        (FP32, BF16, True, True, 400),
        (FP32, BF16, True, False, 200),
        # ... and where it blocks on the way from it.
        (BF16, FP32, False, False, 200),
        (BF16, FP32, False, True, 400),
        (FP32, BF16, False, True, 200),
        (FP32, BF16, False, False, 400),
        (BF16, FP32, True, True, 200),
        (BF16, BF16, True, False, 200),
    ],
)
def test_what_a_copy_moves_has_the_dtype_of_that_moment(target, source, to_host, non_blocking, expected):
    to, frm = torch.zeros(100, dtype=target), torch.zeros(100, dtype=source)
    assert moved_bytes(to, frm, to_host=to_host, non_blocking=non_blocking) == expected


def test_one_number_may_be_copied_to_many():
    assert moved_bytes(torch.zeros(100), torch.zeros(1), to_host=True, non_blocking=False) == 4


def seen(meter, size, kind):
    tensor = torch.zeros(size)
    if kind:
        note_host(tensor, pinned=kind == "pinned")
    meter.after(ZEROS, tensor)
    return tensor


def test_the_meter_counts_the_hosts_storages_apart():
    meter, told = StorageMeter(), []
    meter.allocator = lambda key, size: told.append(size)
    host, device, pinned = seen(meter, 100, "pageable"), seen(meter, 10, None), seen(meter, 1000, "pinned")
    assert (meter.allocated_bytes(), meter.peak_allocated_bytes()) == (40, 40)
    assert sorted((birth.host or "", size) for birth, size in meter.live().items()) == [
        ("", 40), ("pageable", 400), ("pinned", 4000),
    ]  # fmt: skip
    del host, pinned
    assert (meter.allocated_bytes(), list(meter.live().values())) == (40, [40])
    del device
    assert (meter.allocated_bytes(), meter.peak_allocated_bytes()) == (0, 40)
    assert told == [40, 0]  # the device's allocator knows nothing of the host


def test_the_highest_moment_of_some_storages_is_not_that_of_all():
    host, device = Birth(0, "", "", "zeros", "pinned"), Birth(1, "", "", "zeros")
    log = StorageLog({})
    for storage, size in ((device, 10), (host, 500), (device, 0), (device, 30), (host, 0), (device, 20)):
        log.change(storage, size)
    everything = log.highest(0, len(log), lambda storage: True)
    assert (everything, sum(log.live(everything).values())) == (4, 530)
    assert log.highest(0, len(log)) == log.highest(0, len(log), on_device) == 4
    assert log.highest(0, len(log), lambda storage: not on_device(storage)) == 2
    assert log.highest(5, len(log), lambda storage: not on_device(storage)) == 5  # nothing of it left


def engine_of(master, **more):
    """Return what a rank's engine has of optimizer offload at stage 2."""
    optimizer = SimpleNamespace(cpu_offload=True, single_partition_of_fp32_groups=[master], **more)
    return SimpleNamespace(optimizer=optimizer, module=torch.nn.Module())


def found(watch, meter, log):
    return watch.found(log, len(log), meter.live(), lambda storage: "other")


@pytest.mark.parametrize(("pin", "pinned"), [(True, 400), (False, 0)])
def test_one_memory_is_split_by_who_owns_what(pin, pinned):
    with StorageMeter() as meter:
        log = meter.begin_log()
        master, gradient = torch.zeros(100), torch.zeros(100, dtype=BF16)
        watch = OffloadWatch(engine_of(master, cpu_offload_pin_memory=pin), meter, apart=False)
        watch.look("backward")
        assert found(watch, meter, log) == {
            "device_peak_bytes": 200,
            "device_steady_bytes": 200,
            "host_peak_bytes": 400,
            "host_steady_bytes": 400,
            "pinned_bytes": pinned,
            "host_to_device_bytes": 0,
            "device_to_host_bytes": 0,
        }
    assert gradient.numel() == 100


def crossed(phase, *calls):
    """Return the bytes to the device and to the host of ``calls``, given a master on the host and others."""
    with StorageMeter() as meter:
        log = meter.begin_log()
        tensors = {
            "master": torch.zeros(100),
            "gradient": torch.zeros(100, dtype=BF16),
            "other": torch.zeros(100),
            "few": torch.zeros(8),
        }
        watch = OffloadWatch(engine_of(tensors["master"]), meter, apart=False)
        watch.begin()
        watch.look(phase)
        for op, *names in calls:
            args = [tensors.get(name, name) for name in names]
            watch.see(op, tuple(args))
        counted = found(watch, meter, log)
    return counted["host_to_device_bytes"], counted["device_to_host_bytes"]


@pytest.mark.parametrize(
    ("phase", "calls", "expected"),
    [
        ("backward", [("copy_", "master", "gradient")], (0, 200)),
        ("backward", [("copy_", "master", "gradient", True)], (0, 400)),
        ("step", [("copy_", "gradient", "master")], (200, 0)),
        ("step", [("copy_", "gradient", "master", True)], (400, 0)),
        ("backward", [("copy_", "other", "gradient"), ("copy_", "master", "master")], (0, 0)),  # none crosses
        ("backward", [("copy_", "master", "few")], (0, 0)),  # a number
        # What a collective or a conversion is handed must have been brought over, but for the host's own update.
        ("backward", [("allgather_", "other", "master")], (400, 0)),
        ("backward", [("_to_copy", "master"), ("_to_copy", "master")], (400, 0)),  # once, for two uses
        ("step", [("_to_copy", "master")], (0, 0)),
        ("step", [("allreduce_", "master")], (400, 0)),
        ("backward", [("_to_copy", "other")], (0, 0)),
    ],
)
def test_crossings_in_one_memory(phase, calls, expected):
    assert crossed(phase, *calls) == expected


def test_what_is_brought_over_counts_again_in_the_next_phase_and_a_step_begins_anew():
    with StorageMeter() as meter:
        log, master = meter.begin_log(), torch.zeros(100)
        watch = OffloadWatch(engine_of(master), meter, apart=False)
        for phase in ("forward", "backward"):
            watch.look(phase)
            watch.see("_to_copy", (master,))
        assert found(watch, meter, log)["host_to_device_bytes"] == 800
        watch.begin()
        assert found(watch, meter, log)["host_to_device_bytes"] == 0


def test_an_engine_that_offloads_nothing_has_nothing_to_say():
    with StorageMeter() as meter:
        log, master = meter.begin_log(), torch.zeros(100)
        engine = SimpleNamespace(optimizer=SimpleNamespace(single_partition_of_fp32_groups=[master]), module=None)
        watch = OffloadWatch(engine, meter, apart=False)
        watch.look("backward")
        watch.see("copy_", (master, torch.zeros(100)))
        assert not watch.active
        assert found(watch, meter, log) is None


def test_told_apart_the_storages_themselves_say_where_they_are():
    emulator, meter = Emulator(apart=True), StorageMeter()
    with host_and_device(), emulator, emulator.observed_by(meter):
        log = meter.begin_log()
        host, device = torch.zeros(100, device=HOST), torch.zeros(50, dtype=BF16, device=DEVICE)
        pinned = pinned_like(host)
        kinds = [host_kind(tensor.untyped_storage()) for tensor in (host, device, pinned)]
        # Its own master is of no account here.
        watch = OffloadWatch(engine_of(device), meter, apart=True)
        watch.look("backward")
        meter.watch = watch.see
        host[:50].copy_(device, non_blocking=True)
        torch.cat([host, host])
        counted = found(watch, meter, log)
        del host, device, pinned
    assert kinds == ["pageable", None, "pinned"]
    assert counted == {
        "device_peak_bytes": 100,
        "device_steady_bytes": 100,
        "host_peak_bytes": 1600,
        "host_steady_bytes": 800,
        "pinned_bytes": 400,
        "host_to_device_bytes": 0,
        "device_to_host_bytes": 200,
    }
