"""What a person sees while the matrix runs: a live line with the time left, and one line per finished cell."""

import contextlib
import time
from collections.abc import Callable, Iterator
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column

from bench.record import Record

_STYLES = {"completed": "green", "oom": "yellow", "host_oom": "yellow", "unsupported": "yellow"}


def duration(seconds: float) -> str:
    """Return seconds as a person says them: ``42 s``, ``3 min 05 s``, ``2 h 10 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def summary(record: Record) -> str:
    """Return one finished cell in one line."""
    if record.memory is None or record.comm is None:
        return f"{record.status}: {record.reason}"
    verdict = "completed" if record.validity == "valid" else f"completed, {record.validity}"
    timed = ""
    if record.timing is not None and record.throughput is not None:
        rate = record.throughput.tokens_per_second_per_gpu
        timed = f"{record.timing.step_time_s * 1e3:.0f} ms/step  {rate:,.0f} tokens/s/GPU  "
    return (
        f"{verdict}  {timed}peak {record.memory.peak_allocated_bytes / 2**20:,.1f} MiB  "
        f"sent {(record.comm.comm_wire_bytes_per_step or 0) / 2**20:,.2f} MiB/step"
    )


@contextlib.contextmanager
def spinner(console: Console, what: Callable[[], str]) -> Iterator[Callable[[], None]]:
    """Show on a terminal that ``what`` goes on; yields what to call, often, to show how far it is."""
    started = time.monotonic()
    with console.status(what()) as status:
        yield lambda: status.update(f"{what()}, {duration(time.monotonic() - started)}")


class MatrixProgress:
    """A context manager. ``expected_s`` holds the estimate of every launch, in order (bench.estimate).

    ``starts_s``: how long agents take to start before it. ``known``: whether the estimate is its last run, no guess.
    """

    def __init__(
        self,
        console: Console,
        expected_s: list[float],
        *,
        starts_s: list[float] | None = None,
        known: list[bool] | None = None,
    ) -> None:
        self.console = console
        self.expected_s = expected_s
        self.starts_s = [0.0] * len(expected_s) if starts_s is None else starts_s
        self.known = [True] * len(expected_s) if known is None else known
        # None for a launch that says nothing of the others: one that crashed at once, or hung.
        self.spent_s: list[float | None] = []
        self.label = ""  # of the launch under way
        self.started = time.monotonic()
        self.bar = Progress(
            MofNCompleteColumn(),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[left]}", markup=False),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("", total=len(expected_s), left="")

    def __enter__(self) -> "MatrixProgress":
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def _pace(self, known: bool) -> float:
        """Return how much of what was expected the completed launches took whose estimates are of that kind.

        A last run is off by the machine's load alone, a guess by far more: one kind tells nothing of the other.
        """
        done = zip(self.spent_s, self.expected_s, self.known, strict=False)
        seen = [(spent, expected) for spent, expected, kind in done if spent is not None and kind == known]
        expected_s = sum(expected for _, expected in seen)
        return sum(spent for spent, _ in seen) / expected_s if expected_s else 1.0

    def left_s(self) -> float:
        """Return the expected seconds until the last launch ends; 0 when that one takes longer than expected."""
        done = len(self.spent_s)
        if done == len(self.expected_s):
            return 0.0
        pace = {kind: self._pace(kind) for kind in (True, False)}
        launches = list(zip(self.starts_s, self.expected_s, self.known, strict=True))[done:]
        phases = [phase_s for start_s, own_s, kind in launches for phase_s in (start_s, pace[kind] * own_s)]
        now_s, *later_s = phases[1:] if self.label else phases
        # A launch that overruns takes its time from no other.
        return max(0.0, now_s - (time.monotonic() - self.started)) + sum(later_s)

    def say(self, text: str) -> None:
        """Print a line above the live one."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def begin(self, label: str) -> None:
        """Show that the launch called ``label`` has started."""
        self.label, self.started = label, time.monotonic()
        if not self.console.is_terminal:
            self.say(
                f"[{len(self.spent_s) + 1}/{len(self.expected_s)}] {label} ... (about {duration(self.left_s())} left)"
            )
        self.tick()

    def tick(self) -> None:
        """Refresh the live line."""
        elapsed = time.monotonic() - self.started
        left = f"{duration(left_s)} left" if (left_s := self.left_s()) else "longer than expected"
        self.bar.update(self.task, description=f"{duration(elapsed)} in {self.label or 'set-up'}", left=left)

    def end(self, record: Record) -> None:
        """Print the finished cell and move on."""
        if record.launch is None:  # skipped, or its environment or op could not be made
            self.say(f"{record.status}: {record.label}: {record.reason}")
            return
        self.spent_s.append(record.spent_s if record.status == "completed" else None)
        self.label, self.started = "", time.monotonic()
        number = f"[{len(self.spent_s)}/{len(self.expected_s)}]"
        style = _STYLES.get(record.status, "red")
        self.console.print(
            f"{number} {record.label}  {summary(record)}",
            style=style,
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        self.bar.update(self.task, completed=len(self.spent_s))
