"""Real agents, which import nothing: who runs what, who ends when, and that nothing is left."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

import bench.launch.agents
from bench import isolation
from bench.errors import AgentsError
from bench.hosts import Host
from bench.isolation import WarmRanks
from bench.launch.agents import Agents, agents, fork
from bench.launch.deepspeed import Exit
from bench.launch.processes import RUN_MARKER, marked
from bench.plan import Resources, plan
from bench.scenario import Scenario

# Starts agents and ends when one does, in the words of DeepSpeed's launcher.
LAUNCH = """
import os, subprocess, sys, time
exec(os.environ.get("TEST_FIRST", ""))
agents = [
    subprocess.Popen([sys.executable, *sys.argv[2:]], env=os.environ | {"RANK": str(rank)})
    for rank in range(int(sys.argv[1]))
]
while not (ended := [agent for agent in agents if agent.poll() is not None]):
    time.sleep(0.02)
print(f"exits with return code = {ended[0].returncode}", flush=True)
for agent in agents:
    agent.kill()
sys.exit(1)
"""
AGENT = """
import os, sys
from pathlib import Path
from bench.worker import agent
agent._warm_up = lambda **setup: exec(os.environ.get("TEST_WARM_UP", ""))
agent.main(Path(sys.argv[1]))
agent.leave(0)
"""
TOY = """
import os
def main(path):
    exec(path.read_text(), {"here": path.parent, "os": os, "rank": int(os.environ["RANK"])})
"""
SLEEP = "import time; time.sleep(600)\n"

Start = Callable[..., AbstractContextManager[Agents]]


def starter(folder: Path) -> Start:
    """Return what starts agents: ``first`` runs before the launch starts them, ``warm_up`` in each of them."""
    for name, text in {"launch.py": LAUNCH, "agent.py": AGENT, "toy.py": TOY, "setup.json": "{}"}.items():
        (folder / name).write_text(text)

    def start(
        world_size: int = 2, first: str = "", warm_up: str = "", **settings: Any
    ) -> AbstractContextManager[Agents]:
        env = os.environ | {"TEST_FIRST": first, "TEST_WARM_UP": warm_up}
        argv = command(folder, world_size, folder / "setup.json")
        where: dict[str, Any] = {"run": folder, "log": folder / "agents.log"}
        return agents(argv, env, world_size, **(where | settings))

    return start


def command(folder: Path, world_size: int, setup: Path) -> list[str]:
    return [sys.executable, f"{folder}/launch.py", str(world_size), f"{folder}/agent.py", str(setup)]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    yield starter(tmp_path)
    assert processes(tmp_path) == []


@pytest.fixture(scope="module")
def all_warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    folder = tmp_path_factory.mktemp("warm")
    with starter(folder)() as warm:
        yield warm
    assert processes(folder) == []


@pytest.fixture
def warm(all_warm: Agents) -> Iterator[Agents]:
    """Give two agents that must survive the test, and be rid of what it did."""
    before = processes(all_warm.log.parent)
    assert len(before) == 1 + 2
    yield all_warm
    assert processes(all_warm.log.parent) == before
    assert all_warm.are_idle()
    assert run(all_warm, "print(rank)", 1)[1] == "0\n"


@pytest.fixture
def doomed(start: Start) -> Iterator[Agents]:
    """Give two agents that need not survive the test."""
    with start() as warm:
        yield warm


def processes(run: Path) -> list[int]:
    return [process.pid for process in marked(RUN_MARKER, str(run.resolve()))]


def of_agents(warm: Agents) -> list[psutil.Process]:
    return sorted(psutil.Process(warm.launcher.pid).children(), key=lambda process: process.environ()["RANK"])


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def run(warm: Agents, code: str, world_size: int = 2, timeout_s: float = 60.0, **settings: Any) -> tuple[Exit, str]:
    """Run ``code`` in ranks; return how they ended, and their log."""
    job, log = warm.log.with_name("job.py"), warm.log.with_name("job.log")
    job.write_text(code)
    settings.setdefault("variables", {})
    return fork(warm, "toy", job, world_size, log=log, timeout_s=timeout_s, **settings), log.read_text()


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("", 0),
        ("os._exit(3)", 3),
        ("os._exit(3 * rank)", 3),
        ("os.kill(os.getpid(), 9) if rank else None", -signal.SIGKILL),
        ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV),
        ("raise SystemExit(0)", 1),
        # An orphan, which the agent inherits, ends before the rank.
        ("os.fork() or (os.fork() and os._exit(0)) or os._exit(7); import time; time.sleep(0.5)", 0),
    ],
)
def test_the_exit_status_is_that_of_a_rank_that_failed(warm: Agents, code: str, status: int) -> None:
    assert run(warm, code)[0].status == status


def test_an_exception_is_in_the_log_of_its_job_alone(warm: Agents) -> None:
    ended, log = run(warm, "print('said'); os.write(2, b'written\\n'); raise OSError(f'of rank {rank}')")
    assert ended.status == 1
    assert "said" in log
    assert "written" in log
    assert "Traceback" in log
    assert {"OSError: of rank 0", "OSError: of rank 1"} <= set(log.splitlines())
    # Two ranks write word and line end apart, into one file: in whichever order.
    assert sorted(run(warm, "print('next')")[1]) == sorted("next\nnext\n")
    assert warm.log.read_text() == ""


def test_the_first_rank_that_fails_gives_the_status_and_its_peers_have_last_words(
    warm: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.launch.agents, "_GRACE_S", 60.0)
    code = """
import psutil, time
if rank == 1:
    (here / f"{os.getpid()}.first").touch()
    os._exit(3)
while not (first := list(here.glob("*.first"))) or psutil.pid_exists(int(first[0].stem)):
    time.sleep(0.02)
time.sleep(1)  # its agent has told by then
print("last words", flush=True)
os._exit(5)
"""
    ended, log = run(warm, code)
    assert (ended.status, log) == (3, "last words\n")


def test_peers_that_do_not_end_are_ended(warm: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.launch.agents, "_GRACE_S", 0.1)
    assert run(warm, "os._exit(3) if rank == 1 else None\n" + SLEEP)[0].status == 3


def test_ranks_that_are_out_of_time_are_killed(warm: Agents) -> None:
    ignore = "import signal; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]\n"
    assert run(warm, ignore + SLEEP, timeout_s=0.5)[0].status is None


# How a rank ends that is killed: its peer fails once both have started what they start.
KILLED = f"""
(here / f"{{rank}}.{{os.environ['MASTER_PORT']}}").touch()
while len(list(here.glob(f"*.{{os.environ['MASTER_PORT']}}"))) < 2:
    pass
if rank == 1:
    os._exit(3)
{SLEEP}"""


@pytest.mark.parametrize(("last", "status"), [("", 0), ("os._exit(3)", 3), (KILLED, 3)])
def test_what_a_job_starts_ends_with_it(
    warm: Agents, monkeypatch: pytest.MonkeyPatch, last: str, status: int | None
) -> None:
    monkeypatch.setattr(bench.launch.agents, "_GRACE_S", 60.0 if last != KILLED else 0.1)
    # An orphan, in a session of its own, without a marker.
    code = """
import subprocess, sys
orphan = f"import subprocess; print(subprocess.Popen({[sys.executable, '-c', SLEEP]}, start_new_session=True).pid)"
subprocess.run([sys.executable, "-c", orphan], env={}, start_new_session=True)
"""
    ended, log = run(warm, f"SLEEP = {SLEEP!r}{code}{last}")
    assert ended.status == status
    started = log.split()
    assert len(started) == 2
    assert not any(psutil.pid_exists(int(pid)) for pid in started)


def test_a_cell_runs_in_as_many_agents_as_it_has_ranks(warm: Agents) -> None:
    # In one write: two ranks share the log.
    told = "[str(rank), *(str(os.environ.get(key)) for key in ('WORLD_SIZE', 'LOCAL_SIZE', 'MASTER_PORT', 'TEST'))]"
    tell = f"os.write(1, (' '.join({told}) + chr(10)).encode())"
    assert run(warm, tell, 1, variables={"TEST": "first"})[1] == f"0 1 1 {warm.port} first\n"
    lines = run(warm, tell, 2)[1].splitlines()
    assert sorted(lines) == [f"{rank} 2 2 {warm.port} None" for rank in (0, 1)]


STATE = """
import json, os, random, resource, signal, sys, threading
umask = os.umask(0)
os.umask(umask)
opened = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
print(json.dumps({
    "arguments": sys.argv[2:],
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "cores": sorted(os.sched_getaffinity(0)),
    "folder": os.getcwd(),
    "handlers": {int(number): str(signal.getsignal(number)) for number in signal.valid_signals()},
    "leads its session": os.getsid(0) == os.getpid(),
    "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
    "niceness": os.nice(0),
    "opened": sorted({os.readlink(each) for each in opened if os.path.exists(each)}),
    "threads": threading.active_count(),
    "umask": umask,
}))
"""


def test_a_rank_is_like_a_fresh_process_whatever_the_one_before_did(warm: Agents) -> None:
    with warm.log.with_name("job.log").open("w") as log:
        fresh = [sys.executable, "-c", STATE]
        subprocess.run(fresh, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, check=True)
    expected = warm.log.with_name("job.log").read_text()
    assert run(warm, STATE, 1)[1] == expected
    code = """
import random, resource, signal, sys
os.chdir("/")
os.umask(0o77)
os.nice(1)
os.environ["TEST"] = "left"
os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGUSR1, print)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
sys.path.insert(0, "/nowhere")
sys.modules["toy"].main = None
"""
    assert run(warm, code, 1)[0].status == 0
    assert run(warm, STATE, 1)[1] == expected
    rest = "import sys; print(os.environ.get('TEST'), '/nowhere' in sys.path, 'ZEROSTAGE_RUNNER' in os.environ)"
    assert run(warm, rest, 1)[1] == "None False False\n"


@pytest.mark.parametrize(
    "module",
    [
        "random",
        "numpy.random",
    ],
)
def test_random_state_is_fresh_in_every_rank_and_job(
    start: Start, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")  # numpy would start threads
    draw = f"import {module}; os.write(1, f'{{{module}.random()}}\\n'.encode())"
    with start(warm_up=f"import {module}") as warm:
        numbers = [*run(warm, draw)[1].split(), *run(warm, draw)[1].split()]
    assert len(set(numbers)) == 4


def test_paths_may_be_relative(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with start(run=Path(), log=Path("agents.log")) as warm:
        assert run(warm, "print('here')", 1)[1] == "here\n"


def test_an_agent_that_goes_between_two_jobs_is_noticed(doomed: Agents) -> None:
    assert doomed.are_idle()
    of_agents(doomed)[1].kill()
    wait_until(lambda: not doomed.are_idle())


@pytest.mark.parametrize("rest", ["", SLEEP])
def test_an_agent_that_goes_in_a_job_is_the_status_of_the_job(doomed: Agents, rest: str) -> None:
    ended, log = run(doomed, "os.kill(os.getppid(), 9) if rank == 1 else None\n" + rest)
    assert ended.status == -signal.SIGKILL
    assert log.endswith("zerostage: the agent of a rank ended, with exit status -9\n")
    assert doomed.lost
    assert not doomed.are_idle()
    wait_until(lambda: processes(doomed.log.parent) == [])


def test_an_agent_that_does_not_answer_is_lost(doomed: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.launch.agents, "_END_S", 0.2)
    ended, log = run(doomed, "os.kill(os.getppid(), 19)\n" + SLEEP, timeout_s=2.0)
    assert ended.status is None
    assert log.endswith("zerostage: the agent of a rank did not answer for 0.2 s\n")
    assert not doomed.are_idle()


def test_agents_and_ranks_end_with_their_runner(doomed: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system closes the connections of a runner that is killed; here it lives on and sees what follows."""

    def hang_up() -> None:
        if doomed.log.with_name("runs").exists():
            for channel in doomed.channels:
                with contextlib.suppress(OSError):
                    channel.connection.shutdown(2)

    assert run(doomed, "(here / 'runs').touch()\n" + SLEEP, on_tick=hang_up)[0].status == 1
    wait_until(lambda: processes(doomed.log.parent) == [])


@pytest.mark.parametrize("broken_off", [False, True])
def test_shared_memory_of_a_job_goes_with_it(start: Start, broken_off: bool) -> None:
    def stop() -> None:
        if broken_off and list(Path("/dev/shm").glob(f"*_{started.port}_1")):
            raise KeyboardInterrupt

    code = """
name = f"deepspeed_allreduce_buffer_{os.getuid()}_127.0.0.1_{os.environ['MASTER_PORT']}_{rank}"
open(f"/dev/shm/{name}", "w").close()
"""
    with contextlib.suppress(KeyboardInterrupt), start() as started:
        run(started, code + SLEEP * broken_off, on_tick=stop)
        assert not broken_off
        assert list(Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{started.port}_*")) == []
    assert list(Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{started.port}_*")) == []


# What others may send to a port of this machine. The last one says nothing and stays.
STRANGERS = [b"", b"GET / HTTP/1.1\r\n\r\n", b"null\n", b"[]\n{}\n", b'{"token": "x", "rank": 0}\n', b"\xff\n", None]
CALLS = """
import os, socket
host, port, token = os.environ["ZEROSTAGE_RUNNER"].split(":")
kept = []
for message in {messages}:
    kept.append(socket.create_connection((host, int(port))))
    if message is not None:
        kept[-1].sendall(message)
        kept[-1].close()
"""


def test_strangers_are_not_taken_for_agents(start: Start) -> None:
    with start(first=CALLS.format(messages=STRANGERS)) as warm:
        assert sorted(run(warm, "os.write(1, f'{rank}\\n'.encode())")[1].split()) == ["0", "1"]


def test_a_stranger_that_nests_deeply_is_none_either(start: Start) -> None:
    with start(first=CALLS.format(messages=[b"[" * 60_000 + b"\n"])) as warm:
        assert warm.are_idle()


def test_agents_that_cannot_be_had(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(**settings: Any) -> str:
        with pytest.raises(AgentsError) as error, start(**settings):
            pass
        return str(error.value)

    assert reason(first="sys.exit(5)") == "the launch of warm ranks ended (exit status 5); see logs/agents.log"
    assert reason(world_size=1, warm_up="1 / 0") == (  # two would write into one another
        "the launch of warm ranks ended (ZeroDivisionError: division by zero); see logs/agents.log"
    )
    thread = "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    assert reason(warm_up=thread) == "imports have started 1 thread(s), which a forked child lacks"
    monkeypatch.setattr(bench.launch.agents, "START_TIMEOUT_S", 0.3)
    assert reason(first=SLEEP) == "warm ranks were not ready after 0.3 s; see logs/agents.log"


def test_an_agent_that_is_still_importing_ends_with_its_runner(start: Start, tmp_path: Path) -> None:
    code = f"""
from bench.launch import agents, deepspeed
import os, sys
from pathlib import Path
def tick():
    if len(list(Path({str(tmp_path)!r}).glob("importing*"))) == 2:
        os.kill(os.getpid(), 9)
with agents.agents({command(tmp_path, 2, tmp_path / "setup.json")!r}, dict(os.environ), 2, run=Path({str(tmp_path)!r}),
                   log=Path({str(tmp_path / "agents.log")!r}), on_tick=tick):
    pass
"""
    warm_up = f"Path({str(tmp_path)!r}, 'importing' + os.environ['RANK']).touch(); {SLEEP}"
    start()  # writes the files
    runner = subprocess.run([sys.executable, "-c", code], env=os.environ | {"TEST_WARM_UP": warm_up}, check=False)
    assert runner.returncode == -9
    wait_until(lambda: processes(tmp_path) == [])


def test_a_blocked_sigchld_is_no_reason_not_to_see_a_rank_end(start: Start) -> None:
    blocked = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGUSR2})"
    with start(first=blocked) as warm:
        ended, log = run(warm, "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))", 1)
        assert ended.status == 0
        assert log == f"{sorted([signal.SIGCHLD, signal.SIGUSR2])}\n"  # the rank has what its user has


@pytest.mark.parametrize("when", ["starting", "running"])
def test_an_interruption_ends_everything(start: Start, tmp_path: Path, when: str) -> None:
    def interrupt() -> None:
        if (tmp_path / "now").exists():
            raise KeyboardInterrupt

    code = f"from pathlib import Path; Path({str(tmp_path / 'now')!r}).touch(); {SLEEP}"
    with pytest.raises(KeyboardInterrupt):  # noqa: SIM117
        with start(warm_up=code if when == "starting" else "", on_tick=interrupt) as warm:
            run(warm, code, on_tick=interrupt)
    assert processes(tmp_path) == []


OFFER = Resources(device="cpu", slots=8, memory_bytes=2**34, shared=True)
OLD = "deepspeed==0.18.0"
AXES = {"model": "llama-tiny", "strategy": "z2", "seq_length": 32, "world_size": [1, 2], "stack": ["installed", OLD]}
# Of 1 and 2 ranks in the stack that is installed, of 1 rank in the other.
CELLS = [
    planned
    for planned in plan(Scenario.model_validate({"matrix": AXES}), OFFER)
    if planned.stack is None or planned.cell.world_size == 1
]


@pytest.fixture
def ranks(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WarmRanks]:
    monkeypatch.setattr(isolation, "_MEMORY_SHARE", 1000)
    monkeypatch.setattr(
        isolation, "_command", lambda need, device, setup, python: command(tmp_path, need.world_size, setup)
    )
    host = Host(sys.executable, os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path)})
    with WarmRanks(tmp_path, "cpu", {None: host, OLD: host}, CELLS) as warm_ranks:
        yield warm_ranks


def get(ranks: WarmRanks, stack: str | None) -> tuple[Agents, list[str]]:
    said: list[str] = []
    warm = ranks.ready(stack, 0, said.append)
    assert warm is not None
    assert run(warm, "")[0].status == 0
    return warm, said


def test_each_stack_has_agents_of_its_own_once_they_are_needed(ranks: WarmRanks, tmp_path: Path) -> None:
    assert processes(tmp_path) == []
    assert ranks.ready("deepspeed==0.17.0", 0, pytest.fail) is None  # none of its cells is to run
    usual, said = get(ranks, None)
    assert said == ["set-up: starting 2 warm ranks"]
    old, said = get(ranks, OLD)
    assert said == [f"set-up: starting 1 warm rank of {OLD}"]
    assert (len(usual.channels), len(old.channels)) == (2, 1)
    assert (usual.log.name, old.log.name) == ("agents.log", "agents-deepspeed-0.18.0.log")
    assert get(ranks, None) == (usual, [])
    assert get(ranks, OLD) == (old, [])
    assert list((tmp_path / "work").iterdir()) == []


def test_each_repeat_has_agents_of_its_own(ranks: WarmRanks, tmp_path: Path) -> None:
    usual, _ = get(ranks, None)
    said: list[str] = []
    again = ranks.ready(None, 1, said.append)
    assert said == ["set-up: starting 2 warm ranks for repeat 1"]
    assert again is not None
    assert again is not usual
    assert not usual.are_idle()
    assert len(processes(tmp_path)) == 1 + 2


def test_where_memory_is_short_stacks_take_turns(ranks: WarmRanks, tmp_path: Path) -> None:
    ranks.one_at_a_time = True
    usual, _ = get(ranks, None)
    old, said = get(ranks, OLD)
    assert len(said) == 1
    assert not usual.are_idle()
    assert set(processes(tmp_path)) == {old.launcher.pid, *(process.pid for process in of_agents(old))}
    again, said = get(ranks, None)
    assert len(said) == 1
    assert again is not usual


def test_memory_is_short_by_what_all_stacks_take(ranks: WarmRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_of_all = (2 + 2 + 1 + 2) * isolation._WARM_BYTES  # with two launchers each
    for share, short in [(1.01, False), (0.99, True)]:
        monkeypatch.setattr(isolation, "_MEMORY_SHARE", share * bytes_of_all / psutil.virtual_memory().total)
        assert WarmRanks(ranks.run, "cpu", ranks.hosts, CELLS).one_at_a_time == short


def test_agents_that_were_lost_are_started_again(ranks: WarmRanks, tmp_path: Path) -> None:
    old, _ = get(ranks, OLD)
    lost, _ = get(ranks, None)
    run(lost, "os.kill(os.getppid(), 9)")
    warm, said = get(ranks, None)
    assert said[0] == "a warm rank was lost: starting them again"
    assert warm is not lost
    assert len(processes(tmp_path)) == (1 + 2) + (1 + 1)
    assert get(ranks, OLD) == (old, [])


@pytest.fixture
def broken(ranks: WarmRanks) -> WarmRanks:
    host = ranks.hosts[OLD]
    ranks.hosts[OLD] = replace(host, variables=host.variables | {"TEST_FIRST": "sys.exit(5)"})
    return ranks


def test_a_stack_without_agents_says_so_once_and_costs_the_others_nothing(broken: WarmRanks, tmp_path: Path) -> None:
    said: list[str] = []
    assert broken.ready(OLD, 0, said.append) is None
    started, again, _, note = said
    assert started == f"set-up: starting 1 warm rank of {OLD}"
    ended = "the launch of warm ranks ended (exit status 5); see logs/agents-deepspeed-0.18.0"
    assert again == f"set-up: {ended}.log; trying once more"
    assert note == f"note: no warm ranks of {OLD}: {ended}-2.log; each cell left is a launch of its own"
    assert broken.ready(OLD, 0, pytest.fail) is None
    assert processes(tmp_path) == []
    get(broken, None)


def test_agents_that_did_not_start_leave_no_file(broken: WarmRanks, tmp_path: Path) -> None:
    assert broken.ready(OLD, 0, lambda line: None) is None
    assert list((tmp_path / "work").iterdir()) == []
