"""Text that DeepSpeed's engine prints, of several generations: speed, phases, memory, skipped steps, and the end.

What each line is follows DeepSpeed 0.19.8 (utils/timer.py, runtime/engine.py, runtime/utils.py see_memory_usage);
older wordings are those of public logs, named in docs/imports.md.
"""

import re
import statistics

from bench import messages
from bench.imports.dump import settings
from bench.imports.reading import Reading, Wanted, given, number, suspect
from bench.imports.row import Setting
from bench.record import Finding
from bench.status import judge_log
from bench.validity.log import memory_pressure

_N = r"(-?(?:\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|inf|nan))"
_SPEED = re.compile(
    r"(?:global_step=(\d{1,12})|(\d{1,12})/(\d{1,12})), "
    rf"(?:RunningAvg)?SamplesPerSec={_N}(?:, CurrSamplesPerSec={_N})?"
    rf"(?:, MemAllocated={_N}GB, MaxMemAllocated={_N}GB)?"
)
_TIMES = re.compile(r"time \(ms\) \| ([^\n]+)$", re.MULTILINE)
_TIMER = re.compile(r"([\w -]+): (\d+(?:\.\d+)?)$")
_PHASE = re.compile(r"(?:forward|fwd|backward|bwd|backward_inner|bwd_inner|backward_allreduce|bwd_allreduce|step)$")
_MEMORY = re.compile(rf"\bMA {_N} GB\s+Max_MA {_N} GB\s+CA {_N} GB\s+Max_CA {_N} GB")
_HOST = re.compile(rf"CPU Virtual Memory:\s+used = {_N} GB")
_PROGRESS = re.compile(r"\bstep=(\d{1,12}), skipped=(\d{1,12}), lr=")
_OVERFLOW = re.compile(r"(?:OVERFLOW|loss scale overflow)!(?: Rank (\d+))? Skipping step")
_OURS = re.compile(r"deepspeed|WorkNCCL\(|\[launch\.py:|exits with return code|Killing subprocess", re.IGNORECASE)

BETWEEN = (
    "DeepSpeed's samples per second time forward to step: what lies between steps, such as loading data, is left out "
    "unless its own data loader is used (utils/timer.py ThroughputTimer)"
)
MICRO_BATCH = (
    "a SamplesPerSec line without global_step= is of DeepSpeed before 0.8.0, which counts and times micro steps; with "
    "gradient accumulation it was reported too low by that factor (deepspeedai/DeepSpeed#2498, #2603)"
)
RANK_0 = "memory lines are of rank 0 alone; see_memory_usage sets the peak back each time it prints"
ROUNDED = "Max_CA is rounded to whole GB, so it can be below CA"
PHASES = (
    "phase times come from wall_clock_breakdown timers, which may slow the run; with overlap_comm the allreduce timer "
    "is not the time of the communication (deepspeedai/DeepSpeed#617)"
)
SHARDED_0 = (
    "stage 0 with BF16_Optimizer: DeepSpeed 0.7.5 to 0.17.5 shards the optimizer states there, so its memory is not "
    "that of stage 0 (deepspeedai/DeepSpeed#7515)"
)


def _speeds(log: str) -> tuple[list[Wanted], list[Finding], int]:
    """Return samples per second and the memory of the same lines; also the last step that was printed."""
    lines = [found.groups() for found in _SPEED.finditer(log)]
    if not lines:
        return [], [], 0
    step, _, micro_step, average, _, allocated, _ = lines[-1]
    current = [value for line in lines if (value := number(line[4])) is not None]
    peaks = [value for line in lines if (value := number(line[6])) is not None]
    name = "samples_per_second" if all(line[4] is None for line in lines) else "running_avg_samples_per_second"
    until = f"step {step}" if step else f"micro step {micro_step}"
    wanted: list[Wanted] = [("throughput", name, average, f"cumulative, first steps left out, to {until}, all ranks")]
    if current:
        what = f"median of {_lines(len(current))}, one {'optimizer' if step else 'micro'} step each, all ranks"
        wanted.append(("throughput", "curr_samples_per_second", statistics.median(current), what))
    wanted.append(("memory", "mem_allocated_gib", allocated, "rank 0, at the last line"))
    if peaks:
        wanted.append(("memory", "max_mem_allocated_gib", max(peaks), "rank 0, since the start or the last reset"))
    findings = [suspect(BETWEEN), *([] if step else [suspect(MICRO_BATCH)]), *([suspect(RANK_0)] if peaks else [])]
    return wanted, findings, int(step) if step else 0


def _lines(count: int) -> str:
    return f"{count} line{'s' if count > 1 else ''}"


def _timer_lines(log: str) -> list[dict[str, float]]:
    """Return the timers of each line that is DeepSpeed's; Megatron-LM prints lines of the same form."""
    lines = []
    for text in _TIMES.findall(log):
        timers = [_TIMER.match(part.strip()) for part in text.split("|")]
        values = {timer[1]: float(timer[2]) for timer in timers if timer}
        known = (_PHASE.match(name.removesuffix("_microstep")) or name.startswith("optimizer_") for name in values)
        if values and all(known):
            lines.append(values)
    return lines


def _phases(lines: list[dict[str, float]]) -> list[Wanted]:
    """Return each timer; those of micro steps, of which only the last has the optimizer, where there are no others."""
    names = dict.fromkeys(name for line in lines for name in line)
    names = {name: None for name in names if name.removesuffix("_microstep") == name or "step" not in names}
    wanted: list[Wanted] = []
    for name in names:
        values = [line[name] for line in lines if name in line]
        per = "micro step" if name.endswith("_microstep") else "optimizer step"
        what = f"median of {_lines(len(values))}, per {per}, rank 0"
        wanted.append(("time", f"{name}_ms", round(statistics.median(values), 3), what))
    return wanted


def _without_allgather(lines: list[dict[str, float]], ran: dict[str, Setting]) -> int:
    """Return how many optimizer steps of stage 1 or 2 gathered no weights: such a step was skipped (overflow)."""
    steps = sum("step" in line for line in lines)
    gathers = sum("optimizer_allgather" in line for line in lines)
    return max(steps - gathers, 0) if gathers or ran.get("zero_optimization_stage") in (1, 2) else 0


def _memory(log: str) -> tuple[list[Wanted], list[Finding]]:
    lines = [[number(value) for value in found] for found in _MEMORY.findall(log)]
    lines = [line for line in lines if None not in line]
    host = [value for text in _HOST.findall(log) if (value := number(text)) is not None]
    wanted: list[Wanted] = []
    if lines:
        columns = [max(value for value in column if value is not None) for column in zip(*lines, strict=True)]
        for name, value, what in zip(
            ("ma_gib", "max_ma_gib", "ca_gib", "max_ca_gib"),
            columns,
            ("allocated", "peak allocated", "reserved", "peak reserved, whole GB"),
            strict=True,
        ):
            wanted.append(("memory", name, value, f"{what}, highest of {_lines(len(lines))}, rank 0"))
    if host:
        wanted.append(("memory", "cpu_virtual_memory_used_gib", max(host), "whole machine, highest line"))
    below = any((line[3] or 0) < (line[2] or 0) for line in lines)
    return wanted, [*([suspect(RANK_0)] if lines else []), *([suspect(ROUNDED)] if below else [])]


def _skipped(log: str, lines: list[dict[str, float]], ran: dict[str, Setting], last_step: int) -> list[Finding]:
    """Return a finding if optimizer steps were skipped, from whichever sign shows the most of them."""
    progress = [(int(step), int(count)) for step, count in _PROGRESS.findall(log)]
    overflows: dict[str, int] = {}
    for rank in _OVERFLOW.findall(log):
        overflows[rank] = overflows.get(rank, 0) + 1
    step, said = max(progress, key=lambda each: each[1], default=(0, 0))
    timed = sum("step" in line for line in lines)
    signs = (
        (said, step, "skipped="),
        (max(overflows.values(), default=0), last_step, "OVERFLOW lines"),
        (_without_allgather(lines, ran), timed, "no optimizer_allgather"),
    )
    count, steps, sign = max(signs, key=lambda each: each[0])
    of = f" of {steps}" if steps >= count else ""
    text = f"optimizer steps skipped: {count}{of} ({sign}); such a step does no optimizer work and looks fast"
    return [suspect(text)] if count else []


def log_text(log: str) -> Reading | None:
    """Read DeepSpeed's lines of a log, ``None`` if it has none and tells of no failure of DeepSpeed's ranks."""
    ran = settings(log)
    speeds, findings, last_step = _speeds(log)
    lines = _timer_lines(log)
    memory, doubts = _memory(log)
    figures, refused = given([*speeds, *_phases(lines), *memory])
    findings += [suspect(PHASES)] if lines else []
    findings += [doubt for doubt in doubts if doubt not in findings]
    findings += _skipped(log, lines, ran, last_step)
    findings += memory_pressure(log)
    if ran.get("zero_optimization_stage") == 0 and ran.get("final_optimizer") == "BF16_Optimizer":
        findings.append(suspect(SHARDED_0))
    status, reason = judge_log(log)
    if not (figures or ran or findings or (status and _OURS.search(log))):
        return None
    if waited := messages.watchdog_shapes(log):
        ran |= waited
    return Reading("DeepSpeed log", figures, findings + refused, ran, status, reason)
