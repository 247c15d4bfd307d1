"""The errors a user can cause. Each message says what is wrong, where, and what to do about it.

The command line prints the message alone and exits with status 2; anything that is not a
``BenchError`` is a fault of zerostage and keeps its traceback.
"""

import difflib
from collections.abc import Iterable


class BenchError(Exception):
    """Base of every error that is the user's to mend."""


class ScenarioError(BenchError):
    """A scenario file, or a model or data set that it names, cannot be used."""


class StoreError(BenchError):
    """A run folder or a record in it cannot be read or written."""


class ImportedFileError(BenchError):
    """A file of results from elsewhere is none of those that can be imported."""


class LaunchError(BenchError):
    """Cells cannot be launched on this machine at all."""


class BuildError(LaunchError):
    """An isolated environment, or an op that DeepSpeed compiles, could not be made; what does without it still runs."""


class AgentsError(LaunchError):
    """Warm ranks cannot be had; every cell is then a launch of its own."""


class UnsafeForkError(AgentsError):
    """A forked child would not be as good as a fresh process."""


def nearest(word: object, valid: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the valid word closest to ``word``, or an empty string."""
    matches = difflib.get_close_matches(str(word), list(valid), n=1, cutoff=0.5)
    return f"; did you mean '{matches[0]}'?" if matches else ""
