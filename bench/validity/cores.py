"""More compute threads than cores: the sentence that a row's times carry then, and how to know it again."""

import re

_SENTENCE = "{world_size} ranks of {num_threads} threads share {num_cores} cores"
_PATTERN = re.compile(re.sub(r"\{\w+\}", r"\\d+", _SENTENCE))


def oversubscribed(world_size: int, num_threads: int, num_cores: int) -> list[str]:
    """Return why the times of ranks that have no core of their own for each thread are suspect, if that is so."""
    if world_size * num_threads <= num_cores:
        return []
    return [_SENTENCE.format(world_size=world_size, num_threads=num_threads, num_cores=num_cores)]


def says_oversubscribed(reason: str) -> bool:
    """Whether ``reason`` is the sentence of ``oversubscribed``."""
    return _PATTERN.fullmatch(reason) is not None
