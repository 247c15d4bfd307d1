"""Is the model state sharded as the stage says? Judged by the elements that each rank really holds."""

from typing import Any

from bench.cell import Cell
from bench.record import Finding
from bench.zero.stages import STRATEGIES

_CHECK = "sharding"
# Flat partitions are padded to a multiple of 2 N elements, stage 3's shards parameter by parameter to a multiple of N
# (deepspeed 0.19.8, runtime/zero). This much and no more may come on top of total/N.
_PADDING = 0.02


def _expected(cell: Cell, num_params: int, trained: int) -> dict[str, int]:
    """Return the elements of the whole model's states, as all ranks together must hold them at least once."""
    # Two moments; and a master copy wherever the parameters are not what the optimizer updates.
    copies = 3 if cell.dtype != "fp32" or (STRATEGIES[cell.strategy].zero_stage or 0) >= 1 else 2
    return {"parameters": num_params, "gradients": trained, "optimizer_states": copies * trained}


def check(cell: Cell, result: dict[str, Any]) -> list[Finding]:
    """Return what is not sharded though the stage says so, and what is though it does not."""
    strategy, n = STRATEGIES[cell.strategy], cell.world_size
    trained = result.get("effective", {}).get("num_trainable_params", result["num_params"])
    found = []
    for name, total in _expected(cell, result["num_params"], trained).items():
        slack = _PADDING + 4 * n * result["num_tensors"] / (total if name == "parameters" else trained)
        held = [rank["shards"][name] for rank in result["ranks"] if rank["shards"][name] is not None]
        if not held:
            continue
        sharded = name.replace("_", " ") in strategy.shards
        words = name.replace("_", " ")
        share = f"{max(held):,} of {total:,} elements on one rank of {n}"
        if sharded and n > 1 and max(held) > total / n * (1 + slack):
            text = f"{strategy.name} shards {words}, but they are not sharded: {share}"
            found.append(Finding(check=_CHECK, verdict="invalid", text=text))
        elif sharded and len(held) == n and sum(held) < total:
            text = f"{words} are missing: all ranks together hold {sum(held):,} of {total:,} elements"
            found.append(Finding(check=_CHECK, verdict="invalid", text=text))
        # Stage 1 too drops the gradients that it does not own, once they are reduced.
        elif not sharded and name != "gradients" and min(held) < total:
            text = f"{strategy.name} does not shard {words}, but they are sharded: {share}"
            found.append(Finding(check=_CHECK, verdict="suspect", text=text))
    return found
