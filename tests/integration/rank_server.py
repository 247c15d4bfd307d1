"""Ranks without start-up: torch, DeepSpeed and transformers are imported once, and every launch is a fork.

Reads one JSON request a line: {"argv": [module, path], "world_size": 2, "log": path, "fault": name or null}.
Answers with the exit statuses of the ranks. A fault of seeded_faults.py is put into a rank after the fork, before the
worker starts.
"""

import importlib
import json
import os
import socket
import sys
import time
import traceback
from pathlib import Path

TIMEOUT_S = 120


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def child(request, rank, port):
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(request["world_size"]),
        "LOCAL_SIZE": str(request["world_size"]),
        "CROSS_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    module, path = request["argv"]
    entry = importlib.import_module(module)
    if module == "bench.worker.main":
        entry._RANK = rank
        if request["fault"]:
            sys.path.insert(0, str(Path(__file__).parent))  # PYTHONSAFEPATH keeps it out
            import seeded_faults

            seeded_faults.FAULTS[request["fault"]]()
    entry.main(Path(path))


def launch(request):
    port, pids = free_port(), []
    for rank in range(request["world_size"]):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                child(request, rank, port)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        pids.append(pid)
    statuses, deadline = {}, time.monotonic() + TIMEOUT_S
    while len(statuses) < len(pids):
        for pid in set(pids) - set(statuses):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                statuses[pid] = os.waitstatus_to_exitcode(status)
        if any(statuses.values()) or time.monotonic() > deadline:
            time.sleep(0.5)  # for the peers' own words
            for pid in set(pids) - set(statuses):
                os.kill(pid, 9)
        time.sleep(0.01)
    return [statuses[pid] for pid in pids]


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import deepspeed  # noqa: F401
    import torch  # noqa: F401
    import transformers.models.gpt2.modeling_gpt2
    import transformers.models.llama.modeling_llama
    import transformers.models.mixtral.modeling_mixtral  # noqa: F401

    import bench.worker.main
    import bench.worker.reference  # noqa: F401

    for line in sys.stdin:
        print(json.dumps(launch(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
