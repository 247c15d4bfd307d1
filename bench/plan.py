"""Scenario -> cells: expand the matrix, name every cell, and refuse the impossible ones before a launch."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from bench.cell import BatchLimits, Cell
from bench.configs.read import ConfigFile, read_configs
from bench.corpus import digest
from bench.errors import ScenarioError
from bench.models.catalog import has_experts, load_config, max_positions
from bench.models.counts import ParamCount, count_params
from bench.models.training import count_trained, nothing_to_train
from bench.scenario import MAX, ConfigStrategy, Rule, Scenario
from bench.scenario_file import load_scenario
from bench.stacks import INSTALLED, releases
from bench.strategy import Settled, from_file, named
from bench.target import emulated, is_emulated
from bench.zero import features
from bench.zero.theory import model_state_bytes

# What begins the reason of a cell whose states alone need more memory than there is.
MISFIT = "known misfit"


class PlannedCell(BaseModel):
    """A cell with what is known before it runs.

    It will not be launched with a ``skip_reason``, for it is impossible or known not to fit, nor with an
    ``unsupported_reason``, for its stack or this machine lacks what it needs. ``notes`` say how a configuration file
    became these settings.

    ``cell_id``, ``config`` and ``corpus`` (digest of the text, if a path is named) are those of planning time: a file
    that is edited while the matrix runs changes neither what is measured nor under which name it is filed.
    ``stack``: the releases that it is to run with (bench.stacks), ``None`` for those installed. The same cell has one
    ``cell_id`` in all stacks; a row is known by ``cell_id``, ``stack`` and repeat.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    cell: Cell
    cell_id: str
    config: dict[str, Any]
    corpus: str | None
    params: ParamCount | None
    model_state_bytes: float | None
    skip_reason: str | None
    unsupported_reason: str | None = None
    notes: tuple[str, ...] = ()
    stack: str | None = None

    @property
    def refused(self) -> tuple[Literal["skipped", "unsupported"], str] | None:
        """The status and the reason of the row that it gets without a launch; ``None`` when it will be launched."""
        if self.skip_reason is not None:
            return "skipped", self.skip_reason
        return None if self.unsupported_reason is None else ("unsupported", self.unsupported_reason)

    @property
    def label(self) -> str:
        """The cell's label, with the stack as its last part where one is asked for."""
        return self.cell.label + (f"/{self.stack}" if self.stack else "")

    def matches(self, glob: str) -> bool:
        """Whether ``glob`` matches as in `Cell.matches`, with the stack as a last part (``z2/*/deepspeed==0.18.0``).

        A cell's id matches it in all its stacks, ``<id>/<stack>`` in one; no stack is called ``installed``.
        """
        if self.cell.matches(glob):
            return True
        if self.stack is None and not glob.endswith(INSTALLED):
            return False  # '*d*' would find the word in every cell
        stack = self.stack or INSTALLED
        names = (f"{self.cell_id}/{stack}", f"{self.cell.label}/{stack}")
        inside = fnmatchcase(f"/{self.cell.label}/{stack}/", f"*/{glob}/*")
        return inside or any(fnmatchcase(name, glob) for name in names)


class Resources(BaseModel):
    """What this machine offers the ranks of a cell: slots (GPUs, or CPU slots) and memory, in bytes.

    On CPU all ranks share ``memory_bytes``; on GPUs each rank has that much. ``deepspeed``: the installed release.
    """

    model_config = ConfigDict(frozen=True)

    device: str
    slots: int
    memory_bytes: int
    shared: bool
    deepspeed: str = ""


def _axes(scenario: Scenario) -> dict[str, tuple[Any, ...]]:
    return {name: (None,) if values is None else values for name, values in scenario.matrix}


def _knobs(scenario: Scenario) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
    """Yield each combination of the ``zero_optimization`` values, with the keys that are an axis."""
    asked = scenario.zero_optimization
    axes = frozenset(key for key, value in asked.items() if isinstance(value, tuple))
    for values in itertools.product(*(value if isinstance(value, tuple) else (value,) for value in asked.values())):
        yield dict(zip(asked, values, strict=True)), axes


def _matches(rule: Rule, point: dict[str, Any]) -> bool:
    return all(point[axis] in values for axis, values in rule.axes().items())


def _product(axes: dict[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _settled(point: dict[str, Any]) -> dict[str, Any]:
    """Fill in the batch keys that follow from the others, as a rule's author sees them in the labels."""
    if point["train_micro_batch_size_per_gpu"] == MAX:
        return point | {"gradient_accumulation_steps": point["gradient_accumulation_steps"] or 1}
    micro = point["train_micro_batch_size_per_gpu"] * point["world_size"]
    steps = point["gradient_accumulation_steps"] or max(1, (point["train_batch_size"] or micro) // micro)
    return point | {
        "gradient_accumulation_steps": steps,
        "train_batch_size": point["train_batch_size"] or micro * steps,
    }


def _points(scenario: Scenario) -> Iterator[dict[str, Any]]:
    axes = _axes(scenario)
    for point in _product(axes):
        if not any(_matches(rule, _settled(point)) for rule in scenario.exclude):
            yield point
    # An include rule is a small matrix of its own: axes that it does not name come from the main one.
    for rule in scenario.include:
        yield from _product(axes | rule.axes())


def _batch(settings: dict[str, Any]) -> str | None:
    """Return why the batch triple cannot hold, ``None`` when it can."""
    total, steps = settings["train_batch_size"], settings["gradient_accumulation_steps"]
    if settings["train_micro_batch_size_per_gpu"] == MAX:
        return total and (
            f"train_batch_size {total} fixes the global batch, and train_micro_batch_size_per_gpu {MAX} searches for "
            "one; set gradient_accumulation_steps instead"
        )
    micro = settings["train_micro_batch_size_per_gpu"] * settings["world_size"]
    if total is None or not (total % micro or (steps is not None and steps * micro != total)):
        return None
    given = "a whole number" if steps is None else str(steps)
    return (
        f"batch triple impossible: train_batch_size {total} = train_micro_batch_size_per_gpu "
        f"{settings['train_micro_batch_size_per_gpu']} x world_size {settings['world_size']} x {given} "
        "does not hold"
    )


def _limits(scenario: Scenario) -> BatchLimits:
    asked = scenario.largest_batch
    return BatchLimits(
        memory_bytes=None if asked.memory_gib is None else int(asked.memory_gib * 2**30), at_most=asked.at_most
    )


def _cell(
    scenario: Scenario, point: dict[str, Any], found: Settled, config: dict[str, Any], resources: Resources
) -> tuple[Cell, str | None]:
    """Settle the batch triple and the mode of one point; the reason is set when it cannot hold."""
    settings = point | found.settings
    reason = _batch(settings) or found.reason
    settings |= {"gradient_accumulation_steps": _settled(settings)["gradient_accumulation_steps"]}
    del settings["stack"], settings["train_batch_size"]
    searched = settings["train_micro_batch_size_per_gpu"] == MAX
    if searched:
        settings |= {"train_micro_batch_size_per_gpu": 1, "largest_batch": _limits(scenario)}
    finetuning = settings.pop("finetuning")
    if is_emulated(settings.pop("mode"), settings, resources.slots):
        target, impossible = emulated(scenario.emulation, settings)
        settings |= target
        reason = reason or impossible
    else:
        settings |= {"warmup_steps": scenario.warmup_steps, "steps": scenario.steps}
        if searched and resources.device == "cpu" and scenario.largest_batch.memory_gib is None:
            raise ScenarioError(
                f"train_micro_batch_size_per_gpu {MAX}: on CPU a rank has no memory of its own to fill; set "
                "largest_batch.memory_gib, the budget of a rank, or mode: emulated"
            )
    shared = {"data": scenario.data, "optimizer": scenario.optimizer, "seed": scenario.seed}
    shared |= {
        "lora": scenario.lora if finetuning == "lora" else None,
        "freeze": scenario.freeze if finetuning == "freeze" else None,
        "attn_implementation": scenario.attn_implementation,
    }
    experts = scenario.experts_implementation if has_experts(config) else None
    return Cell(**shared | {"experts_implementation": experts} | settings), reason


def _strategies(
    scenario: Scenario,
    point: dict[str, Any],
    config: dict[str, Any],
    deepspeed: str,
    read: Callable[[Path], list[ConfigFile]],
) -> Iterator[Settled]:
    """Yield what the point's strategy comes to: several, where a key has several values or a file several stages."""
    asked = point["strategy"]
    if isinstance(asked, ConfigStrategy):
        for file in read(Path(asked.config)):
            yield from_file(file, scenario, point, config, deepspeed)
        return
    beyond = point["mode"] != "measured"
    per_node = scenario.emulation.gpus_per_node if beyond else point["world_size"] // point["num_nodes"]
    for knobs, axes in _knobs(scenario):
        yield named(asked, knobs, axes, per_node)


def _skip_reason(cell: Cell, config: dict[str, Any], states: float | None, resources: Resources) -> str | None:
    if reason := nothing_to_train(config, cell.lora, cell.freeze):
        return reason
    if cell.strategy == "fsdp2" and cell.finetuning != "full":
        return "fsdp2 is a baseline for full training here, it has not been held against another with frozen parameters"
    longest = max_positions(config)
    if longest is not None and cell.seq_length > longest:
        return f"seq_length {cell.seq_length} is above the {longest} positions of {cell.model}"
    vocabulary = config.get("vocab_size")
    if cell.data.kind == "text" and isinstance(vocabulary, int) and vocabulary < 256:
        return f"data.kind text needs a vocabulary of 256 bytes, {cell.model_name} has {vocabulary}"
    if cell.emulation is not None:  # needs neither slots nor memory
        return None
    if cell.num_nodes > 1:
        return f"num_nodes {cell.num_nodes}: this release launches on one node only"
    if cell.world_size > resources.slots:
        remedy = f" (--cpu-slots {cell.world_size})" if resources.device == "cpu" else ""
        return (
            f"world_size {cell.world_size} is above the {resources.slots} {resources.device} slots here{remedy}; "
            "mode: auto emulates it"
        )
    if states is not None:
        needed = states * (cell.world_size if resources.shared else 1)
        if needed > resources.memory_bytes:
            return (
                f"{MISFIT}: parameters, gradients and Adam states alone need {needed / 2**30:.1f} GiB, "
                f"there are {resources.memory_bytes / 2**30:.1f} GiB; mode: emulated needs none of it"
            )
    return None


def _config(model: str) -> tuple[dict[str, Any], ParamCount | None]:
    try:
        config = load_config(model)
        return config, count_params(config)
    except ScenarioError as error:
        raise ScenarioError(f"matrix.model: {error}") from None


def _planned(
    scenario: Scenario,
    point: dict[str, Any],
    found: Settled,
    model: tuple[dict[str, Any], ParamCount | None],
    resources: Resources,
    deepspeed: str,
) -> PlannedCell:
    config, params = model
    cell, reason = _cell(scenario, point, found, config, resources)
    if cell.finetuning != "full":
        params = count_trained(config, cell.lora, cell.freeze)
    states = None
    if params is not None:
        # On a CPU, all that is offloaded is in the same memory.
        apart = resources.device != "cpu" or (cell.emulation is not None and cell.emulation.apart)
        on_host = cell.on_host if apart else frozenset()
        states = model_state_bytes(params.total, cell.strategy, cell.world_size, cell.dtype, params.trained, on_host)
    asked = features.Asked(
        strategy=cell.strategy,
        zero_optimization=cell.zero_optimization,
        deepspeed_keys=cell.deepspeed,
        world_size=cell.world_size,
        num_nodes=cell.num_nodes,
        dtype=cell.dtype,
        device=resources.device if cell.emulation is None else "emulated",
        deepspeed=deepspeed,
    )
    return PlannedCell(
        cell=cell,
        cell_id=cell.cell_id,
        config=config,
        corpus=digest(cell.data.path) if cell.data.path else None,
        params=params,
        model_state_bytes=states,
        skip_reason=reason or features.impossible(asked) or _skip_reason(cell, config, states, resources),
        unsupported_reason=features.unsupported(asked),
        notes=found.notes,
        stack=point["stack"],
    )


def plan(scenario: Scenario, resources: Resources) -> list[PlannedCell]:
    """Expand a scenario into its cells, each once, in matrix order.

    Raises:
        ScenarioError: a model or corpus is unknown or unreadable, or no cell is left by the exclude rules.
    """
    planned: dict[tuple[str, str | None], PlannedCell] = {}
    configs: dict[str, tuple[dict[str, Any], ParamCount | None]] = {}
    read = cache(read_configs)  # once for the whole matrix, and not for the next one: files change
    for point in _points(scenario):
        if point["model"] not in configs:
            configs[point["model"]] = _config(point["model"])
        deepspeed = releases(point["stack"]).get("deepspeed", resources.deepspeed)
        for found in _strategies(scenario, point, configs[point["model"]][0], deepspeed, read):
            entry = _planned(scenario, point, found, configs[point["model"]], resources, deepspeed)
            key = (entry.cell_id, entry.stack)
            known = planned.get(key)
            # An impossible batch triple has no accumulation of its own, so its id may be that of a possible cell.
            if known is None or (known.skip_reason is not None and entry.skip_reason is None):
                planned[key] = entry
    if not planned:
        raise ScenarioError("no cell is left to run: the exclude rules remove the whole matrix")
    return list(planned.values())


def plan_file(path: Path, resources: Resources) -> tuple[Scenario, list[PlannedCell]]:
    """Read a scenario file and expand it.

    Raises:
        ScenarioError: as `load_scenario` and `plan`; every message names the file.
    """
    scenario = load_scenario(path)
    try:
        return scenario, plan(scenario, resources)
    except ScenarioError as error:
        raise ScenarioError(f"{path}: {error}") from None


def repeats(planned: PlannedCell, scenario: Scenario) -> int:
    """Return how many rows a cell has: an emulated one computes the same each time, and has no times to draw anew."""
    return scenario.repeat if planned.cell.emulation is None else 1


def unused_rules(scenario: Scenario) -> list[str]:
    """Name the exclude rules that match no cell; a silent one is usually a typing mistake."""
    points = [_settled(point) for point in _product(_axes(scenario))]
    return [
        f"exclude rule {number} matches no cell: {rule.model_dump(mode='json', exclude_none=True)}"
        for number, rule in enumerate(scenario.exclude, start=1)
        if not any(_matches(rule, point) for point in points)
    ]


def select(planned: Iterable[PlannedCell], globs: list[str]) -> list[PlannedCell]:
    """Keep the cells that any glob matches (all, when there are none).

    Raises:
        ScenarioError: no cell matches.
    """
    everything = list(planned)
    if not globs:
        return everything
    chosen = [entry for entry in everything if any(entry.matches(glob) for glob in globs)]
    if not chosen:
        known = sorted({name for entry in everything for name in entry.label.split("/")})
        raise ScenarioError(
            f"no cell matches --only {' '.join(globs)}; a glob is held against the cell id, the whole label "
            f"({everything[0].label}) and each of its parts: {', '.join(known)}"
        )
    return chosen
