"""Rows that may share an axis: equal in every setting but strategy, GPU count and stack, as in the tables."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from bench.analysis.comparison import in_order
from bench.analysis.frame import CONTROLS, frame
from bench.analysis.titles import plain as plain_lines
from bench.analysis.titles import title
from bench.largest import size_text
from bench.record import Record
from bench.stacks import INSTALLED

_LONGEST = 40
# Rows at their largest batch are never drawn beside rows of one global batch (bench.analysis.largest).
_LARGEST = [
    *(name for name in CONTROLS if name != "train_micro_batch_size_per_gpu"),
    "gradient_accumulation_steps",
    "batch_budget_bytes",
    "batch_at_most",
]


def _printable(text: str) -> str:
    return "".join(sign if sign.isprintable() else "�" for sign in text)


def plain(text: str) -> str:
    """Return a name from outside as one short line of printable signs."""
    shown = _printable(text)
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"


def doubtful(record: Record, *, timed: bool = False) -> bool:
    """Return whether the record's figures, with ``timed`` its times too, are not to be relied on."""
    return record.figures_suspect or (timed and record.timing is not None and bool(record.timing.suspect_reasons))


@dataclass(frozen=True)
class Entry:
    """One cell under one stack. ``good`` are the launches whose numbers may be shown, ``bad`` the others."""

    name: str
    strategy: str
    stack: str | None
    world_size: int
    good: tuple[Record, ...]
    bad: tuple[Record, ...]

    @property
    def words(self) -> str:
        """What became of the launches without numbers: ``oom``, ``invalid``."""
        return "/".join(dict.fromkeys("invalid" if bad.status == "completed" else bad.status for bad in self.bad))

    def middle(self, value: Callable[[Record], float | None]) -> Record | None:
        """Return the launch of median ``value`` (of an even number, the lower one); ``None`` where none has it."""
        having = [(number, record) for record in self.good if (number := value(record)) is not None]
        return sorted(having, key=lambda pair: pair[0])[(len(having) - 1) // 2][1] if having else None


@dataclass(frozen=True)
class Group:
    """``name``: the model and what tells the group from the run's others; ``settings``: all that its rows share."""

    name: str
    settings: str
    entries: list[Entry]
    largest: bool
    same_global_batch: bool

    @property
    def first(self) -> Record:
        """Any of its records, for they are alike in what they run on; one with numbers knows its device best."""
        good = [record for entry in self.entries for record in entry.good]
        return (good or [record for entry in self.entries for record in entry.bad])[0]

    @property
    def emulated(self) -> bool:
        """Whether no GPU and no rank ran."""
        return self.first.cell.emulation is not None

    @property
    def per(self) -> str:
        """What has memory of its own: a GPU, or on a machine without one a rank."""
        return "rank" if self.first.device == "cpu" else "GPU"

    @cached_property
    def counts(self) -> list[int]:
        """GPU counts, rising."""
        return sorted({entry.world_size for entry in self.entries})

    def at(self, world_size: int) -> list[Entry]:
        """The entries of one GPU count, in the order of the strategies."""
        return [entry for entry in self.entries if entry.world_size == world_size]


def _batch_key(rows: pd.DataFrame) -> str:
    """Return what stays equal across GPU counts: of the two the one that splits the rows into fewer groups."""
    fixed, accumulated = (
        rows.groupby([*CONTROLS, name], dropna=False).ngroups
        for name in ("train_batch_size", "gradient_accumulation_steps")
    )
    return "train_batch_size" if fixed < accumulated else "gradient_accumulation_steps"


def _words(name: str, value: Any) -> str:
    """Return one setting in the few words that tell a group from another."""
    if name == "activation_checkpointing":
        return {"none": "no checkpointing", "non-reentrant": "checkpointing"}.get(value, f"{value} checkpointing")
    if value is None or value != value:  # pandas has NaN for what is not there
        return ""
    if name == "finetuning":
        return {"full": "all trained", "lora": "LoRA", "freeze": "partly frozen"}[value]
    if name == "lora":
        return f"rank {json.loads(value)['r']}"
    if name == "freeze":
        return f"all frozen but {', '.join(json.loads(value)['trainable'])}"
    if name == "batch_budget_bytes":
        return f"budget {size_text(int(value))}"
    patterns = {
        "train_micro_batch_size_per_gpu": "micro batch {}",
        "seq_length": "seq {}",
        "attn_implementation": "{} attention",
        "data": "{} data",
        "gradient_accumulation_steps": "GAS {}",
        "train_batch_size": "global batch {}",
        "batch_at_most": "at most {}",
        "placement": "{}" if value != "1 nodes" else "1 node",
    }
    return patterns.get(name, "{}").format(value)


def _told(values: dict[str, Any]) -> dict[str, str]:
    """Return the words of all settings; where a row is emulated, how stands in place of where."""
    words = {name: _words(name, value) for name, value in values.items() if name != "model"}
    words["device"] = words["emulation"] or f"measured on {words['device']}"
    if words.pop("emulation"):
        words["placement"] = ""  # it is in the words before
    return words


def _entries(records: Sequence[Record], largest: bool) -> list[Entry]:
    """Return one entry per cell and stack: by GPU count, then strategy, then stack."""
    launches: dict[tuple[int, str, str, str], list[Record]] = {}
    for record in records:
        cell, stack = record.cell, record.requested_stack or INSTALLED
        launches.setdefault((cell.world_size, cell.strategy_name, stack, record.cell_id), []).append(record)
    strategies = in_order(strategy for _, strategy, *_ in launches)
    stacks = list(dict.fromkeys(stack for _, _, stack, _ in launches))
    stacked = any(record.requested_stack for record in records)
    found: list[Entry] = []
    for n, strategy, stack, cell_id in sorted(
        launches, key=lambda key: (key[0], strategies.index(key[1]), stacks.index(key[2]))
    ):
        own = launches[n, strategy, stack, cell_id]
        good = tuple(record for record in own if record.presentable)
        name = plain(strategy) + (f" {plain(stack)}" if stacked else "")
        if largest and good:
            name += f", micro batch {good[0].cell.train_micro_batch_size_per_gpu}"
        if any(entry.name == name and entry.world_size == n for entry in found):
            name += f" ({cell_id})"
        bad = tuple(record for record in own if not record.presentable)
        found.append(Entry(name, strategy, stack if stacked else None, n, good, bad))
    return found


def groups(records: Sequence[Record]) -> list[Group]:
    """Return the groups of a run in the order in which their settings first appear; largest batches come last."""
    if not records:
        return []
    data = frame(records)
    same, searched = data[~data["largest_batch"]], data[data["largest_batch"]]
    key = _batch_key(same) if len(same) else ""
    split = []
    for keys, rows in (([*CONTROLS, key], same), (_LARGEST, searched)):
        if len(rows):
            split += [
                (dict(zip(keys, values, strict=True)), part)
                for values, part in rows.groupby(keys, sort=False, dropna=False)
            ]
    words = [_told(values) for values, _ in split]
    emulated = {values["emulation"] for values, _ in split if values["emulation"]}
    if len(emulated) == 1:
        words = [told | {"device": "emulated"} if told["device"] in emulated else told for told in words]
    seen = {name: {each[name] for each in words if each.get(name)} for told in words for name in told}
    found: list[Group] = []
    for (values, part), told in zip(split, words, strict=True):
        largest = bool(part["largest_batch"].iloc[0])
        telling = [text for name, text in told.items() if text and len(seen[name]) > 1]
        telling += ["largest batch that fits"] if largest else []
        name = ", ".join([plain(str(values["model"])), *telling])
        name = _unlike(name, [group.name for group in found])
        entries = _entries([records[place] for place in part.index], largest)
        found.append(Group(name, _printable(title(plain_lines(part))), entries, largest, key == "train_batch_size"))
    return found


def _unlike(name: str, taken: list[str]) -> str:
    return name if name not in taken else f"{name} ({sum(other.startswith(name) for other in taken) + 1})"


def stem(kind: str, name: str, taken: set[str]) -> str:
    """Return a file stem for a plot of ``name`` that none has yet."""
    short = re.sub(r"[^a-z0-9]+", "-", f"{kind} {name}".lower()).strip("-")[:60].rstrip("-")
    number, found = 1, short
    while found in taken:
        number += 1
        found = f"{short}-{number}"
    taken.add(found)
    return found
