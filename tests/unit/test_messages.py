import pytest

from bench import messages

OLD_CUDA = (
    "CUDA out of memory. Tried to allocate 1.50 GiB (GPU 3; 23.69 GiB total capacity; 20.12 GiB already allocated; "
    "812.44 MiB free; 21.77 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting "
    "max_split_size_mb to avoid fragmentation."
)
NEW_CUDA = (
    "CUDA out of memory. Tried to allocate 462.00 MiB. GPU 1 has a total capacity of 139.80 GiB of which 81.25 MiB is "
    "free. Including non-PyTorch memory, this process has 139.71 GiB memory in use. Of the allocated memory 137.02 GiB "
    "is allocated by PyTorch, and 1.33 GiB is reserved by PyTorch but unallocated."
)
CPU = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "67108864 bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (OLD_CUDA, 3 * 2**29),
        (NEW_CUDA, 462 * 2**20),
        (CPU, 67_108_864),
        ("XPU out of memory. Tried to allocate 20.00 KiB.", 20 * 2**10),
        ("HIP out of memory. Tried to allocate 2.25 TiB. GPU 0 has ...", 9 * 2**38),
        ("Unable to allocate 7.45 GiB for an array with shape (1000000000,) and data type float64", 7_999_376_589),
        ("CUDA error: out of memory", None),
        ("", None),
    ],
)
def test_requested_bytes(message: str, size: int | None) -> None:
    assert messages.requested_bytes(message) == size


@pytest.mark.parametrize(
    ("kind", "message", "status"),
    [
        ("OutOfMemoryError", "", "oom"),
        ("torch.OutOfMemoryError", NEW_CUDA, "oom"),
        ("RuntimeError", OLD_CUDA, "oom"),
        ("RuntimeError", CPU, "oom"),
        ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "oom"),
        ("RuntimeError", "std::bad_alloc", "oom"),
        ("MemoryError", "", "oom"),
        ("RuntimeError", "Error building extension 'cpu_adam'", "build_error"),
        ("RuntimeError", "Ninja is required to load C++ extensions (pip install ninja to get it)", "build_error"),
        ("deepspeed.ops.op_builder.builder.CUDAMismatchException", ">- DeepSpeed Op Builder", "build_error"),
        ("AssertionError", "CUDA_HOME does not exist, unable to compile CUDA op(s)", "build_error"),
        ("UnsupportedError", "no fp16 here", "unsupported"),
        ("deepspeed.runtime.config_utils.DeepSpeedConfigError", "a bad key", "config_error"),
        ("RuntimeError", "[unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete", "hang"),
        ("DistStoreError", "Timed out after 601 seconds waiting for clients. 1/2 clients joined.", "hang"),
        ("RuntimeError", "The size of tensor a must match the size of tensor b", "crashed"),
        ("AttributeError", "'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'", "crashed"),
    ],
)
def test_status_of_an_exception(kind: str, message: str, status: str) -> None:
    assert messages.status_of(kind, message) == status


def test_only_the_host_allocator_is_host_memory() -> None:
    assert messages.is_host_allocation(CPU)
    assert not messages.is_host_allocation(NEW_CUDA)


MIXED = """\
[2026-11-30 10:00:00,000] [INFO] [launch.py:256:main] process 71 spawned with command: ['python', '-u']
Traceback (most recent call last):
  File "engine.py", line 9, in <module>
    main()
[rank1]: Traceback (most recent call last):
[rank1]:   File "loop.py", line 30, in train_step
[rank1]:     engine.step()
    ~~~~^^
[rank0]: Traceback (most recent call last):
[rank0]:   File "loop.py", line 28, in train_step
[rank0]: RuntimeError: [pair.cc:547] Connection closed by peer [127.0.0.1]:4711
[rank1]:     ^^^^^^^^^^^^^
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.15 GiB
[rank1]: details
"""


def test_first_exception_is_that_of_the_rank_that_did_not_lose_a_peer() -> None:
    found = messages.first_exception(MIXED)
    assert found is not None
    assert (found.rank, found.type) == (1, "torch.OutOfMemoryError")
    assert messages.requested_bytes(found.message) == 2 * 2**30


def test_ignored_exception_does_not_hide_the_real_one() -> None:
    """The shape of deepspeedai/DeepSpeed#1846: the destructor complains about what the constructor never made."""
    ignored = """\
Exception ignored in: <function DeepSpeedCPUAdam.__del__ at 0x7f00>
Traceback (most recent call last):
  File "cpu_adam.py", line 110, in __del__
    self.ds_opt_adam.destroy_adam(self.opt_id)
AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'
"""
    real = """\
Traceback (most recent call last):
  File "builder.py", line 91, in assert_no_cuda_mismatch
    raise CUDAMismatchException(
deepspeed.ops.op_builder.builder.CUDAMismatchException: >- Installed CUDA version 12.4 does not match 11.8
"""
    for log in (ignored + real, real + ignored):
        found = messages.first_exception(log)
        assert found is not None
        assert found.type.endswith("CUDAMismatchException")
    assert messages.first_exception(ignored) is None


def test_cause_in_a_chain_and_exceptions_of_c_plus_plus() -> None:
    chain = (
        "Traceback (most recent call last):\n  File 'a.py', line 1, in f\nRuntimeError: Ninja is required to load\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n  File 'b.py', line 2, in g\nKeyError: 'op'\n"
    )
    found = messages.first_exception(chain)
    assert found is not None
    assert found.message == "Ninja is required to load"
    aborted = "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: out of memory\n"
    found = messages.first_exception(aborted)
    assert found is not None
    assert messages.status_of(found.type, found.message) == "oom"
    assert messages.first_exception("all is well\nError: not a traceback\n") is None
    lost = "Traceback (most recent call last):\n  x\nRuntimeError: Connection reset by peer\n"
    found = messages.first_exception(lost)  # better than nothing
    assert found is not None
    assert messages.is_lost_peer(found.message)


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (
            "[1/3] c++ -c shm.cpp\nFAILED: shm.o\nc++ -c shm.cpp -o shm.o\n"
            "shm.cpp:7:10: fatal error: immintrin.h: No such file or directory\n compilation terminated.\n"
            "shm.cpp:9:1: error: something later\nninja: build stopped: subcommand failed.\n",
            "shm.cpp:7:10: fatal error: immintrin.h: No such file or directory",
        ),
        (
            "FAILED: [code=1] shm.o \n/usr/bin/bad -MMD -c shm.cpp\nninja: stopped",
            "FAILED: [code=1] shm.o (/usr/bin/bad)",
        ),
        ("/bin/sh: 1: g++-99: not found\n", "/bin/sh: 1: g++-99: not found"),
        (
            "Traceback (most recent call last):\n  File 'x'\nRuntimeError: Ninja is required to load C++ extensions\n",
            "RuntimeError: Ninja is required to load C++ extensions",
        ),
        ("nothing to see\n", None),
    ],
)
def test_build_error_is_the_first_line_that_tells(log: str, line: str | None) -> None:
    assert messages.build_error(log) == line


def test_nccl_watchdog_names_operation_and_ranks() -> None:
    work = (
        "OpType={}, NumelIn=4096, NumelOut=16384, Timeout(ms)=1800000) ran for 1800871 milliseconds before timing out."
    )
    old = "[E ProcessGroupNCCL.cpp:474] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=51, "
    new = (
        "[rank0]:[E1130 10:00:00.1 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=51, "
    )
    guid = (
        "[rank3]:[E1130 ProcessGroupNCCL.cpp:632] [PG ID 0 PG GUID 0(default_pg) Rank 3] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=50, "
    )
    log = "\n".join(
        [old + work.format("_ALLGATHER_BASE"), new + work.format("_ALLGATHER_BASE"), guid + work.format("ALLREDUCE")]
    )
    assert messages.watchdog(log) == {"all_gather_into_tensor": [0, 2], "all_reduce": [3]}
    unnamed = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=BROADCAST, Timeout(ms)=600000)"
    assert messages.watchdog(unnamed) == {"broadcast": []}
    assert messages.watchdog("all is well") == {}


def test_launchers_last_words() -> None:
    tail = (
        "[2026-11-30 10:00:00,000] [INFO] [launch.py:253:sigkill_handler] Killing subprocess 811\n"
        "[2026-11-30 10:00:00,100] [ERROR] [launch.py:259:sigkill_handler] ['python', '-u', '-m', 'x'] exits with "
        "return code = -9\n"
    )
    assert messages.rank_exit(tail) == -9
    assert messages.rank_exit("exits successfully") is None


def test_allocator_cache_flushes_in_both_wordings_are_added_up() -> None:
    old = (
        "[WARNING] [stage3.py:2311:step] 3 pytorch allocator cache flushes since last step. this happens when there is "
        "high memory pressure ... consider adding torch.cuda.empty_cache() calls in your training loop"
    )
    new = (
        "[WARNING] [stage3.py:2940] 12 pytorch allocator cache flushes since last step. this happens when there is "
        "high memory pressure ... consider adding get_accelerator().empty_cache() calls in your training loop"
    )
    assert messages.allocator_flushes(f"{old}\nstep 2\n{new}\n") == 15
    assert messages.allocator_flushes("step 2") == 0


def test_trace_invalidations_in_both_wordings_are_counted() -> None:
    log = (
        "Invalidate trace cache @ step 4: expected module 6, but got module 9\nstep\n"
        "Invalidate trace cache @ step 0 and module 17: cache has only 0 modules\n"
    )
    assert messages.trace_invalidations(log) == 2
