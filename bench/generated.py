"""The tables in docs/ that code writes: ``python -m bench.generated`` puts the present ones in place.

A table stands between ``<!-- NAME: python -m bench.generated -->`` and ``<!-- end NAME -->``.
"""

import re
from pathlib import Path

from bench.analysis import columns, explain
from bench.validity import known_bad
from bench.zero import applicability, features

DOCS = Path(__file__).parents[1] / "docs"
TABLES = {
    "applicability": ("zero-stages.md", applicability.markdown),
    "features": ("zero-stages.md", features.markdown),
    "known-bad": ("metrics.md", known_bad.markdown),
    "explanations": ("metrics.md", explain.markdown),
    "columns": ("metrics.md", columns.markdown),
    "comparison": ("metrics.md", columns.comparison_markdown),
}


def renewed(text: str, name: str, table: str) -> str:
    """Return ``text`` with the table called ``name`` replaced.

    Raises:
        ValueError: the marks of that table are not there.
    """
    begin, end = f"<!-- {name}: python -m bench.generated -->", f"<!-- end {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"no place for the table '{name}'")
    return pattern.sub(lambda _: f"{begin}\n\n{table}\n\n{end}", text)


def main() -> None:
    """Write every table into its document."""
    for name, (document, table) in TABLES.items():
        path = DOCS / document
        path.write_text(renewed(path.read_text(encoding="utf-8"), name, table()), encoding="utf-8")


if __name__ == "__main__":
    main()
