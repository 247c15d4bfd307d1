"""A run as one self-contained HTML page: it needs no network, no server and, to be read, no script."""

import base64
import hashlib
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from bench import __version__
from bench.analysis import by_gpus
from bench.analysis.footers import NO_MULTI_GPU
from bench.analysis.tables import METRICS
from bench.claims.judge import verdicts
from bench.claims.rule import selection
from bench.errors import StoreError
from bench.record import Record
from bench.report import answered, claimed, compared, definitions, inert, origin
from bench.report.cells import parts
from bench.report.gather import of_run
from bench.report.index import index
from bench.runs import Run

_HERE = Path(__file__).parent


def _drawn(records: list[Record]) -> list[dict[str, Any]]:
    from bench.plots import PAGE_LIMIT, plots, svg_text  # matplotlib takes a second to import

    return [
        {"name": plot.name, "title": plot.title, "caption": plot.caption, "svg": Markup(svg_text(plot))}
        for plot in plots(records, limit=PAGE_LIMIT)
    ]


def _finalize(value: Any) -> Any:
    """Make the text that any expression of a template puts out inert; jinja2 escapes it after this."""
    return inert.inert(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"code": inert.content, "json": inert.json_content, "linked": inert.with_links}
    return environment


def page(run: Run) -> str:
    """Return the page of ``run``, a whole HTML document."""
    said, shown = of_run(run), parts(run)
    above = origin.provenance(run)
    notes = [note for note in said.notes if note not in (*above, NO_MULTI_GPU)]
    notes = [by_gpus.NOTE] * bool(shown) + notes + origin.not_known(run)
    titles = [metric.title for metric in METRICS]
    script, style = ((_HERE / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    # A drawing of matplotlib sets its colours by style attributes; no other attribute or element may carry style.
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        f"style-src-elem {_hash(style)}; style-src-attr 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            policy=policy,
            script=Markup(script),
            style=Markup(style),
            run=run,
            version=__version__,
            origin=above,
            answers=answered.groups(said.answers),
            sections=compared.sections(said, shown),
            notes=[note for note in notes if not definitions.is_definition(note, titles)],
            defined=[note.split(": ", 1) for note in notes if definitions.is_definition(note, titles)],
            plots=_drawn(run.records) if run.records else [],
            claims=claimed.claims(verdicts(run.records), shown) if shown else [],
            rule=[sentence[claimed.LANGUAGE] for sentence in selection(run.records)],
            parts=shown,
            index=index(shown),
            environment=origin.stack(run),
            columns=definitions.COLUMNS,
            prose=definitions.prose(notes),
        )
    )


def write_page(run: Run, path: Path) -> None:
    """Write the page of ``run`` to ``path``.

    Raises:
        StoreError: it cannot be written there.
    """
    text = page(run)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{path}: cannot write ({error.strerror}); name another file with --output") from None
