"""The result line of DeepSpeedExamples benchmarks/deepcompile/run_bench_lm.py: one per run, in bytes and seconds."""

import re

from bench.imports.reading import Reading, given, number, suspect
from bench.imports.row import Setting

_RESULT = re.compile(
    r"^(?:\d{14} )?(\S+) ((?:\w+=\S* )+)iteration time: (\S+) alloc_mem: (\d+) peak_mem: (\d+)", re.MULTILINE
)
_WORDS: dict[str, Setting] = {"True": True, "False": False}

CLOCK = "the iteration time is rank 0's wall clock without a synchronisation of the device"
MEMORY = "alloc_mem and peak_mem are rank 0's; the peak includes loading the model"
STAGE = "zero_stage is only what the command line was told; the accelerate configuration decides"


def result_lines(text: str) -> list[Reading]:
    """Return a reading of each result line; each is a run of its own, known again by its line."""
    return [_result(found) for found in _RESULT.finditer(text)]


def _result(found: re.Match[str]) -> Reading:
    model, pairs, seconds, allocated, peak = found.groups()
    settings: dict[str, Setting] = {"model": model[:120]}
    for name, value in (pair.split("=", 1) for pair in pairs.split()):
        counted = number(value)
        settings[name] = _WORDS.get(value, value[:120] if counted is None else counted)
    figures, refused = given(
        [
            ("time", "iteration_time_s", seconds, "mean of the optimizer steps after warm-up, rank 0"),
            ("memory", "alloc_mem_bytes", allocated, "rank 0, at the end"),
            ("memory", "peak_mem_bytes", peak, "rank 0, since the process began"),
        ]
    )
    findings = [suspect(text) for text in (CLOCK, MEMORY)]
    findings += [suspect(STAGE)] if "zero_stage" in settings else []
    return Reading(
        "deepcompile benchmark", figures, findings + refused, settings, status="completed", identity=found[0]
    )
