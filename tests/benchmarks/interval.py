"""The spread of a median ratio."""

import random
import statistics


def interval_95(ratios):
    """Return the percentile bootstrap interval of the median ratio."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(10_000))
    return medians[250], medians[9750]
