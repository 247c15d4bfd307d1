"""The matrix goes on when one row cannot be judged."""

from pathlib import Path

from bench.job import Job, _judge
from bench.launch.deepspeed import Exit
from bench.plan import Resources, plan
from bench.record import Launch
from bench.scenario import Scenario
from bench.store import read_records, supersede, write_record


def test_a_row_that_cannot_be_judged_keeps_its_launch_and_its_result(tmp_path: Path) -> None:
    scenario = {"matrix": {"model": "llama-tiny", "strategy": "z2", "world_size": 2}, "steps": 3}
    offer = Resources(device="cpu", slots=8, memory_bytes=2**40, shared=True)
    job = Job(plan(Scenario.model_validate(scenario), offer)[0], 0)
    work, log = tmp_path / "work" / job.name, tmp_path / "logs" / f"{job.name}.log"
    for folder in (work, log.parent):
        folder.mkdir(parents=True)
    log.write_text("one\ntwo\n")
    (work / "result.json").write_text('{"backend": "gloo"}')
    launch = Launch(
        command=["deepspeed"],
        started_at="2026-11-30T15:30:36+00:00",
        wall_time_s=12.0,
        exit_status=0,
        log=f"logs/{log.name}",
        log_tail=[],
    )
    ended = Exit(status=0, wall_time_s=12.0)
    record = _judge(job, launch, ended, run=tmp_path, work=work, log=log, timeout_s=9.0, device="cpu")
    assert record.status == "crashed"
    assert record.reason == (
        f"zerostage could not judge this row: KeyError: 'ranks' (a fault of zerostage; see logs/{log.name})"
    )
    assert record.launch == launch.model_copy(update={"log_tail": ["one", "two"]})
    kept = log.with_suffix(".result.json")
    assert kept.read_text() == '{"backend": "gloo"}'
    write_record(tmp_path, record)
    assert read_records(tmp_path) == [record]
    # A fresh run puts it aside with its row.
    assert supersede(tmp_path, {job.name}) == 1
    assert not kept.exists()
    assert [path.read_text() for path in tmp_path.glob("superseded/*/logs/*.result.json")] == ['{"backend": "gloo"}']
