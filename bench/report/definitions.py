"""What each column of the page is, in a sentence."""

import re

from bench.analysis import agreement, largest, memory, offload, traffic

# Tables in which a column of one name means the same thing share an entry.
COLUMNS: dict[str, tuple[tuple[str, str], ...]] = {
    "All rows": (
        ("row", "The row's label: model, strategy, GPUs (w), micro batch (mbs), accumulation (gas), sequence, dtype."),
        ("strategy", "What distributes the training: a ZeRO stage, ddp, or a configuration file's name."),
        ("N", "Number of ranks, one per GPU; on cpu a rank is one process."),
        ("status", "What became of the launch. Only a completed row has figures."),
        ("validity", "What the checks of the suite say of the figures; unchecked: no check could be made."),
        ("from", "Where the figures come from: measured by real ranks, or emulated as one rank of N."),
        ("tokens/s per GPU", "Tokens trained per second, divided by N, at the median step."),
        ("step", "Median over the timed optimizer steps of the slowest rank's wall time."),
        ("peak per GPU", "Highest allocated bytes on any one rank during one settled optimizer step."),
        ("sent per step", "Bytes that a rank sends in one optimizer step, under the backend's wire model."),
    ),
    "Comparison tables": (
        ("throughput", "As 'tokens/s per GPU' above; the median over launches where there are several."),
        ("peak memory", "As 'peak per GPU' above."),
        ("reserved memory", "What PyTorch's CUDA caching allocator, modelled, would have reserved."),
        ("traffic", "As 'sent per step' above."),
        (
            "vs z0",
            "Ratio to the z0 row at the same N and stack; where there is no z0 row, to the strategy in its name.",
        ),
        ("ms", "Median step time in milliseconds ± the distance between its quartiles."),
        ("paper", "What the ZeRO paper gives: model states for memory, 2 or 3 psi for traffic."),
        ("fits", "Whether the modelled allocator finds room for everything in the GPU's memory."),
    ),
    "Signs in tables": (
        ("?", "The figure is not to be relied on; the row's findings say why."),
        ("†", "The row trains otherwise than was asked; its figures stand."),
        ("a word", "No figure: what became of the row (oom, crashed, skipped, invalid ...)."),
    ),
    "Memory of a row": (
        ("counted", "Bytes at that point of the step, in MiB, of the rank whose peak is highest."),
        ("diff", "Counted less expected by formula; '=': the same bytes; '-': no formula."),
    ),
}
_PROSE: dict[str, tuple[str, ...]] = {
    "Largest batch": (largest.NOTE,),
    "Offload": (offload.NOTE,),
    "Emulated beside measured": (agreement.NOTE,),
    "Memory of a row": memory.DEFINITIONS,
    "Traffic of a row": traffic.NOTES,
}


def prose(notes: list[str]) -> dict[str, tuple[str, ...]]:
    """Return the definitions that are sentences on whole tables, without those that ``notes`` has already."""
    left = {title: tuple(each for each in said if each not in notes) for title, said in _PROSE.items()}
    return {title: said for title, said in left.items() if said}


def is_definition(note: str, titles: list[str]) -> bool:
    """Whether a note below the tables says what one of the metrics of ``titles`` is."""
    return bool(re.match(rf"(?:{'|'.join(map(re.escape, [*titles, 'Strategies', 'Offload']))}):", note))
