"""Which cells are emulated, which rank of them, and on what hardware."""

from typing import Any

from bench.cell import EmulatedRank
from bench.hardware import memory_gib
from bench.scenario import Emulation, Mode

_MOST_RANKS = 1_000_000


def is_emulated(mode: Mode, settings: dict[str, Any], slots: int) -> bool:
    """Whether a cell of these settings is emulated where there are ``slots`` GPUs, or CPU slots."""
    beyond = settings["world_size"] > slots or settings["num_nodes"] > 1
    return mode == "emulated" or (mode == "auto" and beyond)


def emulated(asked: Emulation, settings: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return the settings that a cell has because it is emulated; the reason is set when they cannot hold."""
    world_size = settings["world_size"]
    names = {"first": 0, "middle": world_size // 2, "last": world_size - 1}
    rank = asked.rank if isinstance(asked.rank, int) else names[asked.rank]
    gib = asked.gpu_memory_gib or memory_gib(asked.gpu) or 0.0
    num_nodes = -(-world_size // asked.gpus_per_node)
    reason = None
    if world_size > _MOST_RANKS:
        reason = f"world_size {world_size} is above the {_MOST_RANKS:,} that are emulated"
    elif rank >= world_size:
        reason = f"emulation.rank {rank}: the last of world_size {world_size} is {world_size - 1}"
    elif settings["num_nodes"] not in (1, num_nodes):
        per_node = asked.gpus_per_node
        reason = f"num_nodes {settings['num_nodes']}: emulation.gpus_per_node {per_node} makes it {num_nodes}"
    target = EmulatedRank(
        rank=rank,
        position=str(asked.rank) if isinstance(asked.rank, str) else f"rank {rank}" if rank else "first",
        gpus_per_node=asked.gpus_per_node,
        gpu_memory_bytes=int(gib * 2**30),
        accelerator_path=asked.accelerator_path,
    )
    return {"num_nodes": num_nodes, "emulation": target}, reason
