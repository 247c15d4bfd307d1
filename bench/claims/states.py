# ruff: noqa: RUF001  (Chinese has punctuation of its own)
"""Claims on what a stage shards: held against what the ranks of a row really hold."""

from collections.abc import Callable, Sequence

from bench.claims.claim import Claim, Found, text
from bench.claims.held import WORDS, held, listed, share, shared_states
from bench.claims.rows import beside, evidence, held_rows, name, near, refused, requested, stage
from bench.claims.verdict import Evidence, Text
from bench.record import Record

_OWN = {"shared": text("its own part", "仅自己的一份"), "whole": text("the whole", "全部")}


def _holds(record: Record, state: str) -> Text | None:
    part, how = share(record, state), held(record, state)
    if part is None or how is None:
        return None
    wrapper = record.effective.get("optimizer_wrapper")
    under = {"en": f", under {wrapper}", "zh": f"，优化器封装为 {wrapper}"} if wrapper else {"en": "", "zh": ""}
    n = record.cell.world_size
    return text(
        f"a rank of {n} holds {part:.0%} of the {WORDS[state]['en']}, {_OWN[how]['en']}{under['en']}",
        f"{n} 个 rank 中每个持有 {part:.0%} 的{WORDS[state]['zh']}，即{_OWN[how]['zh']}{under['zh']}",
    )


def _one_state(wanted_stage: str, state: str, wanted: str) -> Callable[[Sequence[Record]], Found]:
    """Look whether rows of a stage hold ``state`` as ``wanted`` says, ``whole`` or ``shared``."""

    def look(records: Sequence[Record]) -> Found:
        found = []
        for record in held_rows(records):
            says = _holds(record, state) if stage(record) == wanted_stage else None
            if says is not None:
                found.append(evidence(record, held(record, state) == wanted, says))
        return Found(found)

    return look


def _gradients_with_states(records: Sequence[Record]) -> Found:
    """Gradients that are part of the optimizer states are shared wherever these are, also below stage 2."""
    found = []
    for record in held_rows(records):
        gradients = held(record, "gradients")
        below_2 = stage(record) in ("z0", "z1")
        if not below_2 or held(record, "optimizer states") != "shared" or gradients is None:
            continue
        part = {state: share(record, state) or 0.0 for state in ("optimizer states", "gradients")}
        says = text(
            f"a rank of {record.cell.world_size} holds {part['optimizer states']:.0%} of the optimizer states and "
            f"{part['gradients']:.0%} of the gradients, in bytes of {record.cell.dtype}",
            f"{record.cell.world_size} 个 rank 中每个持有 {part['optimizer states']:.0%} 的优化器状态、"
            f"{part['gradients']:.0%} 的梯度（按 {record.cell.dtype} 的字节计）",
        )
        found.append(evidence(record, gradients == "shared", says))
    return Found(found)


def _difference(higher: str, lower: str, added: frozenset[str]) -> Callable[[Sequence[Record]], Found]:
    """Look whether a stage shards what a lower one does and ``added``, and nothing else."""

    def look(records: Sequence[Record]) -> Found:
        rows = held_rows(records)
        found, below = [], near(rows)
        for record in rows:
            other = beside(record, below, lower) if stage(record) == higher else None
            here, there = shared_states(record), shared_states(other) if other else None
            if other is None or here is None or there is None:
                continue
            says = text(
                f"{higher} shards {listed(here, 'en')}; {lower}: {listed(there, 'en')}",
                f"{higher} 切分：{listed(here, 'zh')}；{lower} 切分：{listed(there, 'zh')}",
            )
            found.append(evidence(record, here - there == added and there <= here, says, [other]))
        return Found(found)

    return look


def _shards_only(wanted_stage: str, states: frozenset[str]) -> Callable[[Sequence[Record]], Found]:
    """Look whether all that rows of a stage shard is ``states``."""

    def look(records: Sequence[Record]) -> Found:
        found = []
        for record in held_rows(records):
            here = shared_states(record) if stage(record) == wanted_stage else None
            if here is not None:
                says = text(
                    f"{wanted_stage} shards {listed(here, 'en')}; whole: {listed(frozenset(WORDS) - here, 'en')}",
                    f"{wanted_stage} 切分：{listed(here, 'zh')}；完整：{listed(frozenset(WORDS) - here, 'zh')}",
                )
                found.append(evidence(record, here == states, says))
        return Found(found)

    return look


def _no_stage_1(records: Sequence[Record]) -> Found:
    """Asked for stage 1, DeepSpeed would refuse, run another stage, or shard nothing."""
    found: list[Evidence] = []
    rows = held_rows(records)
    above = near(rows)
    for record in refused(records, "z1"):
        # What refuses every stage is no word on this one.
        others = [other for other in rows if stage(other) and requested(other) == requested(record)]
        if others:
            reason = record.reason or ""
            found.append(evidence(record, True, text(f"refused: {reason}", f"被拒绝：{reason}"), others))
    for record in rows:
        runs = record.effective.get("zero_stage")
        if stage(record) != "z1" or runs is None:
            continue
        others = [other for wanted in ("z2", "z3") if (other := beside(record, above, wanted))]
        same = [name(o) for o in others if (own := shared_states(o)) is not None and own == shared_states(record)]
        shards = shared_states(record)
        what = ("", "") if shards is None else (f", shards {listed(shards, 'en')}", f"，切分：{listed(shards, 'zh')}")
        if same:
            what = (what[0] + f", as {', '.join(same)}", what[1] + f"，与 {'、'.join(same)} 相同")
        elif shards is not None and others:
            what = (what[0] + ", unlike the stages above it", what[1] + "，与同设置的更高阶段不同")
        says = text(f"the engine runs stage {runs}{what[0]}", f"引擎运行的是阶段 {runs}{what[1]}")
        found.append(evidence(record, runs != 1 or bool(same) or shards == frozenset(), says, others))
    return Found(found)


_TWO_RANKS = text(
    "completed rows of {} on 2 or more ranks, measured or emulated", "2 个及以上 rank 的 {} 行（实测或模拟），且已完成"
)
_ACCUMULATING = text(
    "completed rows of {} on 2 or more ranks with gradient accumulation, measured or emulated",
    "2 个及以上 rank、使用梯度累积的 {} 行（实测或模拟），且已完成",
)


def _needs(form: Text, en: str, zh: str) -> Text:
    return text(form["en"].format(en), form["zh"].format(zh))


CLAIMS = (
    Claim(
        "stage0-shards-optimizer",
        "states",
        text(
            "Asked for stage 0, each rank keeps only its own part of the optimizer states.",
            "设为阶段 0 时，每个 rank 只保存自己那一份优化器状态。",
        ),
        _needs(_TWO_RANKS, "z0", "z0"),
        _one_state("z0", "optimizer states", "shared"),
    ),
    Claim(
        "stage0-full-params",
        "states",
        text("At stage 0 every rank keeps all parameters.", "阶段 0 下，每个 rank 都保存全部参数。"),
        _needs(_TWO_RANKS, "z0", "z0"),
        _one_state("z0", "parameters", "whole"),
    ),
    Claim(
        "stage2-full-params",
        "states",
        text("At stage 2 every rank keeps all parameters.", "阶段 2 下，每个 rank 都保存全部参数。"),
        _needs(_TWO_RANKS, "z2", "z2"),
        _one_state("z2", "parameters", "whole"),
    ),
    Claim(
        "optimizer-states-include-gradients",
        "states",
        text(
            "Gradients count among the optimizer states: below stage 2 too, where these are shared out, gradients are.",
            "梯度属于优化器状态：即使在阶段 2 以下，只要优化器状态被切分，梯度也被切分。",
        ),
        _needs(_ACCUMULATING, "z0 or z1 that share optimizer states out", "会切分优化器状态的 z0 或 z1"),
        _gradients_with_states,
    ),
    Claim(
        "stage2-adds-gradients",
        "states",
        text(
            "What stage 2 shards beyond stage 0 is the gradients and nothing else.",
            "与阶段 0 相比，阶段 2 多切分的只有梯度。",
        ),
        _needs(_ACCUMULATING, "z0 and z2, alike in all else", "z0 与 z2（其余设置相同）"),
        _difference("z2", "z0", frozenset({"gradients"})),
    ),
    Claim(
        "stage3-adds-parameters",
        "states",
        text(
            "What stage 3 shards beyond stage 2 is the parameters and nothing else.",
            "与阶段 2 相比，阶段 3 多切分的只有参数。",
        ),
        _needs(_ACCUMULATING, "z2 and z3, alike in all else", "z2 与 z3（其余设置相同）"),
        _difference("z3", "z2", frozenset({"parameters"})),
    ),
)
STAGE_1 = (
    Claim(
        "no-stage1",
        "states",
        text(
            "There is no stage 1: asked for it, DeepSpeed refuses, shards nothing, or does what a higher stage does.",
            "不存在阶段 1：若设为 1，DeepSpeed 会拒绝、不切分任何状态，或与更高阶段的做法相同。",
        ),
        _needs(_TWO_RANKS, "z1", "z1"),
        _no_stage_1,
    ),
    Claim(
        "stage1-is-gradients-only",
        "states",
        text(
            "Stage 1 shards the gradients and nothing else.",
            "阶段 1 只切分梯度。",
        ),
        _needs(_ACCUMULATING, "z1", "z1"),
        _shards_only("z1", frozenset({"gradients"})),
    ),
)
