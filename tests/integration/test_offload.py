"""Offload: what is on the host, what is pinned, what crosses; real ranks on CPU, both emulated paths, the formulas."""

import json

import pytest
from agreement import SMALL_BUCKETS
from forked import planned

pytestmark = pytest.mark.ranks

PSI = 315_968  # llama-tiny; nothing is padded on two ranks
LARGEST = 65_536  # its embedding
NORMS = 9 * 64  # of its layers and the last one: what stage 3 never shards
BUCKET = 50_000  # elements
# Flags, norms and step counters, which differ between the two ways to count.
FEW_BYTES = 128
# As in scenarios/offload.yaml.
SHAPE = {
    "train_micro_batch_size_per_gpu": 2,
    "seq_length": 64,
    "zero_optimization": {
        "reduce_bucket_size": BUCKET,
        "stage3_prefetch_bucket_size": 20_000,
        "stage3_param_persistence_threshold": 1_000,
        "stage3_max_live_parameters": 50_000,
        "stage3_max_reuse_distance": 50_000,
    },
}
BASES = ("z2", "z3")
OFFLOADED = {"z2-offload": "z2", "z3-offload": "z3", "z3-offload-param": "z3"}


def cells(names):
    """Return the cells of ``names`` on two ranks, and on one those that are only run where slow tests are."""
    alone = [pytest.param(name, 1, marks=pytest.mark.slow) for name in names]
    return [*((name, 2) for name in names), *alone]


TABLE, HELD = cells((*BASES, *OFFLOADED)), cells(OFFLOADED)
FIGURES = ("device_peak_bytes", "device_steady_bytes", "host_peak_bytes", "host_steady_bytes")
CROSSINGS = ("host_to_device_bytes", "device_to_host_bytes")


def settings(name, world_size, **more):
    return {"strategy": name, "world_size": world_size} | SHAPE | more


class Made(dict):
    """Records by cell, each made when it is asked for."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def __missing__(self, cell):
        self[cell] = self.make(cell)
        return self[cell]


@pytest.fixture(scope="module")
def measured(ranks):
    return Made(lambda cell: ranks.measure(planned(**settings(*cell))))


def emulate(ranks, path="cuda-like", rank=0, **axes):
    """Return the record of an emulated cell, which must be beyond doubt."""
    record = ranks.measure(planned(mode="emulated", emulation={"accelerator_path": path, "rank": rank}, **axes))
    assert record.status == "completed", record.reason
    assert record.findings == []
    return record


@pytest.fixture(scope="module")
def apart(ranks):
    """Return the cells with host and device told apart."""
    return Made(lambda cell: emulate(ranks, **settings(*cell)))


@pytest.mark.parametrize(("name", "world_size"), TABLE)
def test_a_measured_row_is_valid(measured, name, world_size):
    record = measured[name, world_size]
    assert (record.status, record.reason) == ("completed", None)
    assert (record.validity, record.findings) == ("valid", [])
    assert record.parity is not None
    assert (record.offload is not None) == (name in OFFLOADED)


@pytest.mark.parametrize(("name", "world_size"), HELD)
def test_host_and_device_together_are_what_was_measured(measured, name, world_size):
    record = measured[name, world_size]
    for rank, split in zip(record.memory.ranks, record.offload.ranks, strict=True):
        assert split.device_steady_bytes + split.host_steady_bytes == rank.steady_bytes
        # Not at one moment: the device's peak is in backward, the host's in the step.
        assert max(split.device_peak_bytes, split.host_peak_bytes) < rank.peak_allocated_bytes
        assert rank.peak_allocated_bytes < split.device_peak_bytes + split.host_peak_bytes


def shares(name, world_size):
    """Return by hand, in bf16: steady on the device, on the host, pinned, to the device, to the host."""
    shard = PSI // world_size
    persisted = 2 * NORMS if world_size > 1 else 0
    return {
        # Per element of the shard 12 B of states, 4 B of gradients, 2 B of parameters; a buffer each for one tensor.
        # All but the moments is pinned.
        "z2-offload": (2 * PSI + 2 * LARGEST, 18 * shard + 2 * LARGEST, 10 * shard + 2 * LARGEST, 2 * shard, 4 * shard),
        # 12 B of states, 4 B and 2 B of gradients; gradients go over at 2 B, come back, and go over at 4 B.
        "z3-offload": (2 * shard + 2 * BUCKET + persisted, 18 * shard, 6 * shard, 4 * shard, 6 * shard),
        # The parameters too, which come over whenever they are gathered.
        "z3-offload-param": (2 * BUCKET + persisted, 20 * shard, 8 * shard, None, 6 * shard),
    }[name]


@pytest.mark.parametrize(("name", "world_size"), HELD)
def test_a_measured_row_holds_pins_and_moves_what_deepspeeds_code_says(measured, name, world_size):
    device, host, pinned, over, back = shares(name, world_size)
    offload = measured[name, world_size].offload
    for rank, predicted in zip(offload.ranks, offload.predicted, strict=True):
        assert rank.device_steady_bytes == pytest.approx(device, abs=FEW_BYTES)
        assert rank.host_steady_bytes == pytest.approx(host, abs=FEW_BYTES)
        assert rank.pinned_bytes == pinned
        assert rank.device_to_host_bytes == back
        if over is not None:
            assert rank.host_to_device_bytes == over
        for key in {"pinned_bytes", *CROSSINGS} & predicted.keys():
            assert getattr(rank, key) == predicted[key], key


@pytest.mark.parametrize(("name", "world_size"), HELD)
def test_told_apart_a_rank_has_what_the_real_one_was_attributed(measured, apart, name, world_size):
    (found,) = apart[name, world_size].offload.ranks
    real = measured[name, world_size].offload.ranks[0]
    if (name, world_size) != ("z3-offload-param", 1):
        for key in FIGURES:
            assert getattr(found, key) == pytest.approx(getattr(real, key), abs=16), key
        assert [getattr(found, key) for key in CROSSINGS] == [getattr(real, key) for key in CROSSINGS]
    assert found.pinned_bytes == real.pinned_bytes


def test_where_they_are_one_memory_a_single_rank_uses_its_parameters_in_place(measured, apart):
    real, found = (each["z3-offload-param", 1].offload.ranks[0] for each in (measured, apart))
    assert real.host_to_device_bytes == 2 * PSI  # gradients alone
    assert found.host_to_device_bytes == 2 * PSI + 2 * 565_824  # and every gather of a parameter
    assert found.device_peak_bytes - real.device_peak_bytes == pytest.approx(2 * LARGEST + 2 * NORMS, abs=16)
    assert found.device_steady_bytes - real.device_steady_bytes == pytest.approx(2 * NORMS, abs=16)


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("z2-offload", "z3-offload")), "z3-offload-param"]
)
def test_on_the_cpu_path_an_emulated_rank_is_attributed_what_a_real_one_is(ranks, measured, name):
    record = emulate(ranks, "cpu", **settings(name, 2))
    real = measured[name, 2]
    assert record.offload.ranks[0] == real.offload.ranks[0]
    assert record.memory.ranks[0].points == real.memory.ranks[0].points


@pytest.mark.parametrize(("name", "world_size"), HELD)
def test_memory_of_a_gpu_rank_is_the_devices_alone(apart, name, world_size):
    (rank,), (split,) = apart[name, world_size].memory.ranks, apart[name, world_size].offload.ranks
    assert rank.steady_bytes == split.device_steady_bytes
    assert rank.peak_allocated_bytes == split.device_peak_bytes
    assert apart[name, world_size].offload.node_host_peak_bytes == world_size * split.host_peak_bytes


def data(record):
    return [each for each in record.comm.collectives if each.num_elements > 8]  # norms and flags differ


@pytest.mark.parametrize("name", OFFLOADED)
def test_offload_changes_no_traffic(measured, apart, name):
    for rows in (measured, apart):
        with_offload, without = rows[name, 2], rows[OFFLOADED[name], 2]
        assert data(with_offload) == data(without) != []
        assert with_offload.comm.comm_bytes_per_step == without.comm.comm_bytes_per_step > 2 * PSI
        assert with_offload.practice == without.practice is not None


# Emulated alone: the formulas in other shapes. Each is settled to the byte but for flags and counters.
GAS = {"gradient_accumulation_steps": 2}
LAST_OF_3 = {"world_size": 3, "rank": "last"}  # three ranks divide nothing: padding
SHAPES = [
    {"strategy": "z1-offload"} | GAS,
    {"strategy": "z2-offload"} | GAS,
    {"strategy": "z3-offload"} | GAS,
    {"strategy": "z3-offload-param"} | LAST_OF_3,
    {"strategy": "z2-offload", "dtype": "fp32"},
]
MORE_SHAPES = [
    {"strategy": "z3-offload-param"} | GAS,
    {"strategy": "z1-offload"} | LAST_OF_3,
    {"strategy": "z2-offload"} | LAST_OF_3 | GAS,
    {"strategy": "z3-offload", "dtype": "fp32"},
    {"strategy": "z3-offload", "model": "gpt2-tiny"},
    {"strategy": "z1-offload", "world_size": 1},
]
ALL = {"device_steady_bytes", "host_steady_bytes", "pinned_bytes", *CROSSINGS}


def as_predicted(record):
    (found,), (predicted,) = record.offload.ranks, record.offload.predicted
    for key in predicted:
        slack = FEW_BYTES if "steady" in key else 0
        assert getattr(found, key) == pytest.approx(predicted[key], abs=slack), key
    return predicted


def slow(values):
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


@pytest.mark.parametrize("axes", [*SHAPES, *slow(MORE_SHAPES)], ids=lambda axes: "-".join(map(str, axes.values())))
def test_the_formulas_hold_in_other_shapes(ranks, axes):
    record = emulate(ranks, **{"zero_optimization": SMALL_BUCKETS} | axes)
    assert as_predicted(record).keys() == ALL


def test_parameters_alone_may_be_offloaded(ranks, tmp_path):
    path = tmp_path / "param.json"
    section = {"stage": 3, "offload_param": {"device": "cpu", "pin_memory": True}} | SMALL_BUCKETS
    path.write_text(json.dumps({"bf16": {"enabled": True}, "gradient_clipping": 1.0, "zero_optimization": section}))
    record = emulate(ranks, strategy={"config": str(path)})
    assert as_predicted(record).keys() == ALL
    (found,) = record.offload.ranks
    assert found.host_steady_bytes == pytest.approx(2 * PSI // 2, abs=FEW_BYTES)  # no states
    assert found.device_to_host_bytes == 4 * PSI // 2  # the updated parameters, from fp32: the copy blocks


def test_what_is_not_to_be_pinned_is_not(ranks, tmp_path):
    path = tmp_path / "pageable.json"
    section = {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": False}} | {"reduce_bucket_size": BUCKET}
    path.write_text(json.dumps({"bf16": {"enabled": True}, "gradient_clipping": 1.0, "zero_optimization": section}))
    record = emulate(ranks, strategy={"config": str(path)})
    assert as_predicted(record)["pinned_bytes"] == 0
    assert record.offload.ranks[0].pinned_bytes == 0
