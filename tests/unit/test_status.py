"""The word for what became of a launch, from every combination of what was left behind."""

import json

import pytest

from bench.hang import RankStack
from bench.status import judge_launch

KILLS = "the kernel's OOM killer ended 1 process(es) of this cgroup meanwhile"
KILLED = "[launch.py] Killing subprocess 7\n[launch.py] ['python'] exits with return code = -9\n"
LOST = "[pair.cc:547] Connection closed by peer [127.0.0.1]:9"
CPU_OOM = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes. Error code 12"


def fail(work, rank, status="crashed", message="boom", time=1.0, **more):
    failure = {"rank": rank, "time": time, "status": status, "activity": "counting pass", "type": "RuntimeError"}
    failure |= {"message": message, "traceback": []} | more
    (work / f"failure.rank{rank}.json").write_text(json.dumps(failure))


def traceback(message, prefix=""):
    lines = ["Traceback (most recent call last):", '  File "x.py", line 1, in f', message]
    return "".join(f"{prefix}{line}\n" for line in lines)


@pytest.mark.parametrize("exit_status", [247, -9, 137, 0])
def test_killed_with_evidence_is_host_oom(tmp_path, exit_status):
    status, reason, failure = judge_launch(tmp_path, exit_status, 9, oom_kills=KILLS)
    assert (status, failure) == ("host_oom", None)
    how = "was killed by SIGKILL" if exit_status else "ended without a word"
    assert reason == f"a rank {how}, and {KILLS}"


@pytest.mark.parametrize("code", [-11, 245])
def test_another_signal_is_not_the_oom_killers(tmp_path, code):
    assert judge_launch(tmp_path, code, 9, oom_kills=KILLS)[0] == "crashed"
    fail(tmp_path, 0, message=LOST)
    status, reason, _ = judge_launch(tmp_path, code, 9, oom_kills=KILLS)
    assert status == "crashed"
    assert reason.startswith("a rank was killed by SIGSEGV; then rank 0")


@pytest.mark.parametrize("exit_status", [247, -9, 137])
def test_killed_without_evidence_is_a_crash_that_says_so(tmp_path, exit_status):
    status, reason, _ = judge_launch(tmp_path, exit_status, 9)
    assert status == "crashed"
    assert "killed by SIGKILL, without evidence of the kernel's OOM killer" in reason
    fail(tmp_path, 0, message=LOST)
    assert judge_launch(tmp_path, exit_status, 9)[1] == (
        "a rank was killed by SIGKILL, without evidence of the kernel's OOM killer; "
        f"then rank 0, counting pass: RuntimeError: {LOST}"
    )


def test_peers_that_ended_first_do_not_hide_the_kill(tmp_path):
    fail(tmp_path, 0, message=LOST)
    assert judge_launch(tmp_path, 1, 9, oom_kills=KILLS)[0] == "host_oom"
    status, reason, _ = judge_launch(tmp_path, 1, 9)
    assert status == "crashed"
    assert reason.startswith("a rank ended without a word; then rank 0")


def test_evidence_does_not_outweigh_another_cause_or_a_result(tmp_path):
    fail(tmp_path, 0, message="a real mistake")
    assert judge_launch(tmp_path, 1, 9, oom_kills=KILLS)[0] == "crashed"
    (tmp_path / "failure.rank0.json").unlink()
    (tmp_path / "result.json").write_text("{}")
    assert judge_launch(tmp_path, 0, 9, oom_kills=KILLS)[0] == "completed"


def test_the_launchers_word_on_the_rank_is_more_exact_than_its_exit_status(tmp_path):
    log = "exits with return code = -1\n"  # SIGHUP: 255, as of exit(-1)
    assert "killed by SIGHUP" in judge_launch(tmp_path, 255, 9, log=log)[1]
    assert "exit status 255" in judge_launch(tmp_path, 255, 9)[1]
    assert judge_launch(tmp_path, 247, 9, log=KILLED, oom_kills=KILLS)[0] == "host_oom"


def test_an_exception_goes_before_that_of_a_rank_that_lost_its_peer(tmp_path):
    fail(tmp_path, 0, message=LOST, time=1.0)
    fail(tmp_path, 1, status="oom", message="CUDA out of memory", time=1.1, phase="forward", requested_bytes=5)
    status, reason, failure = judge_launch(tmp_path, 1, 9)
    assert status == "oom"
    assert reason == "rank 1, counting pass, forward: RuntimeError: CUDA out of memory"
    assert (failure.rank, failure.phase, failure.requested_bytes) == (1, "forward", 5)


@pytest.mark.parametrize(("device", "status"), [("cpu", "oom"), ("cuda", "host_oom")])
def test_host_memory_beside_a_gpu_is_host_oom(tmp_path, device, status):
    fail(tmp_path, 0, status="oom", message=CPU_OOM)
    assert judge_launch(tmp_path, 1, 9, device=device)[0] == status
    fail(tmp_path, 0, status="oom", message="CUDA out of memory. Tried to allocate 2.00 GiB")
    assert judge_launch(tmp_path, 1, 9, device=device)[0] == "oom"


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total", "oom"),
        ("RuntimeError: Error building extension 'cpu_adam'", "build_error"),
        ("deepspeed.runtime.config_utils.DeepSpeedConfigError: no", "config_error"),
        ("ValueError: no", "crashed"),
    ],
)
def test_rank_that_left_no_file_is_judged_by_the_log(tmp_path, message, status):
    found, reason, failure = judge_launch(tmp_path, 1, 9, log=traceback(message, "[rank1]: "), world_size=2)
    assert (found, reason) == (status, message)
    assert failure.rank == 1
    assert failure.requested_bytes == (2**31 if status == "oom" else None)
    found, reason, failure = judge_launch(tmp_path, 1, 9, log=traceback(message), world_size=2)
    assert (found, reason, failure) == (status, message, None)


def test_log_of_a_kill_names_the_signal_not_the_peers(tmp_path):
    log = traceback(f"RuntimeError: {LOST}", "[rank0]: ") + KILLED
    status, reason, _ = judge_launch(tmp_path, 247, 9, log=log, world_size=2)
    assert status == "crashed"
    assert "killed by SIGKILL" in reason


WATCHDOG = (
    "[rank0]:[E] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, N=1)\n"
)


def test_nccl_watchdog_is_a_hang(tmp_path):
    expected = "rank(s) 0 waited in all_reduce, until the NCCL watchdog gave up"
    assert judge_launch(tmp_path, 250, 9, log=WATCHDOG)[:2] == ("hang", expected)
    fail(tmp_path, 0, status="hang", message="NCCL: Watchdog caught collective operation timeout")
    assert judge_launch(tmp_path, 1, 9, log=WATCHDOG)[:2] == ("hang", expected)
    fail(tmp_path, 1, message="a real mistake", time=0.5)
    assert judge_launch(tmp_path, 1, 9, log=WATCHDOG)[0] == "crashed"


def stack(rank, file, function, cpu_share=0.0):
    text = f'Current thread 0x00007f00 (most recent call first):\n  File "{file}", line 5 in {function}\n'
    return RankStack(rank, text, text, cpu_share)


def test_out_of_time_with_stacks(tmp_path):
    waits = stack(0, "torch/distributed/distributed_c10d.py", "all_reduce")
    status, reason, _ = judge_launch(tmp_path, None, 30, stacks=[waits, stack(1, "absent.py", "f")], world_size=2)
    assert status == "hang"
    assert reason == "rank 0 waits in all_reduce; rank 1 stands in f at absent.py:5; not done after 30 s, killed"
    working = [waits, stack(1, "absent.py", "f", cpu_share=0.9)]
    fail(tmp_path, 1, message="late")
    status, reason, failure = judge_launch(tmp_path, None, 30, stacks=working, world_size=2)
    assert status == "timeout"
    assert reason == (
        "not done after 30 s, killed; rank 0 waits in all_reduce; rank 1 works in f at absent.py:5; "
        "before that, rank 1, counting pass: RuntimeError"
    )
    assert failure.rank == 1


@pytest.mark.parametrize("said", ["oom", "unsupported", "config_error", "build_error"])
def test_what_a_rank_said_of_itself_outlives_the_time_out(tmp_path, said):
    waits = stack(0, "torch/distributed/distributed_c10d.py", "all_reduce")
    fail(tmp_path, 1, status=said, message="no")
    status, reason, failure = judge_launch(tmp_path, None, 30, stacks=[waits], world_size=2)
    assert status == said
    assert reason == (
        "rank 1, counting pass: RuntimeError: no; the ranks did not end and were killed at the time-out of 30 s"
    )
    assert failure.rank == 1


@pytest.mark.parametrize(
    "text",
    ["[]", "null", "7", '"message"', "{", '{"message": "boom", "time": 1.0}', '{"rank": 0}'],
)
def test_a_failure_file_that_is_none_is_passed_over(tmp_path, text):
    (tmp_path / "failure.rank0.json").write_text(text)
    assert judge_launch(tmp_path, 1, 9)[0] == "crashed"
    fail(tmp_path, 1, status="oom", message="CUDA out of memory")
    assert judge_launch(tmp_path, 1, 9)[0] == "oom"


@pytest.mark.parametrize("wrong", [{"time": None}, {"status": "fine"}, {"message": 7}, {"traceback": None}])
def test_a_failure_file_with_a_wrong_value_is_passed_over(tmp_path, wrong):
    values = {"status": "oom", "message": "boom", "time": 1.0} | wrong
    fail(tmp_path, 0, values.pop("status"), values.pop("message"), values.pop("time"), **values)
    assert judge_launch(tmp_path, 1, 9)[::2] == ("crashed", None)


FATAL = """Fatal Python error: Segmentation fault

Thread 0x00007f1a (most recent call first):
  File "/lib/threading.py", line 320 in wait

Current thread 0x00007f1b (most recent call first):
  File "/lib/site-packages/torch/_tensor_str.py", line 155 in __init__
  File "/lib/site-packages/model/code.py", line 7 in forward
  File "/lib/bench/worker/main.py", line 9 in main

Extension modules: torch._C (total: 1)
"""


@pytest.mark.parametrize(("exit_status", "name"), [(-11, "SIGSEGV"), (245, "SIGSEGV"), (-7, "SIGBUS"), (249, "SIGBUS")])
def test_an_emulated_rank_that_reads_content_is_unsupported(tmp_path, exit_status, name):
    said = f"its code reads the content of a tensor outside torch's dispatcher ({name})"
    status, reason, failure = judge_launch(tmp_path, exit_status, 9, log=FATAL, emulated=True)
    assert (status, failure) == ("unsupported", None)
    assert reason == f"{said}; forward at code.py:7; see the log"
    assert judge_launch(tmp_path, exit_status, 9, emulated=True)[:2] == ("unsupported", f"{said}; see the log")
    # A measured rank has all of its memory.
    assert judge_launch(tmp_path, exit_status, 9, log=FATAL)[0] == "crashed"


def test_another_end_of_an_emulated_rank_is_judged_as_any(tmp_path):
    assert judge_launch(tmp_path, -9, 9, emulated=True)[0] == "crashed"
    assert judge_launch(tmp_path, -9, 9, oom_kills=KILLS, emulated=True)[0] == "host_oom"
    assert judge_launch(tmp_path, 1, 9, log=traceback("NotEmulatedError: no"), emulated=True)[0] == "unsupported"
    fail(tmp_path, 0, status="config_error")
    assert judge_launch(tmp_path, 1, 9, emulated=True)[0] == "config_error"
