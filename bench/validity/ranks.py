"""Do the ranks, taken together, tell one consistent story?"""

from typing import Any

from bench.cell import Cell
from bench.record import Finding


def check(cell: Cell, result: dict[str, Any]) -> list[Finding]:
    """Return what shows that a rank is missing, counted twice, or did something else than its peers."""
    ranks = result["ranks"]
    found = []
    numbers, processes = [rank["rank"] for rank in ranks], {(rank["node"], rank["pid"]) for rank in ranks}
    if numbers != list(range(cell.world_size)) or len(processes) != cell.world_size:
        text = (
            f"{cell.world_size} ranks were asked for, results came from ranks {numbers} in {len(processes)} processes"
        )
        found.append(Finding(check="ranks", verdict="invalid", text=text))
    traffic = [sum(event["num_bytes"] * event["count"] for event in rank["collectives"]) for rank in ranks]
    if len(set(traffic)) > 1:
        text = f"the ranks moved different bytes in the counted step: {', '.join(f'{n:,}' for n in traffic)}"
        found.append(Finding(check="ranks", verdict="suspect", text=text))
    fed = {tokens for rank in ranks for tokens in rank["tokens_per_step"]}
    asked = cell.train_micro_batch_size_per_gpu * cell.gradient_accumulation_steps * cell.seq_length
    steps = {len(rank["tokens_per_step"]) for rank in ranks} | {len(rank["step_times_s"]) for rank in ranks}
    if fed != {asked} or steps != {cell.steps}:
        text = (
            f"{cell.steps} timed steps of {asked} tokens per rank were asked for, there were {sorted(steps)} of "
            f"{sorted(fed)}"
        )
        found.append(Finding(check="ranks", verdict="invalid", text=text))
    prints = {tuple(rank["fingerprint"]) for rank in ranks if rank["fingerprint"] is not None}
    if len(prints) > 1:
        text = "the ranks end with different parameters, though each holds the whole model"
        found.append(Finding(check="ranks", verdict="invalid", text=text))
    taken = {rank["optimizer_steps"] for rank in ranks}
    applied = cell.total_steps - result["skipped_steps"]
    if taken != {applied}:
        text = f"{cell.total_steps} optimizer steps were driven, the optimizer's own count says {sorted(taken)}"
        found.append(Finding(check="applied steps", verdict="invalid", text=text))
    return found


def clock(cell: Cell, result: dict[str, Any]) -> list[str]:
    """Return why the clock around the steps is not to be trusted; the second clock waits for the device by itself."""
    missed = [
        1 - sum(rank["step_times_s"]) / rank["witness_s"] if rank["witness_s"] else 0.0 for rank in result["ranks"]
    ]
    # A busy machine may stop one rank between the two clocks, hardly all of them at every step.
    if min(missed) <= 0.25:
        return []
    return [f"the clock around the steps misses {min(missed):.0%} of their time on every rank"]
