import json
import math
from pathlib import Path
from typing import Any

import pytest

from bench.cell import Cell
from bench.hardware import peak_tflops
from bench.models.catalog import load_config
from bench.models.counts import flops_per_token
from bench.outcome import comm, not_built, outcome, refused, throughput
from bench.plan import PlannedCell, Resources, plan
from bench.record import Launch, Record
from bench.scenario import Scenario
from bench.store import read_records, write_record
from bench.zero.memory import predict

H100 = "NVIDIA H100 80GB HBM3"


def planned(**matrix: Any) -> PlannedCell:
    axes = {"model": "llama-tiny", "strategy": "z2", "world_size": 2, "seq_length": 64, **matrix}
    offer = Resources(device="cpu", slots=8, memory_bytes=2**40, shared=True)
    return plan(Scenario.model_validate({"matrix": axes, "steps": 3}), offer)[0]


def collective(op: str = "all_reduce", elements: int = 1000, count: int = 1, **changes: Any) -> dict[str, Any]:
    return {
        "phase": "backward",
        "op": op,
        "dtype": "bfloat16",
        "num_elements": elements,
        "num_bytes": 2 * elements,
        "group_size": 2,
        "during_autograd": True,
        "count": count,
    } | changes


REFERENCE: dict[str, Any] = {
    "key": "abc",
    "losses": [7.0, 6.0, 5.0],
    "grad_norms": [1.5, 1.4, 1.3],
    "applied_grad_norms": [1.0, 1.0, 1.0],
    "gradients": [[1.5, 0.5]],
}


def rank(number: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "rank": number,
        "pid": 100 + number,
        "node": 0,
        "optimizer_steps": 11,
        "grad_norms": [1.5, 1.4, 1.3],
        "applied": [{"squares": 0.5, "num_elements": 157_984}] * 3,
        "skipped_in_counting": 0,
        "gradients": [[1.5, 0.5]],
        "skipped_in_timing": 0,
        "tokens_per_step": [64, 64, 64],
        "fingerprint": [1, 2],
        "shards": {"parameters": 315_968, "gradients": 157_984, "optimizer_states": 3 * 157_984},
        "witness_s": 7.0,
        "memory": {
            "init_peak_bytes": 10,
            "steady_bytes": 20,
            "peak_allocated_bytes": 30,
            "peak_reserved_bytes": None,
            "host_peak_rss_bytes": 40,
        },
        "collectives": [collective()],
        "steady": True,
        "step_times_s": [1.0, 2.0, 4.0],
        "step_thread_cpu_s": [1.0, 1.0, 1.0],
        "losses": [7.0, 6.0, 5.0],
    } | changes


def result(entry: PlannedCell, **changes: Any) -> dict[str, Any]:
    cell = entry.cell
    assert entry.params is not None
    return {
        "num_params": entry.params.total,
        "num_tensors": 39,
        "tensor_names": ["weight"],
        "device_name": "Test CPU",
        "backend": "gloo",
        "stack": {"torch": "2.13.0"},
        "effective": {
            "zero_stage": None if cell.strategy == "ddp" else int(cell.strategy[1]),
            "world_size": cell.world_size,
            "train_batch_size": cell.train_batch_size,
            "train_micro_batch_size_per_gpu": cell.train_micro_batch_size_per_gpu,
            "gradient_accumulation_steps": cell.gradient_accumulation_steps,
            "model_dtype": "bfloat16",
        },
        "skipped_steps": 0,
        "num_threads": 1,
        "memory_kind": "live tensor storages",
        "activity_s": {"building the engine": 0.5, "counting pass": 1.0, "timed pass": 2.0},
        "ranks": [
            rank(number, tokens_per_step=[cell.train_batch_size // cell.world_size * cell.seq_length] * cell.steps)
            for number in range(cell.world_size)
        ],
    } | changes


def judge(
    work: Path,
    left: dict[str, Any] | None,
    exit_status: int | None = 0,
    entry: PlannedCell | None = None,
    num_cores: int = 2,
    device: str = "cpu",
) -> Record:
    """The record of a launch that left ``left`` as its result.json."""
    entry = entry or planned()
    if left is not None:
        (work / "result.json").write_text(json.dumps(left))
    launch = Launch(
        command=["deepspeed"],
        started_at="2026-11-30T15:30:36+00:00",
        wall_time_s=12.0,
        exit_status=exit_status,
        log="logs/a.log",
        log_tail=[],
    )
    record = outcome(
        entry,
        1,
        work=work,
        log=work / "a.log",
        launch=launch,
        timeout_s=900.0,
        device=device,
        num_cores=num_cores,
        references={0: REFERENCE},
    )
    assert Record.model_validate(record.model_dump()) == record
    return record


def texts(record: Record) -> list[str]:
    """What lowered the verdict, checks that could not be made left out."""
    return [finding.text for finding in record.findings if finding.verdict in ("suspect", "invalid")]


def fail(work: Path, rank: int, time: float, status: str = "crashed", message: str = "boom\nmore") -> None:
    failure = {
        "rank": rank,
        "time": time,
        "status": status,
        "activity": "timed pass",
        "type": "SomeError",
        "message": message,
        "traceback": ["line"],
    }
    (work / f"failure.rank{rank}.json").write_text(json.dumps(failure))


# Arithmetic


def test_times_are_medians_of_the_slowest_rank(tmp_path: Path) -> None:
    ranks = [
        rank(step_times_s=[1.0, 8.0, 3.0], step_thread_cpu_s=[0.1, 0.2, 0.9]),
        rank(step_times_s=[5.0, 2.0, 4.0], step_thread_cpu_s=[0.3, 0.1, 0.1]),
    ]
    timing = judge(tmp_path, result(planned(), ranks=ranks)).timing
    assert timing is not None
    assert timing.step_time_s == 5.0  # of 5, 8, 4; the median of either rank alone is 3 or 4
    assert timing.step_time_iqr_s == 8.0 - 4.0
    assert timing.step_thread_cpu_s == 0.3
    assert timing.step_times_s == [[1.0, 8.0, 3.0], [5.0, 2.0, 4.0]]
    assert timing.warmup_steps == 3


def test_one_timed_step_has_no_spread(tmp_path: Path) -> None:
    single = rank(step_times_s=[2.0], step_thread_cpu_s=[1.0])
    timing = judge(tmp_path, result(planned(), ranks=[single, single])).timing
    assert timing is not None
    assert (timing.step_time_s, timing.step_time_iqr_s) == (2.0, 0.0)


def test_rates(tmp_path: Path) -> None:
    entry = planned(train_micro_batch_size_per_gpu=3, gradient_accumulation_steps=4)
    rates = judge(tmp_path, result(entry), entry=entry).throughput
    assert rates is not None
    # 3 x 4 x 2 sequences of 64 tokens in the median 2 s, on 2 ranks.
    assert (rates.samples_per_second, rates.tokens_per_second, rates.tokens_per_second_per_gpu) == (12, 768, 384)
    flops = flops_per_token(load_config("llama-tiny"), 64)
    assert flops is not None
    assert rates.tflops_per_gpu == pytest.approx(flops * 384 / 1e12)
    assert rates.flops_convention == "palm"


@pytest.mark.parametrize(
    ("device", "dtype", "peak"),
    [
        (H100, "bf16", 989),
        (H100, "fp16", 989),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("NVIDIA GB200", "bf16", 2500),
        ("Tesla V100-SXM2-16GB", "fp16", 125),
        ("Tesla V100-SXM2-16GB", "bf16", None),
        (H100, "fp32", None),
        ("NVIDIA H100 NVL", "bf16", None),
        ("NVIDIA GeForce RTX 4090", "bf16", None),
        ("Intel(R) Xeon(R) Platinum 8480+", "bf16", None),
        ("", "bf16", None),
    ],
)
def test_mfu_is_the_share_of_the_dense_peak(device: str, dtype: str, peak: float | None) -> None:
    cell = Cell.model_validate({"model": "gpt2", "strategy": "z2", "dtype": dtype, "seq_length": 1024})
    rates = throughput(cell, 0.01, load_config("gpt2"), device)
    assert rates.peak_tflops_per_gpu == peak
    assert rates.tflops_per_gpu is not None
    assert rates.mfu == (None if peak is None else pytest.approx(rates.tflops_per_gpu / peak))


@pytest.mark.parametrize("device", ["NVIDIA RTX A1000", "NVIDIA H200 NVL", f"{H100} MIG 1g.10gb"])
def test_device_that_is_not_the_one_of_the_catalog(device: str) -> None:
    assert peak_tflops(device, "bf16") is None


def test_family_without_flops_has_rates_and_no_mfu() -> None:
    rates = throughput(Cell(model="x/y", strategy="z2"), 2.0, {"model_type": "mamba"}, H100)
    assert rates.tokens_per_second == 64
    assert (rates.tflops_per_gpu, rates.mfu, rates.flops_convention) == (None, None, None)


def test_memory_names_the_largest_rank(tmp_path: Path) -> None:
    ranks = [rank(memory=rank()["memory"] | {"peak_allocated_bytes": peak}) for peak in (50, 90)]
    memory = judge(tmp_path, result(planned(), ranks=ranks)).memory
    assert memory is not None
    assert (memory.peak_allocated_bytes, memory.peak_allocated_rank, memory.peak_allocated_min_bytes) == (90, 1, 50)
    assert memory.kind == "live tensor storages"
    assert [each.host_peak_rss_bytes for each in memory.ranks] == [40, 40]


def test_memory_points_get_what_is_expected_of_their_rank(tmp_path: Path) -> None:
    entry = planned(strategy=["z1"], world_size=[2])
    point = {"point": "init", "where": "engine built", "total_bytes": 3, "bytes": {"parameters": 2, "other": 1}}
    shards = {"parameters": 2, "gradients": None, "optimizer_states": 6}
    ranks = [rank(memory=rank()["memory"] | {"points": [point]}, shards=shards) for _ in range(2)]
    record = judge(tmp_path, result(entry, ranks=ranks), entry=entry)
    assert record.memory is not None
    assert entry.params is not None
    for number, memory in enumerate(record.memory.ranks):
        assert memory.points[0].bytes == point["bytes"]
        assert memory.points[0].predicted == predict(entry.cell, entry.config, entry.params, "init", number)
        assert memory.points[0].predicted["parameters"] == 2 * entry.params.total
    assert [each.model_dump() for each in record.shards] == [shards, shards]


def test_losses_are_means_over_ranks(tmp_path: Path) -> None:
    ranks = [rank(losses=[7.0, 5.0]), rank(losses=[8.0, 6.0])]
    assert judge(tmp_path, result(planned(), ranks=ranks)).losses == [7.5, 5.5]


# Traffic


def test_control_collectives_stay_out_of_the_totals() -> None:
    rows = [collective(elements=1000, count=3), collective(elements=9), collective(elements=8, count=5)]
    found = comm([rows], steady=True, backend="gloo")
    assert found.comm_bytes_per_step == 3 * 2000 + 18
    assert found.comm_wire_bytes_per_step == 3 * 2000 + 18  # all-reduce on 2 ranks: 2 (N-1)/N = 1
    assert (found.comm_op_count, found.control_op_count) == (4, 5)
    assert found.mean_message_bytes == (3 * 2000 + 18) / 4
    assert len(found.collectives) == 3


def test_bytes_are_those_of_the_largest_rank() -> None:
    by_rank = [[collective(elements=100)], [collective(elements=300), collective(elements=1, count=99)]]
    found = comm(by_rank, steady=False, backend="nccl")
    assert (found.comm_bytes_per_step, found.comm_bytes_per_step_by_rank) == (600, [200, 600])
    assert (found.comm_wire_bytes_per_step, found.mean_message_bytes) == (200, 200)
    assert (found.steady, found.wire_model) == (False, "ring")


@pytest.mark.parametrize(("backend", "wire"), [("gloo", 2 * 2000 * 1.5), ("nccl", 2 * 2000 * 0.75)])
def test_wire_bytes_depend_on_the_backend(backend: str, wire: float) -> None:
    rows = [collective("reduce_scatter_tensor", count=2, group_size=4)]
    assert comm([rows], steady=True, backend=backend).comm_wire_bytes_per_step == wire


def test_unknown_operation_leaves_the_wire_total_open() -> None:
    found = comm([[collective(), collective("send")]], steady=True, backend="gloo")
    assert found.comm_wire_bytes_per_step is None
    assert [row.wire_bytes for row in found.collectives] == [2000, None]
    assert found.comm_bytes_per_step == 4000
    small = comm([[collective(), collective("send", elements=1)]], steady=True, backend="gloo")
    assert small.comm_wire_bytes_per_step == 2000


def test_no_traffic() -> None:
    found = comm([[]], steady=True, backend="gloo")
    assert (found.comm_bytes_per_step, found.comm_wire_bytes_per_step, found.mean_message_bytes) == (0, 0, 0)


# Status


def test_completed(tmp_path: Path) -> None:
    entry = planned()
    record = judge(tmp_path, result(entry))
    assert (record.status, record.reason, record.failure) == ("completed", None, None)
    assert (record.validity, record.repeat, record.cell_id) == ("valid", 1, entry.cell.cell_id)
    assert record.device_name == "Test CPU"
    assert record.theory is not None
    assert entry.params is not None
    assert record.theory.model_state_bytes == entry.params.total * (2 + 14 / 2)
    assert record.theory.comm_wire_bytes_per_step == entry.params.total * 2 * 2 / 2


@pytest.mark.parametrize(
    ("exit_status", "status", "reason"),
    [
        (0, "silent_exit", "exit status 0, but rank 0 left no result"),
        (247, "crashed", "killed by SIGKILL"),
        (245, "crashed", "killed by SIGSEGV"),
        (-9, "crashed", "killed by SIGKILL"),
        (1, "crashed", "exit status 1"),
        (130, "crashed", "exit status 130"),
        (None, "timeout", "not done after 900 s, killed"),
    ],
)
def test_launch_without_a_word(tmp_path: Path, exit_status: int | None, status: str, reason: str) -> None:
    (tmp_path / "a.log").write_bytes(b"".join(b"line %d \xff\n" % n for n in range(100)))
    record = judge(tmp_path, None, exit_status)
    assert record.status == status
    assert record.reason is not None
    assert reason in record.reason
    assert (record.timing, record.throughput, record.memory, record.comm, record.losses) == (None, None, None, None, [])
    assert record.launch is not None
    assert len(record.launch.log_tail) == 40
    assert record.launch.log_tail[-1].startswith("line 99 ")


@pytest.mark.parametrize("exit_status", [1, 247, -15])
def test_result_does_not_outweigh_a_bad_exit(tmp_path: Path, exit_status: int) -> None:
    record = judge(tmp_path, result(planned()), exit_status)
    assert (record.status, record.timing) == ("crashed", None)


@pytest.mark.parametrize("status", ["oom", "config_error", "unsupported", "crashed"])
@pytest.mark.parametrize("exit_status", [1, 0])
def test_earliest_failure_tells_the_status(tmp_path: Path, status: str, exit_status: int) -> None:
    fail(tmp_path, 0, time=200.5, status="crashed", message="a peer is gone")
    fail(tmp_path, 2, time=200.25, status=status, message="the cause\nin detail")
    fail(tmp_path, 3, time=201, status="crashed", message="a peer is gone")
    record = judge(tmp_path, result(planned()), exit_status)
    assert record.status == status
    assert record.reason == "rank 2, timed pass: SomeError: the cause"
    assert record.failure is not None
    assert (record.failure.rank, record.failure.message) == (2, "the cause\nin detail")
    assert record.timing is None


@pytest.mark.parametrize(("left", "status"), [("crashed", "timeout"), ("oom", "oom")])
def test_failure_before_the_timeout_is_kept(tmp_path: Path, left: str, status: str) -> None:
    fail(tmp_path, 1, time=5, status=left)
    record = judge(tmp_path, None, None)
    assert record.status == status
    assert record.failure is not None
    assert record.failure.rank == 1


@pytest.mark.parametrize("torn", [b"", b'{"rank": 0, "ti', b"\xff"])
def test_torn_failure_file_is_passed_over(tmp_path: Path, torn: bytes) -> None:
    (tmp_path / "failure.rank0.json").write_bytes(torn)
    assert judge(tmp_path, None, 1).status == "crashed"
    fail(tmp_path, 1, time=5, status="oom", message="")
    assert judge(tmp_path, None, 1).reason == "rank 1, timed pass: SomeError: "


def test_what_the_log_says_of_a_completed_launch(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(
        "Invalidate trace cache @ step 3: expected module 5, but got module 7\n"
        "[WARNING] [stage3.py:2940:step] 2 pytorch allocator cache flushes since last step. this happens when ...\n"
    )
    entry = planned(strategy="z3")
    record = judge(tmp_path, result(entry), entry=entry)
    assert record.trace_invalidations == 1
    assert ("allocator", "suspect") in {(finding.check, finding.verdict) for finding in record.findings}
    (tmp_path / "a.log").write_text("all is well\n")
    quiet = judge(tmp_path, result(entry), entry=entry)
    assert quiet.trace_invalidations == 0
    assert "allocator" not in {finding.check for finding in quiet.findings}
    assert judge(tmp_path, result(planned())).trace_invalidations is None  # stage 2 records no order


def test_cell_whose_op_was_not_built_has_a_row() -> None:
    record = not_built(planned(), 0, "cpu", "no compiler")
    assert (record.status, record.reason, record.launch) == ("build_error", "no compiler", None)


def test_skipped_cell_has_a_row() -> None:
    record = refused(planned(world_size=9), 0, "cpu")
    assert (record.status, record.reason) == (
        "skipped",
        "world_size 9 is above the 8 cpu slots here (--cpu-slots 9); mode: auto emulates it",
    )
    assert (record.launch, record.device, record.num_params) == (None, "cpu", 315_968)


# Validity


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_loss_that_is_not_finite_is_invalid_and_stored_as_null(tmp_path: Path, loss: float) -> None:
    ranks = [rank(), rank(1, losses=[7.0, loss, 5.0])]
    record = judge(tmp_path, result(planned(), ranks=ranks))
    assert (record.status, record.validity) == ("completed", "invalid")
    assert "the loss is not finite" in texts(record)
    assert record.losses == [7.0, None, 5.0]
    write_record(tmp_path, record)
    assert "NaN" not in next(tmp_path.glob("records/*")).read_text()
    assert read_records(tmp_path) == [record]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"skipped_steps": 2, "ranks": [rank(n, optimizer_steps=9, skipped_in_timing=2) for n in range(2)]},
            "2 timed optimizer steps were skipped",
        ),
        ({"num_params": 315_966}, "the model has 315966 parameters, its configuration says 315968"),
        ({"ranks": [rank(), rank(1, steady=False)]}, "two counted steps moved different bytes"),
        ({"effective": {"zero_stage": 1}}, "asked for zero_stage 2, the engine runs 1"),
        ({"effective": {"zero_stage": None}}, "asked for zero_stage 2, the engine runs None"),
        ({"effective": {"train_batch_size": 4}}, "asked for train_batch_size 2, the engine runs 4"),
        ({"effective": {"world_size": 1}}, "asked for world_size 2, the engine runs 1"),
        ({"effective": {"model_dtype": "float32"}}, "asked for model_dtype bfloat16, the engine runs float32"),
    ],
)
def test_doubtful_result_is_suspect(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    record = judge(tmp_path, result(planned(), **changes))
    assert (record.status, record.validity, len(texts(record))) == ("completed", "suspect", 1)
    assert reason in texts(record)[0]
    assert record.timing is not None


def test_every_doubt_is_named_and_invalid_wins(tmp_path: Path) -> None:
    ranks = [rank(losses=[math.nan]), rank(1, losses=[1.0])]
    record = judge(tmp_path, result(planned(), ranks=ranks, skipped_steps=1), num_cores=1)
    assert record.validity == "invalid"
    assert "the loss is not finite" in texts(record)
    assert any("optimizer steps were driven" in text for text in texts(record))


@pytest.mark.parametrize(
    ("num_cores", "device", "reasons"),
    [(1, "cpu", ["2 ranks of 1 threads share 1 cores"]), (2, "cpu", []), (1, "cuda", [])],
)
def test_more_ranks_than_cores_make_the_times_suspect_and_nothing_else(
    tmp_path: Path, num_cores: int, device: str, reasons: list[str]
) -> None:
    record = judge(tmp_path, result(planned()), num_cores=num_cores, device=device)
    assert record.timing is not None
    assert record.timing.suspect_reasons == reasons
    assert record.validity == "valid"


def test_ddp_has_no_stage(tmp_path: Path) -> None:
    entry = planned(strategy="ddp")
    assert entry.params is not None
    moved = [collective(elements=entry.params.total)]
    whole = {"parameters": 315_968, "gradients": 315_968, "optimizer_states": 3 * 315_968}
    record = judge(
        tmp_path, result(entry, ranks=[rank(n, shards=whole, collectives=moved) for n in range(2)]), entry=entry
    )
    assert (record.validity, texts(record)) == ("valid", [])


def test_a_release_known_to_be_wrong_is_marked_whatever_else_is_found(tmp_path: Path) -> None:
    entry = planned(strategy=["z2"], gradient_accumulation_steps=[2])
    left = result(entry, stack={"torch": "2.13.0", "deepspeed": "0.18.0"})
    record = judge(tmp_path, left, entry=entry)
    assert record.validity == "invalid"
    assert any(f.check == "known-bad release" and "0.18.0" in f.text for f in record.findings)
    later = judge(tmp_path, left | {"stack": {"deepspeed": "0.18.9"}}, entry=entry)
    assert [f.verdict for f in later.findings if f.check == "known-bad release"] == ["note"]
    assert later.validity != "invalid"


def test_a_setting_without_effect_is_noted_and_lowers_nothing(tmp_path: Path) -> None:
    entry = planned(strategy=["z2"])
    plain = judge(tmp_path, result(entry), entry=entry)
    settings = {"allgather_bucket_size": 1000, "reduce_bucket_size": 1000}
    entry = entry.model_copy(update={"cell": entry.cell.model_copy(update={"zero_optimization": settings})})
    record = judge(tmp_path, result(entry), entry=entry)
    (note,) = [f for f in record.findings if f.check == "ignored settings"]
    assert note.verdict == "note"
    assert note.text.startswith("allgather_bucket_size is set and has no effect at z2, for ")
    assert record.validity == plain.validity
