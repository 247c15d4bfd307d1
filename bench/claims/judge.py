# ruff: noqa: RUF001  (Chinese has punctuation of its own)
"""Records -> a verdict on every claim."""

from collections.abc import Sequence

from bench.claims import order, pair, published, separate, speed, states, whole
from bench.claims.claim import Claim, Found, text
from bench.claims.verdict import Evidence, Text, Verdict, Word
from bench.claims.words import PROVENANCE
from bench.record import Record

CLAIMS: tuple[Claim, ...] = (
    *states.CLAIMS,
    *whole.CLAIMS,
    *order.CLAIMS,
    *states.STAGE_1,
    *pair.CLAIMS,
    *speed.CLAIMS,
)


def verdicts(records: Sequence[Record]) -> list[Verdict]:
    """Return the verdict that ``records`` amount to on every claim, in the order of the article."""
    return [_judged(claim, claim.look(records)) for claim in CLAIMS]


def _judged(claim: Claim, found: Found) -> Verdict:
    leaves = separate.separated(found.evidence) if _word(found.evidence) == "depends-on" else None
    word = _word(found.evidence)
    variable = _variable(leaves) if word == "depends-on" else None
    said = published.sentences(claim.published, claim.published_stages)
    return Verdict(
        id=claim.id,
        word=word,
        claim=claim.statement,
        because=_because(claim, word, found, leaves),
        variable=variable["en"] if variable else None,
        variable_zh=variable["zh"] if variable else None,
        evidence=found.evidence,
        published=[each["en"] for each in said],
        published_zh=[each["zh"] for each in said],
        kind=claim.kind,
    )


def _word(evidence: Sequence[Evidence]) -> Word:
    kinds = {row.supports for row in evidence}
    if not kinds:
        return "not-yet-measured"
    return "depends-on" if len(kinds) == 2 else "confirmed" if True in kinds else "refuted"


def _variable(leaves: list[separate.Leaf] | None) -> Text:
    if leaves is None:
        return text("none of the settings that rows record", "行中记录的任何设置都无法区分")
    return text(separate.variable(leaves, "en"), separate.variable(leaves, "zh"))


def _counted(evidence: Sequence[Evidence]) -> Text:
    kinds = {kind: sum(row.provenance == kind for row in evidence) for kind in ("measured", "emulated")}
    stacks = sorted({row.stack.removeprefix("deepspeed ") for row in evidence})
    shown = {
        "en": " and ".join(f"{count} {kind}" for kind, count in kinds.items() if count),
        "zh": "、".join(f"{count} 行{PROVENANCE[kind]['zh']}" for kind, count in kinds.items() if count),
    }
    return text(
        f"{shown['en']} (DeepSpeed {', '.join(stacks)})",
        f"{shown['zh']}（DeepSpeed {'、'.join(stacks)}）",
    )


def _because(claim: Claim, word: Word, found: Found, leaves: list[separate.Leaf] | None) -> Text:
    if word == "not-yet-measured":
        main = text(f"No row says; it takes {claim.needs['en']}.", f"没有相应的行；需要{claim.needs['zh']}。")
    else:
        main = _of_rows(found.evidence, leaves)
    return text(
        " ".join([main["en"], *(each["en"] for each in found.also)]),
        "".join([main["zh"], *(each["zh"] for each in found.also)]),
    )


def _of_rows(evidence: Sequence[Evidence], leaves: list[separate.Leaf] | None) -> Text:
    support = [row for row in evidence if row.supports]
    against = [row for row in evidence if not row.supports]
    counted = _counted(evidence)
    en = f"{len(support)} of {len(evidence)} rows support it: {counted['en']}."
    zh = f"{len(evidence)} 行中有 {len(support)} 行支持：{counted['zh']}。"
    if leaves is not None:
        en += f" It holds with {separate.where(leaves, True, 'en')}; not with {separate.where(leaves, False, 'en')}."
        zh += f"成立条件：{separate.where(leaves, True, 'zh')}；不成立条件：{separate.where(leaves, False, 'zh')}。"
    for rows, what in ((support, ("For", "支持")), (against, ("Against", "反对"))):
        if rows:
            one = min(rows, key=lambda row: row.provenance != "measured")
            en += f" {what[0]}: {one.label}, {one.stack}: {one.says}."
            zh += f"{what[1]}：{one.label}，{one.stack}：{one.says_zh}。"
    return text(en, zh)
