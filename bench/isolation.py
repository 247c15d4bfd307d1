"""How the ranks of each job are started: forked from warm agents, or by a launch of their own.

Both give every rank of every cell a process of its own. Warm agents save what each launch pays again: starting Python
and importing torch, DeepSpeed and transformers, in every rank and in two launchers before it.
"""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import psutil

from bench.environment import gpus
from bench.errors import AgentsError, UnsafeForkError
from bench.hosts import Host
from bench.launch import agents, deepspeed, extensions
from bench.plan import PlannedCell
from bench.stacks import file_part
from bench.store import write_json

# Of one process that has imported the stack (372 MB resident, deepspeed 0.19.8), with room. The launch of n agents has
# two more of them.
_WARM_BYTES = 0.5 * 2**30
_MEMORY_SHARE = 0.5


@dataclass
class _Need:
    """What the cells of a stack need of its agents."""

    world_size: int = 0
    model_types: list[str] = field(default_factory=list)
    adapters: bool = False


def _needs(cells: Iterable[PlannedCell]) -> dict[str | None, _Need]:
    needs: dict[str | None, _Need] = {}
    for planned in cells:
        need = needs.setdefault(planned.stack, _Need())
        need.world_size = max(need.world_size, planned.cell.num_processes)
        need.adapters |= planned.cell.lora is not None
        if (kind := planned.config.get("model_type")) and kind not in need.model_types:
            need.model_types.append(kind)
    return needs


def _name(stack: str | None) -> str:
    """Return the stem of the files that agents of ``stack`` share."""
    return f"agents-{file_part(stack)}" if stack else "agents"


def _command(need: _Need, device: str, setup: Path, python: str) -> list[str]:
    return deepspeed.command(need.world_size, device, setup, python, "bench.worker.agent")


def commands(cells: Iterable[PlannedCell], device: str, python: Callable[[str | None], str]) -> list[list[str]]:
    """Return the commands that start the agents of all stacks that ``cells`` ask for; ``python`` gives interpreters."""
    return [
        _command(need, device, Path("work") / f"{_name(stack)}.json", python(stack))
        for stack, need in _needs(cells).items()
    ]


class WarmRanks:
    """The agents of every stack: a context manager. They are started when first needed, and again when one is lost.

    Each repeat has its own: children of one agent share its memory layout and hash seed, which a fresh launch would
    draw anew. ``cells``: what will run; without any, no agents start. A stack has as many agents as its largest cell
    has ranks. Where memory is short (``one_at_a_time``), those of one stack end before those of the next begin.
    """

    def __init__(self, run: Path, device: str, hosts: dict[str | None, Host], cells: Iterable[PlannedCell]) -> None:
        self.run, self.device, self.hosts = run, device, hosts
        self.needs = _needs(cells)
        self.held: dict[tuple[str | None, int], tuple[agents.Agents, contextlib.ExitStack]] = {}
        self.starts: dict[str | None, int] = {}
        wanted = sum(need.world_size + 2 for need in self.needs.values()) * _WARM_BYTES
        self.one_at_a_time = wanted > _MEMORY_SHARE * psutil.virtual_memory().total

    def __enter__(self) -> "WarmRanks":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as closing:  # so that one that cannot be ended does not keep the others
            for _, started in self.held.values():
                closing.push(started)
            self.held = {}

    def ready(
        self, stack: str | None, repeat: int, say: Callable[[str], None], on_tick: Callable[[], None] = lambda: None
    ) -> agents.Agents | None:
        """Return idle agents of a stack and repeat, ``None`` if its cells are to be launches of their own."""
        if stack not in self.needs:
            return None
        key = stack, repeat
        if key in self.held and self.held[key][0].are_idle():
            return self.held[key][0]
        if key in self.held:
            say("a warm rank was lost: starting them again")
        for other in list(self.held):
            if other == key or other[1] != repeat or self.one_at_a_time:
                self.held.pop(other)[1].close()
        try:
            try:
                return self._start(stack, repeat, say, on_tick)
            except UnsafeForkError:
                raise
            except AgentsError as error:  # one that was killed, say
                say(f"set-up: {error}; trying once more")
                return self._start(stack, repeat, say, on_tick)
        except AgentsError as error:
            say(f"note: no warm ranks{f' of {stack}' if stack else ''}: {error}; each cell left is a launch of its own")
            del self.needs[stack]
            return None

    def _start(
        self, stack: str | None, repeat: int, say: Callable[[str], None], on_tick: Callable[[], None]
    ) -> agents.Agents:
        need, host = self.needs[stack], self.hosts[stack]
        whose = f"{f' of {stack}' if stack else ''}{f' for repeat {repeat}' if repeat else ''}"
        ranks = "1 warm rank" if need.world_size == 1 else f"{need.world_size} warm ranks"
        say(f"set-up: starting {ranks}{whose}")
        setup = self.run / "work" / f"{_name(stack)}.json"
        load_op = self.device == "cpu" and host.no_op is None
        write_json(setup, {"model_types": need.model_types, "load_op": load_op, "adapters": need.adapters})
        argv = _command(need, self.device, setup, host.python)
        self.starts[stack] = number = self.starts.get(stack, 0) + 1
        log = self.run / "logs" / (f"{_name(stack)}-{number}.log" if number > 1 else f"{_name(stack)}.log")
        try:
            with contextlib.ExitStack() as starting, loading_ops(self.device, host, say, on_tick):
                begun = agents.agents(argv, host.variables, need.world_size, run=self.run, log=log, on_tick=on_tick)
                warm = starting.enter_context(begun)
                self.held[stack, repeat] = warm, starting.pop_all()
                return warm
        finally:
            setup.unlink(missing_ok=True)


def loading_ops(
    device: str, host: Host, say: Callable[[str], None], on_tick: Callable[[], None]
) -> contextlib.AbstractContextManager[None]:
    """Hold the folder of compiled ops while ranks of ``host`` may load from it, without locks of the dead."""
    if device != "cpu":
        return contextlib.nullcontext()
    folder = Path(host.variables["TORCH_EXTENSIONS_DIR"])
    return extensions.in_use(folder, say=lambda line: say(f"set-up: {line}"), on_tick=on_tick)


def visible_devices(device: str, world_size: int) -> dict[str, str]:
    """Return the variables that show a forked cell of ``world_size`` ranks its GPUs, as its own launch would."""
    if device != "cuda":
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(str(gpu["index"]) for gpu in gpus()[:world_size])}


def relative(argv: list[str], run: Path) -> list[str]:
    """Return the command of a launch as a record keeps it: without the interpreter, paths as in the run folder."""
    job = Path(argv[-1])
    return ["deepspeed", *argv[3:-1], str(job.relative_to(run)) if job.is_relative_to(run) else str(job)]
