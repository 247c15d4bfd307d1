"""Measure cells one by one in warm ranks, each perhaps with a fault: the product as it is, without a scenario file."""

import os
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rich.console import Console

import bench.job
from bench import references
from bench.environment import fingerprint
from bench.hosts import prepare
from bench.isolation import WarmRanks
from bench.plan import Resources, plan
from bench.scenario import Scenario

OFFER = Resources(device="cpu", slots=8, memory_bytes=2**34, shared=True)


def planned(**settings):
    """Plan the one cell that ``settings`` (axes of the matrix, and settings of the scenario) describe."""
    scenario = {key: settings.pop(key) for key in set(settings) & set(Scenario.model_fields) - {"matrix"}}
    axes = {"model": "llama-tiny", "world_size": 2, "seq_length": 32} | settings
    short = {"warmup_steps": 1, "steps": 2}
    (cell,) = plan(Scenario.model_validate(short | scenario | {"matrix": axes}), OFFER)
    return cell


def host(run):
    """Return where ranks start; DeepSpeed's op is compiled if need be."""
    return prepare(run, None, fingerprint()["stack"], "cpu", Console(quiet=True))


class Ranks:
    """A context manager: warm ranks, as many as the largest of ``cells`` has, and a folder for what they leave."""

    def __init__(self, cells):
        self.cells = cells

    def __enter__(self):
        with ExitStack() as stack:
            self.path = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            self.fault = self.path / "fault"
            path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
            variables = {"PYTHONPATH": path, "ZEROSTAGE_TEST_FAULT_FILE": str(self.fault)}
            usual = host(self.path)
            self.host = replace(usual, variables=usual.variables | variables)
            self.warm = stack.enter_context(WarmRanks(self.path, "cpu", {None: self.host}, self.cells))
            self.worker, bench.job._WORKER = bench.job._WORKER, "faulty_rank"
            self.number = 0
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *exc):
        bench.job._WORKER = self.worker
        self.stack.close()

    def agents(self):
        return self.warm.ready(None, 0, print)

    def reference(self, cell):
        """Make the references of ``cell`` that are not there yet."""
        (self.path / "references").mkdir(exist_ok=True)

        def start(jobs, log, timeout_s):
            return bench.job.compute_references(jobs, self.path, "cpu", self.agents(), log=log, timeout_s=timeout_s)

        references.make(self.path, references.missing(self.path, [cell], OFFER), start, 120.0)

    def measure(self, cell, fault=None, timeout_s=120.0):
        """Return the record of ``cell``, measured with ``fault`` (faulty_rank.py says in which ranks)."""
        self.reference(cell)
        self.number += 1
        self.fault.write_text(fault or "")
        job = bench.job.Job(cell, self.number)
        return bench.job.measure(job, self.path, self.host, "cpu", self.agents(), timeout_s=timeout_s)
