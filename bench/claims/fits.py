# ruff: noqa: RUF001  (Chinese has punctuation of its own)
"""Which stages find room, as far as emulated rows say: the memory half of every rule for choosing one."""

from collections import defaultdict
from collections.abc import Sequence

from bench.claims.claim import text
from bench.claims.rows import STAGES, groups
from bench.claims.verdict import Text
from bench.record import Record


def lowest_that_fits(rows: Sequence[Record]) -> list[Text]:
    """Return the lowest stage that fits into the emulated GPU's memory, per batch, model and number of GPUs."""
    found: defaultdict[tuple[int, int, int], defaultdict[str, dict[tuple[int, int], str]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for group in groups(row for row in rows if row.emulation is not None):
        plain = {row.cell.strategy: row for row in group if row.cell.strategy_name in STAGES}
        if plain.keys() != set(STAGES) or (target := plain["z0"].cell.emulation) is None:
            continue
        fit = [s for s in STAGES if (emulation := plain[s].emulation) is not None and emulation.fits]
        cell = plain["z0"].cell
        batch = target.gpu_memory_bytes, cell.train_micro_batch_size_per_gpu, cell.seq_length
        at = cell.world_size, cell.gradient_accumulation_steps
        found[batch][cell.model_name][at] = fit[0] if fit else "-"
    return [
        text(
            f"The lowest stage that fits into {memory / 2**30:g} GiB (emulated, micro batch {micro}, seq {length}): "
            + "; ".join(f"{model}: {_lowest(models[model], 'en')}" for model in sorted(models))
            + ".",
            f"{memory / 2**30:g} GiB 中放得下的最低阶段（模拟，微批 {micro}，序列长度 {length}）："
            + "；".join(f"{model}：{_lowest(models[model], 'zh')}" for model in sorted(models))
            + "。",
        )
        for (memory, micro, length), models in sorted(found.items())
    ]


def _lowest(found: dict[tuple[int, int], str], language: str) -> str:
    """List the lowest stages with the numbers of GPUs; accumulation only where it makes a difference."""
    at: defaultdict[str, list[str]] = defaultdict(list)
    for size in sorted({size for size, _ in found}):
        by_steps = {steps: low for (n, steps), low in sorted(found.items()) if n == size}
        if len(set(by_steps.values())) == 1:
            at[next(iter(by_steps.values()))].append(f"N={size}")
        else:
            for steps, low in by_steps.items():
                at[low].append(f"N={size} GAS {steps}")
    return ", ".join(f"{_named(low, language)} ({', '.join(sizes)})" for low, sizes in at.items())


def _named(low: str, language: str) -> str:
    if low == "-":
        return "none" if language == "en" else "无"
    return f"stage {low[1:]}" if language == "en" else f"阶段 {low[1:]}"
