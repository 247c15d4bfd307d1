"""Verdicts as text: Markdown, JSON, and the parts that a terminal's tables are made of."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.analysis.tables import as_cells
from bench.claims import words
from bench.claims.verdict import Text, Verdict


@dataclass(frozen=True)
class Line:
    """Rows that say the same, under the same releases: ``rows`` are their labels."""

    supports: bool
    rows: list[str]
    stacks: list[str]
    provenance: str
    validity: str
    says: str


def lines(verdict: Verdict, language: str) -> list[Line]:
    """Return the evidence, rows of one kind that say the same in one line; those that support the claim first."""
    alike: dict[tuple[bool, str, str, str], dict[str, list[str]]] = {}
    for row in verdict.evidence:
        says = row.says if language == "en" else row.says_zh
        stacks = alike.setdefault((not row.supports, row.provenance, row.validity, says), {})
        stacks.setdefault(row.label, []).append(row.stack)
    found = []
    for (against, provenance, validity, says), by_label in sorted(alike.items(), key=lambda item: item[0][0]):
        where = words.PROVENANCE.get(provenance, {}).get(language, provenance)
        together: dict[tuple[str, ...], list[str]] = {}
        for label, releases in by_label.items():
            together.setdefault(tuple(releases), []).append(label)
        found += [
            Line(not against, labels, list(stacks), where, _validity(validity, language), says)
            for stacks, labels in together.items()
        ]
    return found


def _validity(validity: str, language: str) -> str:
    """Return the word in ``language``, with the checks that a suspect row names behind it."""
    word, _, checks = validity.partition(" ")
    return " ".join(filter(None, (words.VALIDITY.get(word, {}).get(language, word), checks)))


def variable(verdict: Verdict, language: str) -> str:
    """Return what a depending verdict depends on; nothing for the others."""
    return (verdict.variable if language == "en" else verdict.variable_zh) or ""


def published(verdict: Verdict, language: str) -> list[str]:
    """Return the published sentences."""
    return verdict.published if language == "en" else verdict.published_zh


def as_json(verdicts: Sequence[Verdict], rule: Sequence[Text]) -> str:
    """Return everything, both languages, as JSON."""
    data: dict[str, Any] = {"verdicts": [asdict(verdict) for verdict in verdicts], "rule": list(rule)}
    return json.dumps(data, indent=1, ensure_ascii=False)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(header)} |",
        "|" + "---|" * len(header),
        *(f"| {' | '.join(as_cells(row))} |" for row in rows),
    ]


def markdown(verdicts: Sequence[Verdict], rule: Sequence[Text], language: str, level: int = 2) -> str:
    """Return table, claims with the rows behind them, and the rule; ``level`` is that of the headings."""
    marks, titles = "#" * level, words.TITLES[language]
    parts = [f"{marks} {titles['table']}", "", words.EVIDENCE[language], ""]
    parts += [f"- **{words.WORDS[word][language]}**: {words.DEFINITIONS[word][language]}." for word in words.WORDS]
    id_, claim, word, depends, _ = words.HEADER[language]
    short = [[f"`{v.id}`", v.claim[language], words.WORDS[v.word][language], variable(v, language)] for v in verdicts]
    parts += ["", *_table((id_, claim, word, depends), short), ""]
    for verdict in verdicts:
        parts += _claim(verdict, language, marks)
    parts += [f"{marks} {titles['rule']}", ""]
    parts += [f"{number}. {sentence[language]}" for number, sentence in enumerate(rule, start=1)]
    return "\n".join(parts) + "\n"


def _claim(verdict: Verdict, language: str, marks: str) -> list[str]:
    titles = words.TITLES[language]
    parts = [f"{marks}# `{verdict.id}`: {words.WORDS[verdict.word][language]}", "", verdict.claim[language], ""]
    parts += [verdict.because[language], ""]
    found = lines(verdict, language)
    if found:
        counted = f"{len(verdict.evidence)} rows" if language == "en" else f"{len(verdict.evidence)} 行"
        rows = [
            [
                words.FOR[language][line.supports],
                ", ".join(f"`{row}`" for row in line.rows),
                ", ".join(line.stacks),
                line.provenance,
                line.validity,
                line.says,
            ]
            for line in found
        ]
        parts += [
            f"<details><summary>{counted}</summary>",
            "",
            *_table(words.ROWS[language], rows),
            "",
            "</details>",
            "",
        ]
    if said := published(verdict, language):
        parts += [f"{titles['published'].capitalize()}:", "", *(f"- {sentence}" for sentence in said), ""]
    return parts
