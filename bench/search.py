"""The row of a cell whose micro batch is the largest that fits: the launches that find it, and the launch of the row.

The first size is what the formulas of bench.zero.memory propose; where they have no answer, what emulation of the first
rank finds for a measured cell, else 1. Then up or down until one size fits and the next does not. The launches of a
measured cell have a timed pass of one step; its row is one more launch, whole, and compared with a reference like any
other. The row of an emulated cell is that of the size found.

RUN/searches/<job>/ keeps what each launch found until the row is there, so a search that was interrupted goes on.
"""

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.cell import BatchLimits, EmulatedRank
from bench.errors import StoreError
from bench.job import Job
from bench.largest import DECIDES, judged, largest, predicted, size_text, with_size
from bench.outcome import does_not_fit
from bench.plan import PlannedCell, Resources
from bench.record import BatchTry, Record, parse_record
from bench.store import write_json
from bench.zero.stages import STRATEGIES


class _UndecidedError(Exception):
    """A launch ended in a way that says nothing of its size."""

    def __init__(self, record: Record) -> None:
        super().__init__(record.reason)
        self.record = record


@dataclass
class Search:
    """One search. ``launch`` measures a job; ``refer`` makes the reference that a cell will be compared with."""

    job: Job
    run: Path
    offer: Resources
    launch: Callable[[Job], Record]
    refer: Callable[[PlannedCell], None]
    say: Callable[[str], None]
    tries: list[BatchTry] = field(default_factory=list)
    made: dict[int, Record] = field(default_factory=dict)

    @property
    def limits(self) -> BatchLimits:
        """Return what the cell asks for."""
        asked = self.job.planned.cell.largest_batch
        assert asked is not None
        return asked

    def row(self, earlier: Record | None = None) -> Record:
        """Return the row. ``earlier``: that of an earlier repeat, whose size is launched again instead of a search."""
        try:
            if earlier is not None:
                return self._again(earlier)
            if self.job.planned.cell.emulation is not None:
                size = largest(self._fits, self.limits.at_most, self._proposed())[0]
                return self._finished(self._named(self.made[size])) if size else self._none_fits()
            return self._measured()
        except _UndecidedError as undecided:
            found = self._named(undecided.record)
            reason = f"micro batch {found.cell.train_micro_batch_size_per_gpu}: {found.reason}"
            return self._finished(found.model_copy(update={"reason": reason}))

    def _measured(self) -> Record:
        start = self._proposed()
        while True:
            size = largest(self._fits, self.limits.at_most, start)[0]
            if size == 0:
                return self._none_fits()
            row = self._whole(size)
            if self._judge(row).fits:
                return self._finished(row)
            start = size - 1 or 1  # with its timed pass it does not fit after all

    def _again(self, earlier: Record) -> Record:
        size = earlier.cell.train_micro_batch_size_per_gpu
        self.tries += [each.model_copy(update={"wall_time_s": 0.0}) for each in earlier.batch_search]  # not spent here
        row = self._whole(size)
        made = self._judge(row)
        if made.fits:
            return self._finished(row)
        reason = f"micro batch {size}, which an earlier launch found, does not fit in this one: {made.reason}"
        return self._finished(does_not_fit(with_size(self.job.planned, size), row, reason))

    def _none_fits(self) -> Record:
        smallest = next(each for each in reversed(self.tries) if each.train_micro_batch_size_per_gpu == 1)
        where = f"{smallest.phase}: " if smallest.phase else ""
        reason = f"micro batch 1 does not fit: {where}{smallest.reason}"
        return self._finished(does_not_fit(self.job.planned, self._named(self.made[1]), reason))

    def _whole(self, size: int) -> Record:
        """Launch the cell at ``size`` as its row will be, with a reference."""
        planned = with_size(self.job.planned, size)
        self.refer(planned)
        record = self.launch(Job(planned, self.job.repeat))
        if record.status not in DECIDES:
            raise _UndecidedError(record)
        return record

    def _fits(self, size: int) -> bool:
        if size in self.made:  # of a search that began anew
            return judged(self.made[size], self.limits.memory_bytes).fits and not self._failed(size)
        short = {} if self.job.planned.cell.emulation is not None else {"warmup_steps": 1, "steps": 1}
        record = self._try(with_size(self.job.planned, size, **short), f"-mbs{size}")
        if record.status not in DECIDES:
            raise _UndecidedError(record)
        return self._judge(record).fits

    def _failed(self, size: int) -> bool:
        return any(each.train_micro_batch_size_per_gpu == size and not each.fits for each in self.tries)

    def _judge(self, record: Record) -> BatchTry:
        made = judged(record, self.limits.memory_bytes)
        self.tries.append(made)
        self.made.setdefault(made.train_micro_batch_size_per_gpu, record)
        self.say(f"  {self._sentence(made)}")
        return made

    def _sentence(self, made: BatchTry) -> str:
        held = f"{size_text(made.peak_bytes)}, " if made.peak_bytes is not None else ""
        verdict = "fits" if made.fits else f"does not fit: {made.reason}"
        return f"micro batch {made.train_micro_batch_size_per_gpu}, {made.how}: {held}{verdict}"

    def _try(self, planned: PlannedCell, part: str) -> Record:
        """Launch one size, or read what an interrupted search found."""
        path = self._folder / f"{part.removeprefix('-')}.json"
        with contextlib.suppress(OSError, StoreError):
            return parse_record(path.read_text(encoding="utf-8"), str(path))
        record = self.launch(Job(planned, self.job.repeat, part))
        if record.status in DECIDES:
            write_json(path, record.model_dump(mode="json"))
        return record

    @property
    def _folder(self) -> Path:
        return self.run / "searches" / self.job.name

    def _proposed(self) -> int:
        """Return the size to begin with: predicted, else emulated, else 1."""
        planned, limits = self.job.planned, self.limits
        emulated = planned.cell.emulation
        budget = limits.memory_bytes or (emulated.gpu_memory_bytes if emulated else self.offer.memory_bytes)
        looked: dict[int, BatchTry] = {}

        def predicts(size: int) -> bool:
            made = predicted(planned, budget, size)
            assert made is not None
            looked[size] = made
            return made.fits

        if predicted(planned, budget, 1) is not None:
            size = largest(predicts, limits.at_most)[0]
            # A formula costs nothing: what it says of the border is enough.
            self.tries += [looked[each] for each in (size, size + 1) if each in looked]
            return size or 1
        if emulated is not None or STRATEGIES[planned.cell.strategy].zero_stage is None:
            return 1
        # A real launch on CPU has no caching allocator, so the modelled one must not be what refuses.
        on_cpu = self.offer.device == "cpu"
        target = EmulatedRank(
            gpus_per_node=planned.cell.world_size // planned.cell.num_nodes,
            gpu_memory_bytes=self.offer.memory_bytes if on_cpu else budget,
            accelerator_path="cpu" if on_cpu else "cuda-like",
        )

        def emulates(size: int) -> bool:
            record = self._try(with_size(planned, size, emulation=target), f"-mbs{size}-emulated")
            if record.status not in DECIDES:
                raise _UndecidedError(record)
            # As the launches will be: exact bytes on CPU, on CUDA what the allocator holds.
            made = judged(record, budget if on_cpu else None)
            self.tries.append(made)
            self.say(f"  {self._sentence(made)}")
            return made.fits

        try:
            return largest(emulates, limits.at_most)[0] or 1
        except _UndecidedError:
            return 1

    def _named(self, record: Record) -> Record:
        """Return the record of a try as the row's: its log and trace get the row's name."""
        name = self.job.name
        assert record.launch is not None
        tried = Path(record.launch.log).stem
        for folder, suffix in (("logs", ".log"), ("logs", ".result.json"), ("traces", ".json.gz")):
            if (path := self.run / folder / f"{tried}{suffix}").exists():
                path.replace(self.run / folder / f"{name}{suffix}")
        changes = {"launch": record.launch.model_copy(update={"log": f"logs/{name}.log"})}
        if record.emulation is None:
            return record.model_copy(update=changes)
        trace = record.emulation.model_copy(update={"trace": f"traces/{name}.json.gz"})
        return record.model_copy(update=changes | {"emulation": trace})

    def _finished(self, record: Record) -> Record:
        return record.model_copy(update={"label": self.job.planned.label, "batch_search": self.tries})

    def forget(self) -> None:
        """Remove what only the search needed; its row is on disk."""
        shutil.rmtree(self._folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._folder.parent.rmdir()
        for folder in ("logs", "traces"):
            for path in (self.run / folder).glob(f"{self.job.name}-mbs*"):
                path.unlink()
