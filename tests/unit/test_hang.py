"""A hang or only slow: decided from the stacks that the ranks wrote twice."""

import pytest

from bench.hang import RankStack, judge_stacks, phase, threads

MAIN = [("bench/worker/loop.py", 60, "counting_pass"), ("bench/worker/main.py", 99, "<module>")]
C10D = "lib/torch/distributed/distributed_c10d.py"
ALL_REDUCE = [
    (C10D, 3250, "all_reduce"),
    ("lib/torch/distributed/c10d_logger.py", 80, "wrapper"),
    ("lib/deepspeed/comm/torch.py", 290, "all_reduce"),
    ("lib/deepspeed/runtime/zero/stage_1_and_2.py", 1100, "average_tensor"),
    ("lib/deepspeed/runtime/engine.py", 2400, "backward"),
    ("bench/worker/loop.py", 28, "train_step"),
    *MAIN,
]
SLEEP = [("faults/sitecustomize.py", 26, "_sleep"), *MAIN]
MATMUL = [
    ("lib/torch/nn/modules/linear.py", 125, "forward"),
    ("lib/torch/nn/modules/module.py", 1780, "_wrapped_call_impl"),
    ("bench/worker/loop.py", 26, "train_step"),
    *MAIN,
]
LINES = {
    "faults/sitecustomize.py": "    time.sleep(3600)\n",
    "lib/torch/nn/modules/linear.py": "    return F.linear(x)\n",
}


def dump(frames, *, current=True, others=()):
    """Text as faulthandler writes it."""
    blocks = [("Thread 0x00007f01 (most recent call first):", other) for other in others]
    blocks += [(f"{'Current thread' if current else 'Thread'} 0x00007f00 (most recent call first):", frames)]
    return "\n".join(
        f"{heading}\n" + "".join(f'  File "{file}", line {line} in {function}\n' for file, line, function in found)
        for heading, found in blocks
    )


def rank(number, frames, second=None, cpu_share=0.0, **how):
    return RankStack(number, dump(frames, **how), dump(second or frames, **how), cpu_share)


def judge(*stacks, world_size=None):
    return judge_stacks(stacks, world_size or len(stacks), lambda file, line: LINES.get(file, ""))


def test_ranks_that_wait_for_one_that_sleeps_hang():
    hung, words = judge(rank(0, ALL_REDUCE), rank(1, SLEEP), rank(2, ALL_REDUCE))
    assert hung
    assert words == (
        "ranks 0, 2 wait in all_reduce (backward); rank 1 stands in time.sleep(3600) at sitecustomize.py:26"
    )


def test_all_sleeping_is_no_hang_in_a_collective():
    hung, words = judge(rank(0, SLEEP), rank(1, SLEEP))
    assert not hung
    assert words == "ranks 0, 1 stand in time.sleep(3600) at sitecustomize.py:26"


def test_a_slower_rank_that_works_may_still_come():
    hung, words = judge(rank(0, ALL_REDUCE), rank(1, MATMUL, cpu_share=0.9))
    assert not hung
    assert words == (
        "rank 0 waits in all_reduce (backward); rank 1 works in return F.linear(x) at linear.py:125 (forward)"
    )


def test_a_rank_that_moved_is_no_hang_however_idle():
    moved = [("lib/torch/nn/modules/linear.py", 126, "forward"), *MATMUL[1:]]
    assert not judge(rank(0, ALL_REDUCE), rank(1, MATMUL, moved))[0]
    later = [
        (C10D, 3250, "all_reduce"),
        *ALL_REDUCE[1:3],
        (*ALL_REDUCE[3][:1], 1200, "average_tensor"),
        *ALL_REDUCE[4:],
    ]
    assert not judge(rank(0, ALL_REDUCE, later), rank(1, SLEEP))[0]


def test_all_in_different_collectives_and_no_data_moves():
    barrier = [(C10D, 5300, "barrier"), ("bench/worker/loop.py", 80, "timed_pass"), *MAIN[1:]]
    hung, words = judge(rank(0, ALL_REDUCE), rank(1, barrier))
    assert hung
    assert words == "rank 0 waits in all_reduce (backward); rank 1 waits in barrier"


def test_all_in_one_collective_whose_data_moves_is_slow():
    assert not judge(rank(0, ALL_REDUCE, cpu_share=0.6), rank(1, ALL_REDUCE, cpu_share=0.01))[0]


def test_a_rank_that_waits_may_spin_while_another_sleeps():
    assert judge(rank(0, ALL_REDUCE, cpu_share=1.0), rank(1, SLEEP))[0]


def test_a_rank_that_ended_is_waited_for_in_vain():
    hung, words = judge(rank(0, ALL_REDUCE), world_size=2)
    assert hung
    assert words == "rank 0 waits in all_reduce (backward); rank 1 had ended before"


def test_a_rank_without_a_dump_leaves_it_open():
    hung, words = judge(rank(0, ALL_REDUCE), RankStack(1, "", "", 0.0))
    assert not hung
    assert words == "rank 0 waits in all_reduce (backward); rank 1 left no stack"
    assert judge(world_size=2) == (False, None)


@pytest.mark.parametrize(
    ("inner", "op"),
    [
        ([(C10D, 4300, "all_gather_single"), (C10D, 4410, "all_gather_into_tensor")], "all_gather_into_tensor"),
        ([(C10D, 4950, "reduce_scatter_tensor")], "reduce_scatter_tensor"),
        ([(C10D, 4190, "all_gather"), (C10D, 3520, "all_gather_object")], "all_gather_object"),
        (
            [("lib/torch/distributed/rendezvous.py", 199, "_create"), (C10D, 1800, "init_process_group")],
            "init_process_group",
        ),
        ([("lib/torch/distributed/utils.py", 280, "_verify_param_shape_across_processes")], "all_gather"),
        ([("lib/deepspeed/runtime/zero/partition_parameters.py", 77, "wait")], "an asynchronous collective"),
        (
            [("lib/torch/autograd/graph.py", 865, "_engine_run_backward"), ("bench/worker/ddp.py", 70, "backward")],
            "all_reduce",
        ),
    ],
)
def test_the_operation_is_named(inner, op):
    inner = [(file.replace("lib/", "/site/", 1), line, function) for file, line, function in inner]
    hung, words = judge(rank(0, [*inner, *MAIN]), rank(1, SLEEP))
    assert hung
    assert words.startswith(f"rank 0 waits in {op};")


def test_a_helper_of_c10d_is_no_collective():
    assert not judge(rank(0, [(C10D, 2560, "get_rank"), *MAIN]), rank(1, SLEEP))[0]


def test_a_backward_that_computes_under_ddp_does_not_wait():
    backward = [("/site/torch/autograd/graph.py", 865, "_engine_run_backward"), ("bench/worker/ddp.py", 70, "backward")]
    assert not judge(rank(0, [*backward, *MAIN], cpu_share=0.8), rank(1, SLEEP))[0]


def test_a_collective_in_a_thread_of_autograd_counts():
    backward = [
        ("lib/torch/autograd/graph.py", 865, "_engine_run_backward"),
        ("bench/worker/loop.py", 28, "train_step"),
    ]
    hung, words = judge(rank(0, [*backward, *MAIN], others=[ALL_REDUCE[:4]]), rank(1, SLEEP))
    assert hung
    assert words is not None
    assert words.startswith("rank 0 waits in all_reduce")


@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        (["<module>", "main", "train_step", "_wrapped_call_impl", "_call_impl", "wrapped_fn", "forward"], "forward"),
        (["main", "train_step", "__call__", "_wrapped_call_impl", "forward"], "forward"),
        (["main", "train_step", "wrapped_fn", "backward", "step"], "backward"),
        (["main", "train_step", "step", "all_reduce"], "step"),
        (["main", "train_step", "enter_phase"], None),
        (["main", "build_engine", "step"], None),
        ([], None),
    ],
)
def test_phase_is_what_train_step_called(functions, expected):
    assert phase(functions) == expected


def test_threads_reads_all_that_faulthandler_writes():
    text = (
        "Thread 0x00007f9a [python] (most recent call first):\n  <no Python frame>\n\n"
        'Current thread 0x00007f9b [python] (most recent call first):\n  File "/a b/c.py", line 12 in <lambda>\n'
        "  ...\n\n"
        "Extension modules: numpy._core (total: 1)\n"
    )
    ((frame,),) = threads(text)
    assert (frame.file, frame.line, frame.function) == ("/a b/c.py", 12, "<lambda>")
    assert threads("") == []
