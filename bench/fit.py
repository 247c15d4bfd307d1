"""``zerostage plan --ds-config``: which configurations fit on which GPUs, by formula, in seconds."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.configs import read_configs
from bench.errors import ScenarioError
from bench.plan import PlannedCell, Resources, plan
from bench.quick import given, longest, numbers, placed
from bench.scenario_file import parse_scenario
from bench.zero.offload import device_peak_bytes, host_peak_bytes

# The formulas know no allocator, no CUDA context and no NCCL, and are up to 27 % low in the middle of backward
# (docs/emulation.md): what they put above this part of the memory is not decided by them.
_SURE = 0.75


@dataclass(frozen=True)
class Asked:
    """The options of the command. ``None``: the configuration's, or the default of a scenario."""

    model: str | None
    gpus: str
    gpu: str
    gpu_memory_gib: float | None
    gpus_per_node: int
    seq_length: int | None
    micro_batch: int | None
    gas: int | None
    dtype: str | None
    activation_checkpointing: bool


def _planned(paths: list[Path], asked: Asked, deepspeed: str) -> list[PlannedCell]:
    files = [file for path in paths for file in read_configs(path)]  # so that a wrong one is named first
    models = {file.settings["model"] for file in files if "model" in file.settings}
    if asked.model is None and len(models) != 1:
        raise ScenarioError("--ds-config needs --model: a catalog name, a local path or a hub id")
    model = placed(asked.model or models.pop())
    # A length in any of the files stands against one for all.
    seq_length = asked.seq_length
    if seq_length is None and not any("seq_length" in file.settings for file in files):
        seq_length = longest([model])
    matrix = {
        "model": model,
        "strategy": [{"config": str(path)} for path in paths],
        "world_size": numbers("--gpus", asked.gpus),
        "seq_length": seq_length,
        "train_micro_batch_size_per_gpu": asked.micro_batch,
        "gradient_accumulation_steps": asked.gas,
        "dtype": asked.dtype,
        "activation_checkpointing": asked.activation_checkpointing or None,
        "mode": "emulated",
    }
    emulation = {"gpu": asked.gpu, "gpu_memory_gib": asked.gpu_memory_gib, "gpus_per_node": asked.gpus_per_node}
    content = {
        "matrix": given(matrix),
        "emulation": given(emulation),
    }
    scenario = parse_scenario(content, "zerostage plan --ds-config")
    return plan(scenario, Resources(device="cpu", slots=0, memory_bytes=0, shared=True, deepspeed=deepspeed))


def verdict(entry: PlannedCell) -> tuple[str, float | None, float | None]:
    """Return whether a cell fits in words, and the bytes of the peak on its device and on the host of a node."""
    target = entry.cell.emulation
    assert target is not None
    if entry.refused:
        return ": ".join(entry.refused), None, None
    if entry.params is None:
        return "no formula for this cell: zerostage emulate", None, None
    device = device_peak_bytes(entry.cell, entry.config, entry.params)
    host = host_peak_bytes(entry.cell, entry.config, entry.params)
    if device is None:
        return "no formula for this cell: zerostage emulate", None, None
    used = device / target.gpu_memory_bytes
    words = "fits" if used <= _SURE else "does not fit" if used > 1 else "close: zerostage emulate --strategy FILE"
    ranks = min(target.gpus_per_node, entry.cell.world_size)
    return f"{words} ({used:.0%})", device, None if host is None else host * ranks


def _gib(value: float | None) -> str:
    return "-" if value is None else f"{value / 2**30:,.1f}"


def show_fit(paths: list[Path], asked: Asked, deepspeed: str, console: Console) -> None:
    """Print the verdict on every configuration, then how each came to be what it is.

    Raises:
        ScenarioError: a file or an option is wrong.
    """
    planned = _planned(paths, asked, deepspeed)
    target = planned[0].cell.emulation
    assert target is not None
    if not planned[0].params:
        raise ScenarioError(f"{planned[0].cell.model}: no formula counts its parameters; use zerostage emulate")
    table = Table(
        title=f"{planned[0].cell.model_name} ({planned[0].params.total / 1e6:,.1f}M parameters) on GPUs of "
        f"{target.gpu_memory_bytes / 2**30:g} GiB, by formula",
        caption="peak: on each GPU, of allocated bytes in a step of AdamW; host: of all ranks of a node together",
    )
    columns = ("configuration", "stage", "GPUs", "micro batch", "GAS", "seq", "peak GiB", "host GiB", "verdict")
    for name in columns:
        table.add_column(name, justify="right" if name in columns[2:-1] else "left", overflow="fold")
    for entry in planned:
        cell = entry.cell
        words, device, host = verdict(entry)
        table.add_row(
            cell.strategy_name,
            cell.strategy,
            str(cell.world_size),
            str(cell.train_micro_batch_size_per_gpu),
            str(cell.gradient_accumulation_steps),
            f"{cell.seq_length:,}",
            _gib(device),
            _gib(host) if host else "-",
            words,
        )
    console.print(table)
    console.print(
        f"A configuration fits where the formula stays within {_SURE:.0%} of the memory: it leaves out the allocator's "
        "reserve, the CUDA context and NCCL, and can be some percent low. zerostage emulate has the peak from "
        "DeepSpeed's own code.",
        highlight=False,
    )
    show_notes(planned, console)


def show_notes(planned: list[PlannedCell], console: Console) -> None:
    """Print how configuration files became what they are, each sentence once, with the files that it is about."""
    said: dict[str, list[str]] = {}
    for entry in planned:
        for note in entry.notes:
            names = said.setdefault(note, [])
            if entry.cell.strategy_name not in names:
                names.append(entry.cell.strategy_name)
    everywhere = {entry.cell.strategy_name for entry in planned if entry.notes}
    for note, names in said.items():
        where = "all" if set(names) == everywhere and len(everywhere) > 1 else ", ".join(names)
        console.print(f"note: {note} [{where}]", highlight=False, markup=False)
