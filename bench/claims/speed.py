# ruff: noqa: RUF001  (Chinese has punctuation of its own)
"""Claims on which stage to choose: held against times on two or more GPUs, three launches at least.

A stage is faster than another where each of its launches is faster than each of the other's: steps of one launch are
not independent, launches are. Else the two are not separated, and the group is no evidence.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from bench.analysis.answer import LAUNCHES
from bench.claims.claim import Claim, Found, text
from bench.claims.fits import lowest_that_fits
from bench.claims.rows import STAGES, alike, counted_rows, doubts, evidence, release, requested, stage
from bench.claims.verdict import Evidence, Text
from bench.plan import MISFIT
from bench.record import Record


@dataclass(frozen=True)
class Group:
    """Rows that differ in the stage alone: ``times`` are the step times of each launch in seconds, by stage.

    ``rows`` holds one row of each stage that was timed; ``no_room`` the stages that ran out of memory.
    """

    times: dict[str, list[float]]
    rows: dict[str, Record]
    no_room: frozenset[str]

    def separated(self, fast: str, slow: str) -> bool:
        """Whether every launch of ``fast`` was faster than every launch of ``slow``."""
        return max(self.times[fast]) < min(self.times[slow])

    def fastest(self) -> list[str]:
        """Return the stage of the smallest step time, and those that are not separated from it."""
        first = min(self.times, key=lambda name: sorted(self.times[name])[len(self.times[name]) // 2])
        return [first, *(name for name in self.times if name != first and not self.separated(first, name))]

    def shown(self, language: str) -> str:
        """Return the median step time of each stage."""
        parts = [f"{n} {sorted(each)[len(each) // 2] * 1e3:,.0f} ms" for n, each in sorted(self.times.items())]
        without = ", ".join(sorted(self.no_room))
        parts += [f"no room for {without}" if language == "en" else f"放不下：{without}"] if without else []
        return ", ".join(parts)


def groups(records: Sequence[Record]) -> list[Group]:
    """Return the groups in which every one of the stages 0 to 3 was timed in three launches, or had no room.

    Launches are of one group if they ran on one kind of GPU, under one release of DeepSpeed and of PyTorch. A row
    without room does not say on which, so it counts where its settings were timed in one place alone.
    """
    timed: defaultdict[tuple[str, ...], list[Record]] = defaultdict(list)
    failed: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.device != "cuda" or record.cell.world_size == 1 or record.provenance != "measured":
            continue
        if stage(record) and record.status == "completed":
            place = record.device_name or "", release(record), record.stack.get("torch", "")
            timed[requested(record), *place].append(record)
        elif stage(record) and _had_no_room(record):
            failed[requested(record)].append(record)
    places = Counter(asked for asked, *_ in timed)
    apart = [rows + (failed[asked] if places[asked] == 1 else []) for (asked, *_), rows in timed.items()]
    return [group for rows in apart if (group := _group(rows)) is not None]


def _had_no_room(record: Record) -> bool:
    return record.status == "oom" or (record.status == "skipped" and (record.reason or "").startswith(MISFIT))


def _group(rows: list[Record]) -> Group | None:
    times: defaultdict[str, list[float]] = defaultdict(list)
    shown: dict[str, Record] = {}
    no_room = set()
    for row in rows:
        at = row.cell.strategy
        if any(not alike(row, other) for other in shown.values()):
            continue
        timing = row.timing
        usable = row.validity != "invalid" and not doubts(row)
        if row.status == "completed" and usable and timing is not None and not timing.suspect_reasons:
            times[at].append(timing.step_time_s)
            shown.setdefault(at, row)
        elif row.status != "completed":
            no_room.add(at)
    enough = {at: each for at, each in times.items() if len(each) >= LAUNCHES}
    if not enough or enough.keys() | no_room != set(STAGES):
        return None
    return Group(enough, {at: shown[at] for at in enough}, frozenset(no_room - enough.keys()))


def _fits_rule(records: Sequence[Record]) -> Found:
    """0 or 2 where one of them fits, else 3."""
    found, open_ = [], 0
    for group in groups(records):
        wanted = {"z0", "z2"} & group.times.keys() or {"z3"}
        best = set(group.fastest())
        if best & wanted and best - wanted:
            open_ += 1
            continue
        found.append(_choice(group, best <= wanted))
    return Found(found, _not_separated(open_) + lowest_that_fits(counted_rows(records)))


def _just_use_3(records: Sequence[Record]) -> Found:
    """Stage 3 where stage 0 has no room."""
    found, open_ = [], 0
    for group in groups(records):
        if "z0" not in group.no_room or "z3" not in group.times:
            continue
        best = group.fastest()
        if "z3" in best and len(best) > 1:
            open_ += 1
            continue
        found.append(_choice(group, best == ["z3"]))
    return Found(found, _not_separated(open_))


def _choice(group: Group, supports: bool) -> Evidence:
    best = group.fastest()
    row = group.rows[best[0]]
    en, zh = group.shown("en"), group.shown("zh")
    says = text(f"fastest {' and '.join(best)}: {en}", f"最快的是 {'、'.join(best)}：{zh}")
    return evidence(row, supports, says, [other for at, other in group.rows.items() if at != best[0]])


def _not_separated(count: int) -> list[Text]:
    if not count:
        return []
    return [
        text(
            f"In {count} more groups the launches of the fastest stages overlap: not separated, no evidence.",
            f"另有 {count} 组中最快的几个阶段各次启动的时间相互重叠：无法区分，不作为证据。",
        )
    ]


_NEEDS = text(
    "times of stages 0 to 3 that differ in nothing else, on 2 or more real GPUs, in 3 or more launches (repeat: 3)",
    "在 2 块及以上真实 GPU 上、除阶段外设置相同的阶段 0 至 3 的耗时，且各启动 3 次及以上（repeat: 3）",
)
CLAIMS = (
    Claim(
        "fits-rule",
        "speed",
        text(
            "Of stages 0 to 3 the fastest that fits is 0 or 2 wherever one of these fits, and 3 where neither does.",
            "在阶段 0 至 3 中，只要 0 或 2 放得下，最快的就是其中之一；都放不下时则是 3。",
        ),
        _NEEDS,
        _fits_rule,
        ("throughput",),
    ),
    Claim(
        "just-use-3",
        "speed",
        text(
            "For a model too large for stage 0, stage 3 is the fastest stage that fits.",
            "对阶段 0 放不下的模型，阶段 3 是放得下的阶段中最快的。",
        ),
        _NEEDS,
        _just_use_3,
        ("throughput",),
        ("ZeRO-3",),
    ),
)
