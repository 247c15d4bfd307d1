"""Real text as tokens: which files a text corpus is made of, its bytes, and their digest.

One byte is one token, so every vocabulary of 256 entries or more can read it and no tokenizer is needed.
"""

import hashlib
import sysconfig
from functools import cache
from pathlib import Path

from bench.errors import ScenarioError

# Enough for any cell here, and read in well under a second.
MAX_BYTES = 16 * 2**20


def _files(path: str | None) -> list[Path]:
    if path is None:
        return sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    root = Path(path).expanduser()
    if root.is_dir():
        return sorted(file for file in root.rglob("*") if file.is_file())
    return [root]


@cache
def read(path: str | None) -> bytes:
    """Return the first 16 MiB of a text file, a folder of text files, or (``None``) the standard library.

    Raises:
        ScenarioError: nothing can be read there, a file is not text, or there are fewer than 2 bytes.
    """
    name = path or "the Python standard library's sources"
    chunks: list[bytes] = []
    left = MAX_BYTES
    try:
        for file in _files(path):
            with file.open("rb") as stream:
                chunk = stream.read(left)
            if b"\0" in chunk:
                raise ScenarioError(f"data.path: {file} is not text; name a text file or a folder of text files")
            chunks.append(chunk)
            left -= len(chunk)
            if left <= 0:
                break
    # RuntimeError: the home folder of an unknown ~user; ValueError: a path with a null character.
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ScenarioError(f"data.path: cannot read the corpus {name}: {reason}") from None
    text = b"".join(chunks)
    if len(text) < 2:
        raise ScenarioError(f"data.path: the corpus {name} holds no text; name a text file or a folder of them")
    return text


def digest(path: str | None) -> str:
    """Return ``sha256:`` and 16 hex digits of the corpus content, so that its path never matters."""
    return "sha256:" + hashlib.sha256(read(path)).hexdigest()[:16]


def check_unchanged(path: str | None, planned: str | None) -> None:
    """Hold a corpus against its digest of planning time; ``None`` where the cell names no file.

    Raises:
        ValueError: it is another text now.
    """
    if planned and digest(path) != planned:
        raise ValueError(f"the corpus {path} has changed since the plan was made")
