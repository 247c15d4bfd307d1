"""The first line of an exported file: which row it is, and where its numbers came from."""

from bench.record import Record


def title(record: Record, where: str) -> str:
    """Return one sentence: the row's label and id, ``where`` it goes, and the releases that it was made with."""
    stack = [f"{name} {record.stack[name]}" for name in ("deepspeed", "torch", "transformers") if name in record.stack]
    made = f"; {record.provenance} with {', '.join(stack)}" if stack else ""
    ended = "" if record.status == "completed" else f"; its run ended as {record.status}"
    return f"{record.cell.label} (zerostage row {record.cell_id}) {where}{made}{ended}."
