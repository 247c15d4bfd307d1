"""Which records are evidence, which of them may be compared, and the settings by which they differ."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from bench.claims.verdict import Evidence, Text
from bench.record import Finding, Record
from bench.zero.defaults import SIZES
from bench.zero.stages import zero_keys

STAGES = ("z0", "z1", "z2", "z3")
# Findings that say that something else ran than the stage's definition: for a claim on what a stage holds that is the
# subject, not a doubt.
_SUBJECT = {"known-bad release", "sharding"}
_LIMITS = ("stage3_max_live_parameters", "stage3_max_reuse_distance")


def doubts(record: Record) -> list[Finding]:
    """Return the findings that doubt the row's figures."""
    return [found for found in record.findings if found.verdict == "suspect" and found.affects == "figures"]


def held_rows(records: Iterable[Record]) -> list[Record]:
    """Return the rows that say what a rank holds: one per cell and stack, completed, not invalid, not in doubt."""
    return _first(row for row in records if {found.check for found in doubts(row)} <= _SUBJECT)


def counted_rows(records: Iterable[Record]) -> list[Record]:
    """Return the rows whose bytes can be relied on, one per cell and stack."""
    return _first(row for row in records if not doubts(row))


def _first(records: Iterable[Record]) -> list[Record]:
    found: dict[tuple[str, str | None], Record] = {}
    for record in records:
        if record.status == "completed" and record.validity != "invalid" and record.cell.world_size > 1:
            found.setdefault((record.cell_id, record.requested_stack), record)
    return list(found.values())


def stage(record: Record) -> str | None:
    """Return ``z0`` to ``z3`` where all that a stage shards is on the device, ``None`` for every other strategy."""
    cell = record.cell
    return cell.strategy if cell.strategy in STAGES and not cell.on_host and not cell.deepspeed else None


def settings(record: Record) -> str:
    """Return what rows must share to be compared: everything but strategy and keys of ``zero_optimization``."""
    apart = {"strategy", "name", "zero_optimization", "deepspeed"}
    return "|".join([record.cell.model_dump_json(exclude=apart), release(record), record.device])


def alike(one: Record, other: Record) -> bool:
    """Whether the keys that matter to both stages have the same values."""
    shared = zero_keys(one.cell.strategy) & zero_keys(other.cell.strategy)
    here, there = one.cell.zero_optimization, other.cell.zero_optimization
    return all(here.get(key) == there.get(key) for key in shared)


def beside(record: Record, rows: Sequence[Record], wanted: str) -> Record | None:
    """Return the row of stage ``wanted`` that differs from ``record`` in nothing else; plain before variants."""
    same = [row for row in rows if stage(row) == wanted and settings(row) == settings(record) and alike(row, record)]
    return min(same, key=lambda row: row.cell.strategy_name != wanted, default=None)


def groups(rows: Iterable[Record]) -> list[list[Record]]:
    """Return the rows by what they share."""
    found: defaultdict[str, list[Record]] = defaultdict(list)
    for row in rows:
        found[settings(row)].append(row)
    return list(found.values())


def release(record: Record) -> str:
    """Return the release of DeepSpeed that ran."""
    return record.stack.get("deepspeed", "")


def over_limits(record: Record) -> float | None:
    """Parameters of the model over the elements that stage 3 lets stay; ``None`` where that is not known."""
    runs = record.effective | record.cell.zero_optimization
    limit = min(int(runs.get(key, SIZES[key])) for key in _LIMITS)
    return None if record.num_params is None else record.num_params / max(limit, 1)


def facts(record: Record) -> dict[str, Any]:
    """Return the settings by which rows can be told apart (bench.claims.separate has their names)."""
    cell = record.cell
    return {
        "deepspeed": release(record),
        "dtype": cell.dtype,
        "gradient_accumulation_steps": cell.gradient_accumulation_steps,
        "world_size": cell.world_size,
        "num_params": record.num_params,
        "over_limits": over_limits(record),
        "wire_model": record.comm.wire_model if record.comm else None,
    }


def name(record: Record) -> str:
    """Return the row's label, with the release where one was asked for."""
    return record.label.removesuffix(f"/{record.requested_stack}")


def evidence(record: Record, supports: bool, says: Text, others: Sequence[Record] = ()) -> Evidence:
    """Return ``record`` as evidence; a suspect row says what is doubted."""
    validity: str = record.validity
    if validity == "suspect":
        checks = dict.fromkeys(f"{f.check}, {f.affects}" for f in record.findings if f.verdict == "suspect")
        validity = f"suspect ({'; '.join(checks)})"
    return Evidence(
        label=name(record),
        cell_id=record.cell_id,
        repeat=record.repeat,
        stack=f"deepspeed {release(record)}",
        provenance=record.provenance,
        validity=validity,
        supports=supports,
        says=says["en"],
        says_zh=says["zh"],
        others=[other.cell_id for other in others],
        facts=facts(record),
    )
