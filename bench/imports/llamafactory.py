"""trainer_log.jsonl of LLaMA-Factory: one JSON object per log entry (src/llamafactory/train/callbacks.py)."""

import json

from bench.imports.reading import Reading, given, suspect, whole

CUMULATIVE = (
    "LLaMA-Factory's throughput is all tokens seen over the time since train() began: warm-up, evaluation and saving "
    "are in it, and after a resume the tokens of earlier runs too (callbacks.py, hiyouga/LlamaFactory#5197)"
)


def trainer_log(text: str) -> Reading | None:
    """Read a trainer_log.jsonl; ``None`` if the text is none. A last line that is torn is passed over."""
    entries = []
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and "current_steps" in entry and "total_steps" in entry:
            entries.append(entry)
    if not entries:
        return None
    last = entries[-1]
    timed = next((entry for entry in reversed(entries) if "throughput" in entry), {})
    training = next((entry for entry in reversed(entries) if "loss" in entry), {})
    figures, refused = given(
        [
            ("throughput", "throughput_tokens_per_second", timed.get("throughput"), "cumulative since train() began"),
            ("training", "total_tokens", timed.get("total_tokens"), "tokens, all processes"),
            ("training", "current_steps", last["current_steps"], "optimizer steps done"),
            ("training", "loss", training.get("loss"), "last entry: mean since the entry before"),
            ("memory", "vram_allocated_gib", timed.get("vram_allocated"), "peak of one process"),
            ("memory", "vram_reserved_gib", timed.get("vram_reserved"), "peak of one process"),
        ]
    )
    total = whole(last["total_steps"])
    return Reading(
        "LLaMA-Factory trainer log",
        figures,
        [*([suspect(CUMULATIVE)] if "throughput" in timed else []), *refused],
        {"total_steps": total} if total else {},
        status="completed" if total is not None and whole(last["current_steps"]) == total else None,
    )
