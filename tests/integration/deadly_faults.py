"""What a cell's rank can do to itself and to what is around it; faulty_rank.py says when and in which rank."""

import ctypes
import os
import signal
import subprocess
import sys
import time


def kills_itself():
    os.kill(os.getpid(), signal.SIGKILL)


def kills_its_agent():
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(3600)


def stops_its_agent():
    os.kill(os.getppid(), signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGKILL)


def reads_where_nothing_is():
    ctypes.string_at(0)


def reads_a_tensor_outside_the_dispatcher():
    import numpy
    import torch

    numpy.from_dlpack(torch.zeros(1000)).sum()  # as C++ reads that is handed the address


def never_comes():
    time.sleep(3600)


def leaks_5_gib_and_leaves_a_process_behind():
    """The process is an orphan in a session of its own, and ignores what can be ignored."""
    code = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; time.sleep(3600)"
    shell = f"setsid {sys.executable} -c {code!r} &"
    subprocess.run(["sh", "-c", shell.replace("'", '"')], check=True)
    globals()["_leak"] = [b"x" * 2**30 for _ in range(5)]


def leaves_its_traces():
    """All that a process can change of itself and a careless fork would hand on."""
    import random

    import numpy
    import torch

    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)
    torch.set_num_threads(2)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    os.environ["DS_ACCELERATOR"] = "nonsense"
    os.environ["WORLD_SIZE"] = "7"
    torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    os.chdir("/")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


FAULTS = {
    name: value for name, value in globals().items() if callable(value) and getattr(value, "__module__", "") == __name__
}
