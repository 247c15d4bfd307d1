"""What each column of the page's tables is, in a sentence. A test holds the headings of the page against it."""

import re

from bench.analysis import agreement, largest, memory, offload, traffic

COLUMNS: dict[str, tuple[tuple[str, str], ...]] = {
    "All rows": (
        ("row", "Its label: model, strategy, GPUs (w), micro batch (mbs), accumulation (gas), sequence, dtype."),
        ("strategy", "What distributes the training: a ZeRO stage, ddp, fsdp2, or a configuration file's name."),
        ("strategy, stack", "The same, with the releases that the scenario asked for."),
        ("N", "Number of ranks, one per GPU; on cpu a rank is one process."),
        ("status", "What became of the row. Only a completed one has figures."),
        ("validity", "What the suite's checks say of it; unchecked: a check could not be made."),
        ("from", "Where the figures come from: measured by real ranks, or emulated as one rank of N."),
        ("tokens/s per GPU", "Tokens trained per second, divided by N, at the median step."),
        ("step", "Median over the timed optimizer steps of the slowest rank's wall time."),
        ("peak per GPU", "Highest allocated bytes on any one rank during one settled optimizer step."),
        ("sent per step", "Bytes that a rank sends in one optimizer step, under the backend's wire model."),
    ),
    "Comparisons of one GPU count": (
        ("ms", "Median step time in milliseconds; with several launches, of their medians."),
        ("±", "Distance between the quartiles of what 'ms' is the median of."),
        ("MFU", "Model FLOPs per second over the device's dense peak."),
        ("peak", "As 'peak per GPU' above."),
        ("reserved", "What the caching allocator held from the device: measured on CUDA, modelled where emulated."),
        ("fits", "Whether the modelled allocator finds room for everything in the GPU's memory."),
        ("host", "Highest resident set of a rank's process, Python and libraries included."),
        ("vs z0", "Ratio to the z0 row at the same N and stack; without a z0 row, to the strategy in its name."),
        ("vs best", "Ratio to the best row in no doubt that fits: most tokens/s, least memory or traffic."),
        ("n", "Launches that the figures rest on, failed ones in brackets."),
    ),
    "Comparisons by metric": (
        ("throughput", "As 'tokens/s per GPU' above."),
        ("peak memory", "As 'peak per GPU' above."),
        ("reserved memory", "As 'reserved' above, modelled."),
        ("traffic", "As 'sent per step' above."),
        ("paper", "What the ZeRO paper gives: model states for memory, 2 or 3 psi for traffic."),
    ),
    "Largest batch that fits": (
        ("micro batch", "Sequences of one GPU in one micro-step: the largest that was tried and fits."),
        ("global batch", "Sequences of one optimizer step over all GPUs."),
        ("per token", "Bytes sent over the tokens that a rank trains in a step."),
        ("fails at", "The smallest micro batch that was tried and does not fit; '> limit': none was refused."),
        ("in", "Where memory was highest, or ran out, at that size."),
    ),
    "Offload": (
        ("device, peak", "Highest bytes in device memory in one step, of the rank that holds most on the host."),
        ("host, peak", "Highest bytes of offloaded states in host memory."),
        ("RSS of a node", "Resident sets of a node's ranks together, measured."),
        ("device, steady", "Bytes on the device between two steps."),
        ("host, steady", "Bytes on the host between two steps."),
        ("pinned", "Page-locked bytes of them."),
        ("to device", "Bytes that cross to the device in one step."),
        ("to host", "Bytes that cross to the host in one step."),
        ("formula", "Whether the five figures before it are the formula's: '=', else the largest difference."),
    ),
    "Emulated beside measured": (
        ("cell", "The row's label and the rank that was emulated."),
        ("peak, measured", "Peak bytes of that rank in the measured row."),
        ("emulated", "Peak bytes of it in the emulated row."),
        ("diff", "Emulated less measured; in a row's memory, counted less expected. '=': the same bytes."),
        ("steady diff", "The same of what is held between two steps."),
        ("reserved diff", "The same of what the caching allocator holds."),
        ("collectives", "Whether both issued the same collectives."),
    ),
    "Imported": (
        ("source", "The file that says it."),
        ("format", "Which program wrote that."),
        ("says", "The figure's name there."),
        ("value", "The figure, in its own unit."),
        ("which is", "What it covers, and how it was taken."),
    ),
    "Signs": (
        ("?", "The figure is not to be relied on; the row's findings say why."),
        ("†", "The row trains otherwise than was asked; its figures stand."),
        ("a word", "In place of a figure: what became of the row (oom, crashed, skipped, invalid ...)."),
    ),
}
_PROSE: dict[str, tuple[str, ...]] = {
    "Largest batch that fits": (largest.NOTE,),
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
    return bool(re.match(rf"(?:{'|'.join(map(re.escape, [*titles, 'Strategies']))}):", note))
