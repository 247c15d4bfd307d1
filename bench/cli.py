"""The command line. No logic: read the arguments, call, print."""

import signal
import sys
from enum import StrEnum
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from bench import __version__
from bench.errors import BenchError, ScenarioError


class _Commands(TyperGroup):
    """Commands of one word or two: ``run import FILE`` beside ``run SCENARIO``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # click's types are typer's own or not, by release
        """Take the first two words for one where they name a command."""
        two = " ".join(args[:2])
        return super().resolve_command(ctx, [two, *args[2:]] if two in self.commands else args)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Which ZeRO stage, on how many GPUs? Measures a matrix of model x ZeRO stage x GPU count under DeepSpeed.",
)

ScenarioArgument = Annotated[Path, typer.Argument(help="Scenario file (YAML); see scenarios/.", show_default=False)]
ResultsOption = Annotated[Path, typer.Option(help="Folder of run folders.")]
OnlyOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Only the cells that this glob matches: id, label, or parts of it ('z3*', 'z3/w2'). May be repeated."
    ),
]
SlotsOption = Annotated[int, typer.Option(help="Most ranks to start on a machine without GPUs.", min=1)]
DEFAULT_RESULTS = Path("results/runs")


class Format(StrEnum):
    """How a report is written."""

    terminal = "terminal"
    markdown = "markdown"
    csv = "csv"
    json = "json"
    parquet = "parquet"
    html = "html"


class By(StrEnum):
    """What a table is of."""

    metric = "metric"
    gpus = "gpus"


class Rows(StrEnum):
    """What a line of a file is."""

    cells = "cells"
    records = "records"
    metrics = "metrics"


class Isolation(StrEnum):
    """How every rank of every cell gets a process of its own."""

    fork = "fork"
    process = "process"


_STOP = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def _stop(number: int, frame: object) -> None:
    """Stop once: a second signal must not break into the killing of what the first one ends."""
    for other in _STOP:
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt


def _console() -> Console:
    # A pipe or a file has no width; 80 columns, rich's guess, would cut the tables.
    return Console(width=None if sys.stdout.isatty() else 200, markup=False, emoji=False)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"zerostage {__version__}")
        raise typer.Exit


select_app = typer.Typer(no_args_is_help=True, help="Take a row of a run and go on with it.")
app.add_typer(select_app, name="select")


class Target(StrEnum):
    """Who is to train as a row did."""

    deepspeed = "deepspeed"
    llamafactory = "llamafactory"
    accelerate = "accelerate"
    trainer = "trainer"


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command("plan")
def plan_command(
    scenario: Annotated[
        list[Path],
        typer.Argument(help="Scenario file (YAML); with --ds-config, further configuration files.", show_default=False),
    ] = [],  # noqa: B006
    results: ResultsOption = DEFAULT_RESULTS,
    only: OnlyOption = None,
    cpu_slots: SlotsOption = 4,
    ds_config: Annotated[
        list[Path] | None,
        typer.Option(
            help="Instead of a scenario: DeepSpeed JSON, accelerate YAML or training arguments; which fit?",
            show_default=False,
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="With --ds-config: the model.", show_default=False)] = None,
    gpus: Annotated[str, typer.Option(help="With --ds-config: GPU counts, with commas.")] = "8",
    gpu: Annotated[str, typer.Option(help="With --ds-config: the GPU, by its name in the catalog.")] = "H100 SXM",
    gpu_memory_gib: Annotated[
        float | None, typer.Option(help="With --ds-config: memory of each GPU instead.", show_default=False)
    ] = None,
    gpus_per_node: Annotated[int, typer.Option(help="With --ds-config: GPUs of one node.")] = 8,
    seq_length: Annotated[
        int | None,
        typer.Option(help="With --ds-config: tokens per sequence; left out, 2048.", show_default=False),
    ] = None,
    micro_batch: Annotated[
        int | None, typer.Option(help="With --ds-config: train_micro_batch_size_per_gpu.", show_default=False)
    ] = None,
    gas: Annotated[
        int | None, typer.Option(help="With --ds-config: gradient_accumulation_steps.", show_default=False)
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="With --ds-config: bf16, fp16 or fp32.", show_default=False)] = None,
    activation_checkpointing: Annotated[
        bool, typer.Option("--activation-checkpointing", help="With --ds-config: recompute activations in backward.")
    ] = False,
) -> None:
    """Show the cells of a scenario, their predicted states, what is skipped and why, and the time; launch nothing.

    With --ds-config A [B ...] --model M: which of these configurations fit on --gpus GPUs, by formula.
    """
    from bench.show import show_plan

    if ds_config:
        from bench.environment import installed
        from bench.fit import Asked, show_fit

        asked = Asked(
            model=model,
            gpus=gpus,
            gpu=gpu,
            gpu_memory_gib=gpu_memory_gib,
            gpus_per_node=gpus_per_node,
            seq_length=seq_length,
            micro_batch=micro_batch,
            gas=gas,
            dtype=dtype,
            activation_checkpointing=activation_checkpointing,
        )
        show_fit([*ds_config, *scenario], asked, installed().get("deepspeed", ""), _console())
        return
    if len(scenario) != 1:
        raise ScenarioError("plan needs one scenario file (see scenarios/), or --ds-config FILE --model MODEL")
    show_plan(scenario[0], results, only or [], cpu_slots, _console())


@app.command("run")
def run_command(
    scenario: ScenarioArgument,
    results: ResultsOption = DEFAULT_RESULTS,
    only: OnlyOption = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Measure again what has a row; earlier rows are kept in superseded/."),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show the plan and the commands that start ranks or their agents; launch nothing."
        ),
    ] = False,
    cpu_slots: SlotsOption = 4,
    isolation: Annotated[
        Isolation,
        typer.Option(
            help="fork: ranks are fresh children of processes that imported torch once; where unsafe, as process. "
            "process: launch deepspeed for every cell (slower)."
        ),
    ] = Isolation.fork,
) -> None:
    """Measure every cell of a scenario that has no row yet, then print the tables.

    Exit status: 0 when every selected cell has its answer (completed, oom, host_oom, unsupported or skipped), 1 when
    one has none (timeout, hang, crashed, silent_exit, config_error, build_error), 2 for a mistake in the input.
    Other people's result files: zerostage run import --help.
    """
    from bench.show import show_commands, show_plan

    if dry_run:
        console = _console()
        show_plan(scenario, results, only or [], cpu_slots, console, isolation=isolation.value)
        show_commands(scenario, only or [], cpu_slots, isolation.value, console)
        return
    _run(scenario, results=results, only=only or [], fresh=fresh, cpu_slots=cpu_slots, isolation=isolation)


def _run(scenario: Path, *, results: Path, only: list[str], fresh: bool, cpu_slots: int, isolation: Isolation) -> None:
    from bench.record import ANSWERS
    from bench.report.command import show_tables
    from bench.run import run_matrix

    console = _console()
    for number in _STOP:
        if signal.getsignal(number) is not signal.SIG_IGN:  # under nohup, a closed terminal is no reason to stop
            signal.signal(number, _stop)
    try:
        run, records = run_matrix(
            scenario,
            results=results,
            only=only,
            fresh=fresh,
            cpu_slots=cpu_slots,
            isolation=isolation.value,
            console=console,
        )
    except KeyboardInterrupt:
        print("interrupted: finished cells are kept, the same command goes on from there", file=sys.stderr)
        raise typer.Exit(130) from None
    show_tables(run, console)
    if any(record.status not in ANSWERS for record in records):
        raise typer.Exit(1)


@app.command("run import")
def import_command(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Result files, or folders of them.", show_default=False)
    ],
    results: ResultsOption = DEFAULT_RESULTS,
    name: Annotated[str, typer.Option(help="The run folder, new or there already, that gets the rows.")] = "imported",
) -> None:
    """Take other people's result files in, as rows that no measured row is compared with; print them.

    HF Trainer results, DeepSpeed logs, autotuner metrics and more, told apart by their content; docs/imports.md lists
    them and what is wrong with each. The same content is never imported twice. Exit status 2 when a file is none.
    """
    from bench.imports.files import import_files
    from bench.report.command import show_imported

    run = results / name
    new, known = import_files(files, run)
    show_imported(run, new, known, _console())


@app.command("emulate")
def emulate_command(
    model: Annotated[str, typer.Option(help="Catalog name, local path or hub id; several with commas.")],
    gpus: Annotated[str, typer.Option(help="GPU counts, with commas: 8,64,1024.")],
    strategy: Annotated[
        str, typer.Option(help="Strategies, with commas: names, or configuration files.")
    ] = "z0,z1,z2,z3",
    dtype: Annotated[str, typer.Option(help="bf16, fp16 or fp32.")] = "bf16",
    seq_length: Annotated[
        int | None,
        typer.Option(help="Tokens per sequence; left out, 2048 or what all the models take.", show_default=False),
    ] = None,
    micro_batch: Annotated[int, typer.Option(help="train_micro_batch_size_per_gpu.")] = 1,
    gas: Annotated[int, typer.Option(help="gradient_accumulation_steps.")] = 1,
    activation_checkpointing: Annotated[
        bool, typer.Option("--activation-checkpointing", help="Recompute activations in backward.")
    ] = False,
    finetuning: Annotated[
        str, typer.Option(help="full, or lora: adapters of rank 8 beside all linear layers; both with a comma.")
    ] = "full",
    optimizer: Annotated[str, typer.Option(help="AdamW as for-loop, foreach or fused.")] = "for-loop",
    rank: Annotated[str, typer.Option(help="Which rank: first, middle, last or a number.")] = "first",
    gpu: Annotated[str, typer.Option(help="The GPU whose memory there is, by its name in the catalog.")] = "H100 SXM",
    gpu_memory_gib: Annotated[
        float | None, typer.Option(help="Memory of each GPU instead.", show_default=False)
    ] = None,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of one node.")] = 8,
    accelerator_path: Annotated[
        str, typer.Option(help="Whose answers DeepSpeed gets: cuda-like or cpu.")
    ] = "cuda-like",
    fresh: Annotated[bool, typer.Option("--fresh", help="Emulate again what earlier calls have.")] = False,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Peak memory and traffic of any number of GPUs, from DeepSpeed's own code, without them; no times.

    The scenario it stands for is kept as emulate.yaml in the results folder. Exit status as that of run.
    """
    from bench.quick import numbers, strategies, words, write_scenario

    path = write_scenario(
        results,
        matrix={
            "model": words(model),
            "strategy": strategies(strategy),
            "world_size": numbers("--gpus", gpus),
            "dtype": dtype,
            "seq_length": seq_length,
            "train_micro_batch_size_per_gpu": micro_batch,
            "gradient_accumulation_steps": gas,
            "activation_checkpointing": activation_checkpointing,
            "finetuning": words(finetuning),
        },
        emulation={
            "rank": int(rank) if rank.isdecimal() else rank,
            "gpu": gpu,
            "gpu_memory_gib": gpu_memory_gib,
            "gpus_per_node": gpus_per_node,
            "accelerator_path": accelerator_path,
        },
        optimizer={"implementation": optimizer},
    )
    _run(path, results=results, only=[], fresh=fresh, cpu_slots=1, isolation=Isolation.fork)


@app.command("report")
def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN", help="Run folder; left out, the latest. Several: side by side.", show_default=False
        ),
    ] = [],  # noqa: B006
    results: ResultsOption = DEFAULT_RESULTS,
    format: Annotated[
        Format, typer.Option(help="terminal, markdown: tables; csv, json, parquet: data; html: a page of the run.")
    ] = Format.terminal,
    output: Annotated[
        Path | None,
        typer.Option(
            help="The file to write; left out, standard output, and report.html in the run folder.", show_default=False
        ),
    ] = None,
    by: Annotated[
        By, typer.Option(help="metric: a table per metric, GPU counts across; gpus: one per GPU count, all metrics.")
    ] = By.metric,
    rows: Annotated[
        Rows | None,
        typer.Option(
            help="Of csv, json, parquet: cells (the comparison, a line per cell; the default), records (a line per "
            "launch) or metrics (a line per metric).",
            show_default=False,
        ),
    ] = None,
    rerun: Annotated[
        str | None, typer.Option(help="Print the command that measures this cell (id or label) again.")
    ] = None,
    traffic: Annotated[
        bool, typer.Option("--traffic", help="Where each row's bytes went: paper, DeepSpeed's code, measured; and why.")
    ] = False,
    traffic_summary: Annotated[bool, typer.Option("--traffic-summary", help="The same, one line per row.")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="What holds each row's memory, and what should.")] = False,
    plots: Annotated[
        Path | None, typer.Option(help="Draw the run's plots into this folder, as SVG and PNG.", show_default=False)
    ] = None,
) -> None:
    """Print the comparison tables of a run, or of several runs side by side, headed by what differs between them."""
    from bench.report.command import Wanted, report, show_memory, show_rerun, show_traffic
    from bench.runs import latest_run

    folders = runs or [latest_run(results)]
    if rerun is not None or memory or traffic or traffic_summary or plots is not None:
        if len(folders) > 1:
            raise BenchError("--rerun, --traffic, --memory and --plots are of one run; name one")
        if output or rows or by is not By.metric or format not in (Format.terminal, Format.markdown):
            raise BenchError("--rerun, --traffic, --memory and --plots go with --format terminal or markdown alone")
        console = None if format is Format.markdown else _console()
        if rerun is not None:
            show_rerun(folders[0], rerun)
        elif plots is not None:
            from bench.plots.show import show_plots

            show_plots(folders[0], plots, _console())
        elif memory:
            show_memory(folders[0], console)
        else:
            show_traffic(folders[0], console, details=traffic)
        return
    report(folders, Wanted(format.value, by.value, rows and rows.value, output), _console())


class ClaimsFormat(StrEnum):
    """How the verdicts are written."""

    terminal = "terminal"
    markdown = "markdown"
    json = "json"


class Language(StrEnum):
    """In which language."""

    en = "en"
    zh = "zh"


@app.command("report claims")
def claims_command(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run folders; left out, that of scenarios/claims.yaml.", show_default=False),
    ] = [],  # noqa: B006
    results: ResultsOption = DEFAULT_RESULTS,
    format: Annotated[ClaimsFormat, typer.Option(help="json: both languages, with all rows.")] = ClaimsFormat.terminal,
    language: Annotated[Language, typer.Option(help="en: English, zh: Chinese.")] = Language.en,
) -> None:
    """Hold common sayings about ZeRO stages against rows: verdicts, the rows behind them, and a rule in their place.

    Without RUN: the rows of 'zerostage run scenarios/claims.yaml', else those that the project keeps.
    """
    from bench.claims.show import show_claims

    show_claims(runs, results, format.value, language.value, _console())


@select_app.command("config")
def config_command(
    cell: Annotated[str, typer.Argument(help="The row: its id or label.", show_default=False)],
    target: Annotated[
        Target,
        typer.Option(
            "--as",
            help="deepspeed: the JSON alone; llamafactory: a training YAML; accelerate: its YAML and a script; "
            "trainer: a script of HF Trainer.",
            show_default=False,
        ),
    ],
    run: Annotated[Path | None, typer.Argument(help="Run folder; left out, the latest.", show_default=False)] = None,
    results: ResultsOption = DEFAULT_RESULTS,
    output: Annotated[
        Path | None, typer.Option(help="Write the files there; left out, they are printed.", show_default=False)
    ] = None,
) -> None:
    """Print the configuration that has another tool train as this row did."""
    from bench.export.command import show_config
    from bench.runs import latest_run

    show_config(run or latest_run(results), cell, target.value, output)


def main() -> None:
    """Run the command line; a mistake of the user's is one message and exit status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without a sign shows another, not a traceback
    try:
        app()
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
