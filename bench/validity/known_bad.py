"""Releases whose results are known to be wrong: a row that matches one is marked, whatever its parity says.

The table is known_bad.yaml; docs/metrics.md shows it (``python -m bench.validity.known_bad`` prints it).
"""

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from bench.cell import Cell
from bench.record import Finding, Record, verdict
from bench.zero.defaults import SWITCHES
from bench.zero.stages import STRATEGIES, ZERO_KEYS_ANY_STAGE, ZERO_KEYS_STAGE_3

CHECK = "known-bad release"
_CELL = ("strategy", "dtype", "world_size", "num_nodes", "gradient_accumulation_steps", "activation_checkpointing")
_EFFECTIVE = ("optimizer_wrapper", "offload_optimizer", "zero_hpz_partition_size", "backend")
_ZERO = ZERO_KEYS_ANY_STAGE | ZERO_KEYS_STAGE_3
FACTS = frozenset({*_CELL, *_EFFECTIVE, *_ZERO, "gradient_clipping"})


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(str(error)) from None
    return text


def _known_facts(when: dict[str, Any]) -> dict[str, Any]:
    if unknown := when.keys() - FACTS:
        raise ValueError(f"unknown facts {sorted(unknown)}; known: {sorted(FACTS)}")
    return when


Specifier = Annotated[str, AfterValidator(_specifier)]
Source = Annotated[str, StringConstraints(pattern=r"^[\w.-]+/[\w.-]+#[0-9]+$")]


class Above(_Model):
    """A condition on a number: strictly larger."""

    above: int


class Entry(_Model):
    """One fault of one range of releases. ``sources`` are GitHub issues or pull requests, ``owner/repo#number``."""

    id: Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]+$")]
    package: str = "deepspeed"
    versions: Specifier
    also: dict[str, Specifier] = {}
    as_reported: bool = False
    when: Annotated[dict[str, list[bool | int | str] | Above], AfterValidator(_known_facts)]
    wrong: str
    verdict: Literal["invalid", "suspect", "note"]
    affects: Literal["figures", "training"]
    sources: Annotated[list[Source], Field(min_length=1)]

    @property
    def urls(self) -> list[str]:
        """The sources as addresses; GitHub leads from an issue's to a pull request's."""
        return [f"https://github.com/{name}/issues/{number}" for name, number in (s.split("#") for s in self.sources)]


@cache
def table() -> tuple[Entry, ...]:
    """Return known_bad.yaml, checked.

    Raises:
        pydantic.ValidationError: an entry is not of the form above.
    """
    rows = yaml.safe_load((Path(__file__).parent / "known_bad.yaml").read_text(encoding="utf-8"))
    return tuple(Entry.model_validate(row) for row in rows)


def _default(key: str, strategy: str) -> bool | None:
    """Return DeepSpeed's default of the switch ``key``; ``None`` for what is no switch."""
    if key == "overlap_comm":
        return STRATEGIES[strategy].zero_stage == 3
    return SWITCHES.get(key)


def facts(cell: Cell, effective: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of a row by the names that conditions use; a name that is not known is left out.

    What the engine runs (``effective``) comes before what was asked, and that before DeepSpeed's defaults.
    """
    known = {name: getattr(cell, name) for name in _CELL} | {"gradient_clipping": cell.optimizer.gradient_clipping}
    for name in (*_EFFECTIVE, *_ZERO):
        value = effective.get(name, cell.zero_optimization.get(name))
        value = _default(name, cell.strategy) if value is None else value
        if value is not None:
            known[name] = value
    return known


def _holds(condition: list[bool | int | str] | Above, known: dict[str, Any], name: str) -> bool:
    if name not in known:
        return False
    if isinstance(condition, Above):
        return bool(known[name] > condition.above)
    # True == 1 in Python: a switch must not match a number.
    return any(known[name] == value and isinstance(known[name], bool) == isinstance(value, bool) for value in condition)


def _runs(stack: dict[str, str], specifiers: dict[str, str]) -> bool:
    try:
        return all(
            package in stack and SpecifierSet(text).contains(Version(stack[package]), prereleases=True)
            for package, text in specifiers.items()
        )
    except InvalidVersion:
        return False


def matching(stack: dict[str, str], cell: Cell, effective: dict[str, Any]) -> list[Entry]:
    """Return the entries that hold for a row of ``stack`` (package -> version)."""
    known = facts(cell, effective)
    return [
        entry
        for entry in table()
        if _runs(stack, {entry.package: entry.versions, **entry.also})
        and all(_holds(condition, known, name) for name, condition in entry.when.items())
    ]


def known_bad(stack: dict[str, str], cell: Cell, effective: dict[str, Any]) -> list[Finding]:
    """Return a finding for each fault that is known of these releases under these settings."""
    return [
        Finding(check=CHECK, verdict=entry.verdict, text=_sentence(entry, stack), affects=entry.affects)
        for entry in matching(stack, cell, effective)
    ]


def judged_again(record: Record) -> Record:
    """Return a stored row with what has become known of its release since it was measured."""
    if record.status != "completed" or record.comm is None:
        return record
    said = {finding.text for finding in record.findings}
    facts_then = record.effective | {"backend": record.comm.backend}
    new = [finding for finding in known_bad(record.stack, record.cell, facts_then) if finding.text not in said]
    findings = record.findings + new
    return record.model_copy(update={"findings": findings, "validity": verdict(findings)}) if new else record


def _sentence(entry: Entry, stack: dict[str, str]) -> str:
    where = f"{entry.package} {stack[entry.package]}"
    return f"{where}: {entry.wrong} [{entry.id}: {entry.sources[0]}, versions {entry.versions}]"


def markdown() -> str:
    """Return the table of docs/metrics.md."""
    lines = ["| id | releases | when | what is wrong | verdict | sources |", "|---|---|---|---|---|---|"]
    for entry in table():
        releases = ", ".join(
            f"{package} {text}" for package, text in {entry.package: entry.versions, **entry.also}.items()
        )
        releases += " (as reported)" if entry.as_reported else ""
        when = ", ".join(
            f"{name} > {wanted.above}" if isinstance(wanted, Above) else f"{name} {'/'.join(map(str, wanted))}"
            for name, wanted in entry.when.items()
        )
        links = ", ".join(f"[{name}]({url})" for name, url in zip(entry.sources, entry.urls, strict=True))
        lines.append(
            f"| {entry.id} | {releases} | {when} | {entry.wrong} | {entry.verdict}, {entry.affects} | {links} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
