"""One host: `unshare --net python host_process.py`. It imports the stack once and forks ranks from it on demand.

A line of JSON in is a launch, {"argv": [script, ...], "ranks": [{variable: value}], "log": path, "timeout_s": s}; a
line out is the exit statuses of its ranks, null for those killed at the time-out. The process ends with its standard
input, and its ranks with it: when the test is gone, however it went, so are they, the namespace and the link.
"""

import contextlib
import ctypes
import json
import os
import runpy
import select
import signal
import sys
import time
import traceback

PR_SET_PDEATHSIG = 1


def fork_rank(argv, variables, log):
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        os.environ.update(variables)
        sys.argv = argv
        if argv[0].endswith(".py"):
            runpy.run_path(argv[0], run_name="__main__")
        else:
            runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def wait(pids, timeout_s):
    """Return the exit status of each; kill those that are still there at the time-out or when the test has gone."""
    statuses, deadline = dict.fromkeys(pids), time.monotonic() + timeout_s
    running = set(pids)
    while running:
        for pid in list(running):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                running.discard(pid)
                statuses[pid] = os.waitstatus_to_exitcode(status)
        # While ranks run, the test writes nothing: standard input that can be read has ended.
        if running and (time.monotonic() > deadline or select.select([0], [], [], 0.02)[0]):
            for pid in running:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            running = set()
    return [statuses[pid] for pid in pids]


def main():
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the imports print is no reply
    import deepspeed  # noqa: F401
    import transformers.models.llama.modeling_llama  # noqa: F401

    import bench.worker.loop
    import bench.worker.model  # noqa: F401

    print("ready", file=replies)
    for line in sys.stdin:
        launch = json.loads(line)
        pids = [fork_rank(launch["argv"], variables, launch["log"]) for variables in launch["ranks"]]
        print(json.dumps(wait(pids, launch["timeout_s"])), file=replies)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # the test has gone
        main()
    os._exit(0)  # an interpreter full of libraries takes seconds to take itself apart
