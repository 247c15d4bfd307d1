"""One value of a configuration -> the type that its key takes. Errors are ``ValueError``; the caller names the file."""

import math
import reprlib
from typing import Any

_short = reprlib.Repr()
_short.maxlevel, _short.maxstring = 2, 100

_TRUE, _FALSE = ("true", "yes", "on", "1", "t", "y"), ("false", "no", "off", "0", "f", "n")  # pydantic's words


def shown(value: Any) -> str:
    """Return ``value`` for a message, cut short."""
    try:
        return _short.repr(value)
    except ValueError:  # a whole number of more digits than Python prints
        return "a huge number"


def is_auto(value: Any) -> bool:
    """Whether the value is ``"auto"``, which transformers compares exactly."""
    return isinstance(value, str) and value == "auto"


def whole(key: str, value: Any, lowest: int = 0) -> int:
    """Return a whole number: ``500000000``, ``5e8``, ``"5e8"``.

    Raises:
        ValueError: it is none, or below ``lowest``.
    """
    number: int | float | None = None
    if isinstance(value, str):
        try:
            number = int(value)
        except ValueError:
            try:
                number = float(value)
            except ValueError:
                number = None
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = value
    if number is None or (isinstance(number, float) and not math.isfinite(number)):
        raise ValueError(f"'{key}' takes a whole number (got {shown(value)})")
    if number != int(number):
        raise ValueError(
            f"'{key}' takes a whole number (got {shown(value)}); write {int(number)}: DeepSpeed refuses a fraction"
        )
    if number < lowest:
        raise ValueError(f"'{key}' takes a whole number from {lowest} (got {shown(value)})")
    if number >= 2**63:
        raise ValueError(f"'{key}' takes a whole number below 2**63 (got {shown(value)})")
    return int(number)


def real(key: str, value: Any, lowest: float = 0.0) -> float:
    """Return a finite number from ``lowest``.

    Raises:
        ValueError: it is none.
    """
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, int | float | str) else float(value)
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or number < lowest:
        raise ValueError(f"'{key}' takes a number from {lowest:g} (got {shown(value)})")
    return number


def switch(key: str, value: Any) -> bool:
    """Return true or false, also where they are text or 0 and 1, as DeepSpeed reads them.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(value, bool):
        return value
    word = value.lower() if isinstance(value, str) else str(value) if value in (0, 1) else ""
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError(f"'{key}' takes true or false (got {shown(value)})")


def mapping(key: str, value: Any) -> dict[str, Any]:
    """Return a section.

    Raises:
        ValueError: it is no mapping.
    """
    if not isinstance(value, dict):
        raise ValueError(f"'{key}' takes a section, {{...}} (got {shown(value)})")
    return value
