# ruff: noqa: RUF001  (Chinese has punctuation of its own)
"""The rule for choosing a stage that the rows support: each sentence stands only where there are rows for it."""

from collections.abc import Callable, Iterable, Sequence

from bench.claims.claim import text
from bench.claims.fits import lowest_that_fits
from bench.claims.order import SAME, less, peak, sent
from bench.claims.rows import beside, counted_rows, evidence, near, stage
from bench.claims.separate import separated, where
from bench.claims.speed import groups as timed_groups
from bench.claims.verdict import Text
from bench.record import Record

Ratios = list[tuple[Record, float, float]]


def selection(records: Sequence[Record]) -> list[Text]:
    """Return the rule, a sentence at a time, in the order in which a person goes through it."""
    rows = counted_rows(records)
    return [
        *_fitting(rows),
        *_first_saving(rows),
        *_gradients(rows),
        *_parameters(rows),
        *_fastest(records),
    ]


def _ratios(rows: Sequence[Record], high: str, low: str) -> Ratios:
    """Return rows of stage ``high`` with their peak and traffic over those of the row of stage ``low`` beside them."""
    found: Ratios = []
    others = near(rows)
    for row in rows:
        other = beside(row, others, low) if stage(row) == high else None
        if other is None:
            continue
        memory, traffic = (peak(row), peak(other)), (sent(row), sent(other))
        if memory[0] and memory[1] and traffic[0] and traffic[1]:
            found.append((row, memory[0] / memory[1], traffic[0] / traffic[1]))
    return found


def _span(values: Iterable[float], language: str) -> str:
    listed = sorted(values)
    low, high = f"{listed[0]:.2f}", f"{listed[-1]:.2f}"
    return low if low == high else f"{low} to {high}" if language == "en" else f"{low} 至 {high}"


def _fitting(rows: Sequence[Record]) -> list[Text]:
    found = lowest_that_fits(rows)
    if not found:
        return []
    en, zh = " ".join(each["en"] for each in found), "".join(each["zh"] for each in found)
    return [text(f"First see what fits. {en}", f"先看放得下什么。{zh}")]


def _first_saving(rows: Sequence[Record]) -> list[Text]:
    """Stage 1 beside stage 0."""
    found = _ratios(rows, "z1", "z0")
    if not found:
        return []
    lower = sum(less(memory, 1.0) for _, memory, _ in found)
    spans = _spans(found)
    advice = ("If stage 0 does not fit, try stage 1 next: it", "若阶段 0 放不下，接着试阶段 1：它")
    if 2 * lower <= len(found):
        advice = ("Stage 1", "阶段 1 ")
    return [
        text(
            f"{advice[0]} held less than stage 0 in {lower} of {len(found)} comparisons ({spans['en'][0]} times its "
            f"peak) and sent {spans['en'][1]} times as much.",
            f"{advice[1]}在 {len(found)} 组比较中有 {lower} 组占用少于阶段 0（峰值为其 {spans['zh'][0]} 倍），"
            f"发送量为 {spans['zh'][1]} 倍。",
        )
    ]


def _spans(found: Ratios) -> dict[str, tuple[str, str]]:
    """Return the spans of memory and traffic ratios, by language."""
    return {
        language: (_span([m for _, m, _ in found], language), _span([t for *_, t in found], language))
        for language in ("en", "zh")
    }


def _gradients(rows: Sequence[Record]) -> list[Text]:
    """Stage 2 beside stage 1, without accumulation and with it."""
    sentences = []
    found = _ratios(rows, "z2", "z1")
    for steps in sorted({each[0].cell.gradient_accumulation_steps for each in found}):
        here = [each for each in found if each[0].cell.gradient_accumulation_steps == steps]
        spans = _spans(here)
        advice = ("", "")
        if all(traffic > 1 + SAME for *_, traffic in here):
            advice = (": take it for its memory alone", "：只为省内存才用它")
        elif all(traffic <= 1 + SAME for *_, traffic in here):
            advice = (": it costs no traffic", "：它不增加通信量")
        sentences.append(
            text(
                f"At GAS {steps} stage 2 sent {spans['en'][1]} times as much as stage 1 and held {spans['en'][0]} "
                f"times its peak{advice[0]}.",
                f"GAS 为 {steps} 时，阶段 2 的发送量为阶段 1 的 {spans['zh'][1]} 倍，峰值为其 {spans['zh'][0]} 倍"
                f"{advice[1]}。",
            )
        )
    return sentences


def _parameters(rows: Sequence[Record]) -> list[Text]:
    """Stage 3 against stage 2: where it holds less, and where it sends less."""
    found = _ratios(rows, "z3", "z2")
    sentences = []
    for index, en, zh in (
        (1, "Stage 3 held less than stage 2", "阶段 3 占用少于阶段 2"),
        (2, "Stage 3 sent less than stage 2", "阶段 3 发送量少于阶段 2"),
    ):
        if found:
            sentences.append(_against_2(found, lambda each, index=index: each[index], en, zh))  # type: ignore[misc]
    return sentences


def _against_2(found: Ratios, figure: Callable[[tuple[Record, float, float]], float], en: str, zh: str) -> Text:
    lower = [each for each in found if less(figure(each), 1.0)]
    rows = [evidence(each[0], less(figure(each), 1.0), text("", "")) for each in found]
    leaves = separated(rows) if 0 < len(lower) < len(found) else None
    spans = {language: _span([figure(each) for each in found], language) for language in ("en", "zh")}
    said = text(
        f"{en} in {len(lower)} of {len(found)} comparisons ({spans['en']} times)",
        f"{len(found)} 组比较中有 {len(lower)} 组里{zh}（{spans['zh']} 倍）",
    )
    if leaves is None:
        return text(said["en"] + ".", said["zh"] + "。")
    return text(
        f"{said['en']}: with {where(leaves, True, 'en')}; not with {where(leaves, False, 'en')}.",
        f"{said['zh']}：条件为 {where(leaves, True, 'zh')}；不成立于 {where(leaves, False, 'zh')}。",
    )


def _fastest(records: Sequence[Record]) -> list[Text]:
    """What times on GPUs say, or that there are none."""
    timed = timed_groups(records)
    if not timed:
        return [
            text(
                "Which of the stages that fit is fastest is not measured: no rows have times of stages 0 to 3 on two "
                "or more GPUs in three launches each. Time those that fit, and take the fastest.",
                "放得下的阶段中哪个最快尚未测得：还没有阶段 0 至 3 在两块及以上 GPU 上各启动三次的耗时。"
                "请对放得下的阶段计时，取最快者。",
            )
        ]
    sentences = []
    for group in timed:
        best = group.fastest()
        label = group.rows[best[0]].label
        sentences.append(
            text(
                f"Fastest beside {label}: {' and '.join(best)} ({group.shown('en')}).",
                f"与 {label} 同组中最快：{'、'.join(best)}（{group.shown('zh')}）。",
            )
        )
    return sentences
