"""A second witness for traffic: the bytes on the link between two hosts, against the counted collectives.

The hosts are network namespaces joined by a virtual Ethernet link. The worker runs k and 2k timed steps; the
difference is k steps of traffic, since start-up, broadcasts, counting pass and warm-up are the same in both.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from hosts import require_namespaces, two_hosts

from bench.cell import Cell
from bench.environment import fingerprint
from bench.launch import deepspeed, extensions
from bench.models.catalog import load_config
from bench.outcome import comm
from bench.wire import node_bytes
from bench.zero.stages import STRATEGIES

pytestmark = [pytest.mark.ranks, pytest.mark.netns]

K = 4
PLACEMENTS = {"2": [0, 1], "2 x 2": [0, 0, 1, 1], "2 x 2, interleaved": [0, 1, 0, 1]}  # the host of each rank
TELLING = {("z1", "2"), ("z3", "2"), ("z2", "2 x 2, interleaved")}  # the others are slow
CASES = [
    pytest.param(strategy, placement, marks=[] if (strategy, placement) in TELLING else [pytest.mark.slow])
    for placement in PLACEMENTS
    for strategy in STRATEGIES
]
# 2.3 million parameters, all but a few in embedding and head: many bytes, little to compute. Gloo's own messages
# (up to 40 kB a step, for stage 3) are then well below a hundredth.
MODEL = load_config("llama-tiny") | {"vocab_size": 16384}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    require_namespaces()
    folder = tmp_path_factory.mktemp("hosts")
    stack = fingerprint()["stack"]
    versions = {name: stack[name] for name in ("python", "torch", "deepspeed")}
    compiled = extensions.folder(versions)
    env = deepspeed.environment("cpu", compiled)
    prebuild = [sys.executable, "-m", "bench.worker.prebuild"]
    extensions.prepare(compiled, versions, prebuild, env, run=folder, log=folder / "setup.log")
    with extensions.in_use(compiled), two_hosts(env, folder) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def table():
    """Collects lines; docs/metrics.md has them (pytest -s shows them)."""
    lines = []
    yield lines
    print("", *lines, sep="\n")


def run_cell(hosts, folder, strategy, nodes, steps):
    """Run the worker, with a job file as bench.job writes it; return its result and the bytes that each host sent."""
    cell = Cell(model="llama-tiny", strategy=strategy, world_size=len(nodes), seq_length=8, warmup_steps=1, steps=steps)
    job = {"cell": cell.model_dump(mode="json"), "model_config": MODEL, "corpus": None, "device": "cpu"}
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps(job))
    sent = hosts.launch(nodes, ["bench.worker.main", folder / "job.json"])
    return json.loads((folder / "result.json").read_text()), sent


@pytest.mark.parametrize(("strategy", "placement"), CASES)
def test_counted_collectives_explain_the_bytes_on_the_link(hosts, table, tmp_path, strategy, placement):
    nodes = PLACEMENTS[placement]
    _, once = run_cell(hosts, tmp_path / "k", strategy, nodes, K)
    result, twice = run_cell(hosts, tmp_path / "2k", strategy, nodes, 2 * K)
    measured = [(more - less) / K for more, less in zip(twice, once, strict=True)]

    counted = comm([rank["collectives"] for rank in result["ranks"]], steady=True, backend=result["backend"])
    expected = Counter()
    for row in counted.collectives:
        assert row.group_size == len(nodes)
        for link, num_bytes in node_bytes(row.op, row.num_bytes, nodes, counted.backend).items():
            expected[link] += row.count * num_bytes
    assert set(expected) == {(0, 1), (1, 0)}
    assert measured == pytest.approx([expected[0, 1], expected[1, 0]], rel=0.01)

    model, link = expected[0, 1] / 1e6, [num_bytes / 1e6 for num_bytes in measured]
    table.append(
        f"| {strategy} | {placement} | {model:.3f} | {link[0]:.3f} | {link[1]:.3f} "
        f"| {link[0] / model - 1:+.2%} | {link[1] / model - 1:+.2%} |"
    )


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_each_collective_sends_what_the_wire_model_says(hosts, table, tmp_path, placement):
    nodes, size = PLACEMENTS[placement], 8 << 20
    hosts.launch(nodes, [Path(__file__).with_name("collectives_ranks.py"), tmp_path])
    by_host = [json.loads((tmp_path / f"{nodes.index(host)}.json").read_text()) for host in (0, 1)]
    for op in by_host[0]:
        expected = node_bytes(op, size, nodes, "gloo")
        ways = [expected.get(link, 0) / size for link in ((0, 1), (1, 0))]
        sent = [found[op] / size for found in by_host]
        table.append(f"| {op} | {placement} | {ways[0]:.3f}, {ways[1]:.3f} | {sent[0]:.4f}, {sent[1]:.4f} |")
        assert sent == pytest.approx(ways, rel=0.01, abs=0.002), op


def test_ranks_that_hang_are_ended_and_leave_nothing_on_their_host(hosts, tmp_path):
    (tmp_path / "hang.py").write_text("import time; time.sleep(1000)")
    with pytest.raises(AssertionError, match=r"exit statuses by host: .*None"):
        hosts.launch([0, 1], [tmp_path / "hang.py"], timeout_s=0.5)
    for host in hosts.hosts:
        namespace = Path(f"/proc/{host.process.pid}/ns/net").stat().st_ino
        assert [pid for pid in _pids() if _namespace(pid) == namespace] == [host.process.pid]


def _pids():
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _namespace(pid):
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    except OSError:  # it has ended meanwhile
        return None


def test_missing_tools_are_a_skip_with_a_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pytest.skip.Exception, match=r"ip \(package iproute2\) is not installed"):
        require_namespaces()
