"""Put into a rank: it leaves the collectives of the last counted step, in order, as the recorder saw them."""

import dataclasses
import json
import os
from pathlib import Path

from bench.worker.loop import Loop

NAME = "leave the collectives"


def put_in(folder: Path):
    """Leave them as ``folder/collectives.rank<r>.json``. Called in the rank, before the worker's main."""
    counting_pass = Loop.counting_pass

    def leaving(self, *arguments):
        counted = counting_pass(self, *arguments)
        left = folder / f"collectives.rank{os.environ['RANK']}.json"
        left.write_text(json.dumps([dataclasses.asdict(event) for event in counted.collectives]))
        return counted

    Loop.counting_pass = leaving
