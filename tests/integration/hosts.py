"""Two hosts on one machine: network namespaces joined by a veth link, on which every byte between them is counted."""

import contextlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from link import sent_bytes

PORT = 29500  # free in a namespace of one's own


@dataclass
class Host:
    process: subprocess.Popen
    address: str

    def run(self, *command):
        """Run a command in the host's network namespace."""
        argv = ["nsenter", f"--target={self.process.pid}", "--net", *command]
        return subprocess.run(argv, check=True, capture_output=True, text=True)


class Hosts:
    """Starts ranks on two hosts without any launcher, as the launchers of DeepSpeed on two nodes would."""

    def __init__(self, hosts, log):
        self.hosts, self.log = hosts, log

    def launch(self, nodes, argv, timeout_s=600):
        """Run ``argv`` as rank r on host ``nodes[r]`` for every r; return the bytes that each host sent to the other.

        Fails the test, with the end of the ranks' log, unless every rank exits 0.
        """
        before = self._sent()
        for number, host in enumerate(self.hosts):
            ranks = [self._variables(nodes, rank) for rank, node in enumerate(nodes) if node == number]
            request = {"argv": list(map(str, argv)), "ranks": ranks, "log": str(self.log), "timeout_s": timeout_s}
            print(json.dumps(request), file=host.process.stdin, flush=True)
        statuses = [json.loads(host.process.stdout.readline()) for host in self.hosts]
        assert not any(status != 0 for host in statuses for status in host), (
            f"exit statuses by host: {statuses}\n" + self.log.read_text(errors="replace")[-5000:]
        )
        return [now - then for now, then in zip(self._sent(), before, strict=True)]

    def _sent(self):
        return [sent_bytes(host.process.pid) for host in self.hosts]

    def _variables(self, nodes, rank):
        local = {
            "LOCAL_RANK": nodes[:rank].count(nodes[rank]),
            "LOCAL_SIZE": nodes.count(nodes[rank]),  # DeepSpeed's name; LOCAL_WORLD_SIZE is torchrun's
            "LOCAL_WORLD_SIZE": nodes.count(nodes[rank]),
            "CROSS_RANK": nodes[rank],
            "CROSS_SIZE": len(set(nodes)),
        }
        world = {"RANK": rank, "WORLD_SIZE": len(nodes), "MASTER_ADDR": self.hosts[nodes[0]].address}
        variables = world | local | {"MASTER_PORT": PORT, "GLOO_SOCKET_IFNAME": "eth0"}
        return {name: str(value) for name, value in variables.items()}


def require_namespaces():
    """Skip the test, with the reason, where two linked network namespaces cannot be had."""
    for tool, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux")):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} (package {package}) is not installed")
    trial = subprocess.run(
        ["unshare", "--net", "sh", "-c", "ip link add eth0 type veth peer name eth1"], capture_output=True, text=True
    )
    if trial.returncode:
        pytest.skip(f"no network namespace with a veth link: {trial.stderr.strip()}")


@contextlib.contextmanager
def two_hosts(env, folder):
    """Yield `Hosts`: two namespaces 198.18.0.1 and .2, whose link leads nowhere else. Nothing of them is left after.

    No namespace has a name: it lives as long as the process in it, which ends when this one does.
    """
    log = folder / "ranks.log"
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(log.open("ab"))
        hosts = []
        for number in (1, 2):
            process = subprocess.Popen(
                ["unshare", "--net", sys.executable, Path(__file__).with_name("host_process.py")],
                env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True,
            )  # fmt: skip
            stack.callback(_end, process)
            hosts.append(Host(process, f"198.18.0.{number}"))
        for host in hosts:
            assert host.process.stdout.readline() == "ready\n", log.read_text(errors="replace")[-5000:]
        _link(hosts)
        yield Hosts(hosts, log)


def _link(hosts):
    peer = str(hosts[1].process.pid)
    hosts[0].run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", peer)
    for host in hosts:
        host.run("ip", "link", "set", "lo", "up")
        # IPv4 alone: no neighbour discovery among the bytes, and one address for gloo to choose.
        host.run("ip", "link", "set", "eth0", "addrgenmode", "none", "up")
        # On a busy machine a delayed acknowledgement looks like a loss: no retransmission before 5 s, nor a probe.
        host.run("ip", "address", "add", f"{host.address}/24", "dev", "eth0", "noprefixroute")
        host.run("ip", "route", "add", "198.18.0.0/24", "dev", "eth0", "src", host.address, "rto_min", "5s")
        host.run("sh", "-c", "echo 0 > /proc/sys/net/ipv4/tcp_early_retrans")


def _end(process):
    process.stdin.close()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
