"""Where a forked rank would not be as good as a fresh process, nothing is forked, and the suite says so."""

import os
import shutil
import subprocess
import sys

import pytest
from conftest import zerostage

from bench.launch.processes import RUN_MARKER, marked
from bench.store import read_records

THREAD = "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
# Starts the driver; the count of devices then is an answer, and before it an error.
START = "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)\n"
DRIVER = """
static int initialised;
int cuInit(unsigned int flags) { initialised = 1; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return initialised ? 0 : 3; }
"""


def why_not_fork(first="", folder=None):
    """Return what a process says of itself that has run ``first``, with the CUDA driver in ``folder``, if any."""
    code = first + "from bench.worker.agent import why_not_fork; print(why_not_fork(), end='')"
    env = os.environ | ({"LD_LIBRARY_PATH": str(folder)} if folder else {})
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """Return a folder with a CUDA driver that keeps to the one rule that is asked of it here."""
    folder = tmp_path_factory.mktemp("driver")
    if not (compiler := shutil.which("cc")):
        pytest.skip("there is no C compiler")
    source = folder / "cuda.c"
    source.write_text(DRIVER)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libcuda.so.1", source], check=True)
    return folder


def test_a_process_that_has_not_touched_cuda_can_be_forked(driver):
    assert why_not_fork() == "None"
    assert why_not_fork(folder=driver) == "None"


def test_a_process_that_has_initialised_cuda_cannot(driver):
    assert why_not_fork(START, driver) == "CUDA was initialised by an import"


def test_asking_does_not_initialise_cuda(driver):
    assert why_not_fork("from bench.worker.agent import why_not_fork; why_not_fork()\n", driver) == "None"


def test_a_process_with_threads_cannot():
    assert why_not_fork(THREAD) == "imports have started 1 thread(s), which a forked child lacks"
    assert why_not_fork(2 * THREAD) == "imports have started 2 thread(s), which a forked child lacks"


@pytest.mark.ranks
@pytest.mark.slow
def test_cells_are_launches_of_their_own_where_an_import_starts_a_thread(scenario_file):
    path = scenario_file({"strategy": ["z2", "ddp"]})
    done = zerostage("run", path, "--results", path.parent / "runs", fault="thread in the agent")
    run = path.parent / "runs" / path.stem
    assert done.returncode == 0, done.stdout + done.stderr
    note = (
        "note: no warm ranks: imports have started 1 thread(s), which a forked child lacks; "
        "each cell left is a launch of its own"
    )
    assert " ".join(done.stdout.split()).count(note) == 1
    records = read_records(run)
    assert [(record.status, record.launch.isolation) for record in records] == [("completed", "process")] * 2
    assert all(record.launch.agents_start_s is None for record in records)
    assert marked(RUN_MARKER, str(run.resolve())) == []
