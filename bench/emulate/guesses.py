"""Values that depend on content which is not there: what they were guessed by, and who reads them."""

import sys

import torch


def mark(tensor: torch.Tensor, origin: str) -> None:
    """Note that the content of ``tensor`` is a guess, by the operator ``origin``; its storage keeps the note."""
    tensor.untyped_storage()._zerostage_guess = origin  # type: ignore[attr-defined]


def origin_of(tensors: list[torch.Tensor]) -> str | None:
    """Return the operator that a value computed from ``tensors`` is a guess by, ``None`` if it is known."""
    found = (getattr(tensor.untyped_storage(), "_zerostage_guess", None) for tensor in tensors if not tensor.is_meta)
    return next((origin for origin in found if origin), None)


def reader() -> str:
    """Return the innermost function outside torch and the emulator that is running: module and name."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module != "torch" and not module.startswith(("torch.", "bench.emulate.")):
            return f"{module}.{frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"
