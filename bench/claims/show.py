"""`zerostage report claims`: which rows are read, and how the verdicts are printed."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.claims import render, words
from bench.claims.judge import verdicts
from bench.claims.rule import selection
from bench.claims.verdict import Text, Verdict
from bench.errors import StoreError
from bench.record import Record
from bench.runs import read_measured

NAME = "claims"


def folders(runs: Sequence[Path], results: Path) -> list[Path]:
    """Return the run folders to read: those named, else the run of scenarios/claims.yaml, else the committed one.

    Raises:
        StoreError: none is named, and neither is there.
    """
    if runs:
        return list(runs)
    known = (results / NAME, results.parent / "reference" / NAME)
    for folder in known:
        if (folder / "manifest.json").is_file():
            return [folder]
    raise StoreError(
        f"{known[0]}: no rows for the claims, nor in {known[1]}; make them with 'zerostage run scenarios/claims.yaml', "
        "or name run folders: zerostage report claims RUN..."
    )


def read(runs: Sequence[Path]) -> list[Record]:
    """Return the records of all ``runs``.

    Raises:
        StoreError: one of them cannot be read.
    """
    return [record for run in runs for record in read_measured(run)[1]]


def show_claims(runs: Sequence[Path], results: Path, form: str, language: str, console: Console) -> None:
    """Print every claim's verdict, the rows behind it, and the rule that the rows support.

    Raises:
        StoreError: there are no rows, or one of the runs cannot be read.
    """
    chosen = folders(runs, results)
    records = read(chosen)
    found, rule = verdicts(records), selection(records)
    if form == "json":
        print(render.as_json(found, rule))
    elif form == "markdown":
        print(render.markdown(found, rule, language), end="")
    else:
        _terminal(found, rule, language, console)
        for run in chosen:
            console.print(str(run), highlight=False)


def _terminal(found: Sequence[Verdict], rule: Sequence[Text], language: str, console: Console) -> None:
    table = Table(*words.HEADER[language], show_lines=True)
    for verdict in found:
        word, depends = words.WORDS[verdict.word][language], render.variable(verdict, language)
        table.add_row(verdict.id, verdict.claim[language], word, depends, verdict.because[language])
    console.print(table)
    for verdict in found:
        console.print(f"\n{verdict.id}: {words.WORDS[verdict.word][language]}", style="bold", highlight=False)
        for line in render.lines(verdict, language):
            side = words.FOR[language][line.supports]
            rows, stacks = ", ".join(line.rows), ", ".join(line.stacks)
            said = f"  {side}: {rows} ({stacks}; {line.provenance}, {line.validity}): {line.says}"
            console.print(said, highlight=False)
        for sentence in render.published(verdict, language):
            console.print(f"  {words.TITLES[language]['published']}: {sentence}", highlight=False)
    console.print(f"\n{words.TITLES[language]['rule']}", style="bold", highlight=False)
    for number, step in enumerate(rule, start=1):
        console.print(f"{number}. {step[language]}", highlight=False)
    console.print(f"\n{words.EVIDENCE[language]}", highlight=False)
