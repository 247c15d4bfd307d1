"""Measure cells in forked ranks: the worker and the judging of zerostage as they are, without its launcher."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import references
from bench.environment import fingerprint
from bench.launch import deepspeed, extensions
from bench.outcome import outcome
from bench.plan import Resources, plan
from bench.record import Launch
from bench.scenario import Scenario

OFFER = Resources(device="cpu", slots=8, memory_bytes=2**34, shared=True)


def planned(**settings):
    """Plan the one cell that ``settings`` (axes of the matrix, and settings of the scenario) describe."""
    scenario = {key: settings.pop(key) for key in set(settings) & set(Scenario.model_fields) - {"matrix"}}
    axes = {"model": "llama-tiny", "world_size": 2, "seq_length": 32} | settings
    short = {"warmup_steps": 1, "steps": 2}
    (cell,) = plan(Scenario.model_validate(short | scenario | {"matrix": axes}), OFFER)
    return cell


class Ranks:
    """A context manager: a server of forked ranks, and a folder for what they leave."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name)
        stack = fingerprint()["stack"]
        versions = {name: stack[name] for name in ("python", "torch", "deepspeed")}
        env = deepspeed.environment("cpu", extensions.folder(versions))
        argv = [sys.executable, "-m", "bench.worker.prebuild"]
        extensions.prepare(
            extensions.folder(versions), versions, argv, env, run=self.path, log=self.path / "logs" / "setup.log"
        )
        self.server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("rank_server.py"))],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.number = 0
        return self

    def __exit__(self, *exc):
        self.server.stdin.close()
        self.server.wait(timeout=60)
        self.server.stdout.close()
        self.folder.cleanup()

    def request(self, module, path, world_size, log, fault=None):
        request = {"argv": [module, str(path)], "world_size": world_size, "log": str(log), "fault": fault}
        print(json.dumps(request), file=self.server.stdin, flush=True)
        return json.loads(self.server.stdout.readline())

    def reference(self, cell):
        """Make the references of ``cell`` that are not there yet."""
        (self.path / "references").mkdir(exist_ok=True)
        jobs = references.missing(self.path, [cell], OFFER)
        if jobs:
            listed = self.path / "references" / "jobs.json"
            listed.write_text(json.dumps(list(jobs.values())))
            self.request("bench.worker.reference", listed, 1, self.path / "references.log")

    def measure(self, cell, fault=None):
        """Return the record of ``cell``, measured with ``fault`` in every rank."""
        self.reference(cell)
        self.number += 1
        work = self.path / "work" / str(self.number)
        work.mkdir(parents=True)
        job = {
            "cell": cell.cell.model_dump(mode="json"),
            "model_config": cell.config,
            "corpus": cell.corpus,
            "device": "cpu",
        }
        (work / "job.json").write_text(json.dumps(job))
        log = work / "log"
        statuses = self.request("bench.worker.main", work / "job.json", cell.cell.world_size, log, fault)
        launch = Launch(
            command=[],
            started_at="2026-01-01T00:00:00+00:00",
            wall_time_s=1.0,
            exit_status=max(map(abs, statuses)),
            log=str(log),
            log_tail=[],
        )
        return outcome(
            cell,
            0,
            work=work,
            log=log,
            launch=launch,
            timeout_s=120.0,
            device="cpu",
            num_cores=8,  # these runs are not about time
            references=references.find(self.path, cell, OFFER.device),
        )
