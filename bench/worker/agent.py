"""A warm rank: imports the stack once, and forks a fresh child for each job that the runner sends.

``python -m bench.worker.agent SETUP`` under a launcher that sets RANK. SETUP is a JSON file: ``model_types`` to import,
whether to ``load_op``, and whether ``adapters`` will be needed. ``ZEROSTAGE_RUNNER`` in the environment says where the
runner (bench.launch.agents) listens. The agent itself computes nothing and joins nothing. It ends with its runner, and
whatever its children have started ends with them.
"""

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from bench.channel import RUNNER, Channel
from bench.shared_memory import remove_buffers
from bench.worker.main import leave

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_CUDA_SUCCESS = 0


def _warm_up(model_types: list[str], load_op: bool, adapters: bool = False) -> None:
    """Import what a rank will, and load the op that DeepSpeed compiles, for which each rank would take a lock."""
    from deepspeed.accelerator import get_accelerator
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    import bench.environment
    import bench.worker.composition
    import bench.worker.effective
    import bench.worker.failure
    import bench.worker.loop
    import bench.worker.reference  # noqa: F401

    if get_accelerator().device_name() == "cpu":
        # Every ZeRO engine imports it (0.19.8), and it imports torch's compiler: 1.3 s. Whether that leaves CUDA alone
        # could not be tried.
        with contextlib.suppress(ImportError):
            importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")
    for model_type in model_types:
        with contextlib.suppress(Exception):  # the rank that needs it will say what is wrong
            MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[model_type]]
    if adapters:
        with contextlib.suppress(ImportError):
            importlib.import_module("peft")  # 4 s
    if load_op:
        from bench.worker import prebuild

        prebuild.main()


def cuda_is_initialised() -> bool:
    """Whether anything in this process has initialised CUDA, which a forked child then cannot use.

    The driver answers CUDA_ERROR_NOT_INITIALIZED until then.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == _CUDA_SUCCESS)


def why_not_fork() -> str | None:
    """Return why a child of this process would not be as good as a fresh process; ``None`` if it is."""
    if cuda_is_initialised():
        return "CUDA was initialised by an import"
    if others := len(list(Path("/proc/self/task").iterdir())) - 1:
        return f"imports have started {others} thread(s), which a forked child lacks"
    return None


def _become_rank(job: dict[str, Any], inherited: list[int], mask: set[signal.Signals | int]) -> None:
    """In the forked child: cut what ties it to the agent, and run the job as a process of its own would."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for descriptor in inherited:
            os.close(descriptor)
        os.setsid()
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.environ.update(job["variables"])
        if numpy := sys.modules.get("numpy"):  # Python's own generator renews itself after a fork, and torch's is fixed
            numpy.random.seed()
        sys.argv = [job["module"], job["argument"]]
        importlib.import_module(job["module"]).main(Path(job["argument"]))
        status = 0
    except BaseException:
        traceback.print_exc()
    leave(status)


class Agent:
    """One child at a time. ``child`` is its process id, ``None`` between two jobs."""

    def __init__(self, runner: Channel) -> None:
        self.runner = runner
        self.child: int | None = None
        self.job: dict[str, Any] = {}
        # Orphans of a rank become children of this process, and are found as such.
        self.libc = ctypes.CDLL(None)
        self.libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.ended, wake = os.pipe()
        os.set_blocking(self.ended, False)
        os.set_blocking(wake, False)
        self.inherited = [runner.fileno(), self.ended, wake]
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Some supervisors leave it blocked; a child gets the mask that a launch of its own would have.
        self.mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Do what the runner asks until it has gone."""
        while True:
            ready, _, _ = select.select([self.runner.fileno(), self.ended], [], [])
            if self.ended in ready:
                os.read(self.ended, 4096)
                self._reap()
            if self.runner.fileno() in ready:
                try:
                    messages = self.runner.receive()
                except EOFError:
                    break
                for message in messages:
                    if message.get("kill"):
                        self._kill()
                    else:
                        self._start(message)
        self._kill()
        self._end_descendants()

    def _start(self, job: dict[str, Any]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        agent = os.getpid()
        child = os.fork()
        if child == 0:
            self.libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != agent:  # it was killed before that
                os._exit(1)
            _become_rank(job, self.inherited, self.mask)
        self.child, self.job = child, job
        self.runner.send({"pid": child})

    def _kill(self) -> None:
        if self.child is not None:
            os.kill(self.child, signal.SIGKILL)  # not reaped yet, so the number is still its own

    def _reap(self) -> None:
        """Take the statuses of children that have ended; when it is the rank, end what it has left and tell."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.child:
                    self.child = None
                    self._end_descendants()
                    with contextlib.suppress(EOFError):
                        self.runner.send({"status": os.waitstatus_to_exitcode(ended[1])})

    def _end_descendants(self) -> None:
        me = psutil.Process()
        while alive := me.children(recursive=True):
            for process in alive:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, 0)


@contextlib.contextmanager
def _only_beside(runner: Channel) -> Iterator[None]:
    """End this process with its runner: it sends nothing meanwhile, so what stirs at the socket is its end.

    Imports take seconds, and torch waits without end for the lock of an op that somebody builds.
    """
    flags = fcntl.fcntl(runner, fcntl.F_GETFL)
    fcntl.fcntl(runner, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(runner, fcntl.F_SETFL, flags | os.O_ASYNC)  # SIGIO, which ends a process that does not handle it
    yield
    fcntl.fcntl(runner, fcntl.F_SETFL, flags)


def main(setup: Path) -> None:
    """Get warm, say so, and serve."""
    host, port, token = os.environ.pop(RUNNER).split(":")
    runner = Channel(socket.create_connection((host, int(port))))
    runner.send({"token": token, "rank": int(os.environ["RANK"])})
    with _only_beside(runner):
        _warm_up(**json.loads(setup.read_text()))
        gc.collect()
    runner.send({"why_not_fork": why_not_fork()})
    agent = Agent(runner)
    agent.serve()
    if agent.job:
        remove_buffers(agent.job["variables"]["MASTER_PORT"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave(0)
