# ruff: noqa: RUF001  (Chinese has punctuation of its own)
"""docs/claims.md: the verdicts on the committed rows, English first, then Chinese. Its prose is in document.yaml."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import yaml

from bench.analysis.footers import multi_gpu
from bench.claims import render
from bench.claims.judge import verdicts
from bench.claims.rows import release
from bench.claims.rule import selection
from bench.claims.show import read
from bench.claims.words import PROVENANCE
from bench.record import Record

COMMAND = "python -m bench.claims > docs/claims.md"
REFERENCE = Path(__file__).parents[2] / "results" / "reference" / "claims"


def document(records: Sequence[Record]) -> str:
    """Return the page for ``records``."""
    prose = yaml.safe_load((Path(__file__).parent / "document.yaml").read_text(encoding="utf-8"))
    found, rule = verdicts(records), selection(records)
    parts = ["# Claims about ZeRO stages / 关于 ZeRO 各阶段的说法\n", "[English](#english) | [中文](#中文)\n"]
    for language, heading in (("en", "English"), ("zh", "中文")):
        said = prose[language]
        commands = said["commands"].format(command=COMMAND, rows=len(records))
        parts += [f"## {heading}\n", f"**{said['title']}**\n", said["intro"], commands]
        parts += [f"{_made_of(records, language)}\n", said["notes"]]
        parts.append(render.markdown(found, rule, language, level=3))
    return "\n".join(parts)


def _made_of(records: Sequence[Record], language: str) -> str:
    between = ", " if language == "en" else "、"
    kinds = Counter(record.provenance for record in records)
    counted = between.join(f"{count} {PROVENANCE[kind][language]}" for kind, count in sorted(kinds.items()))
    invalid = sum(record.validity == "invalid" for record in records)
    models = between.join(sorted({record.cell.model_name for record in records}))
    sizes = between.join(map(str, sorted({record.cell.world_size for record in records})))
    releases = between.join(sorted({release(record) for record in records} - {""}))
    on_gpus = any(multi_gpu(r.provenance, r.device, r.cell.world_size, r.status) for r in records)
    if language == "en":
        none = "" if on_gpus else " No row is of two or more real GPUs."
        return (
            f"Rows: {counted}, {invalid} of them invalid and no evidence; models: {models}; GPUs (ranks): {sizes}; "
            f"DeepSpeed {releases}.{none}"
        )
    none = "" if on_gpus else "没有来自两块及以上真实 GPU 的行。"
    return (
        f"数据行：{counted}，其中 {invalid} 行无效、不作为证据；模型：{models}；GPU（rank）数：{sizes}；"
        f"DeepSpeed {releases}。{none}"
    )


def written() -> str:
    """Return the page for the committed rows.

    Raises:
        StoreError: they are not there, or cannot be read.
    """
    return document(read([REFERENCE]))
