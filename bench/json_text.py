"""JSON of a run folder, read so that every text in it can be written again."""

import json
import re
from typing import Any

_HALF = re.compile("[\ud800-\udfff]")


def read(text: str) -> Any:
    r"""Return what ``text`` holds; half a surrogate pair, which JSON can hold and no file can, becomes U+FFFD.

    Such a half comes from the name of a folder that is no UTF-8, or from ``"\ud800"`` in a scenario.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested too deeply.
    """
    data = json.loads(text)
    if "\\ud" not in text.lower():
        return data
    return json.loads(_HALF.sub("\ufffd", json.dumps(data, ensure_ascii=False)))
