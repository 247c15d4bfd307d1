"""Plots inside a page and as files: inert, unique ids, equal for equal records."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from bench.cli import app
from bench.errors import StoreError
from bench.plots import PAGE_LIMIT, plots, save, svg_text
from bench.plots.show import show_plots
from bench.plots.style import INK
from bench.record import parse_record
from bench.store import MANIFEST_VERSION, write_json, write_record

RECORDS = Path(__file__).parents[1] / "data" / "records"
SVG = "{http://www.w3.org/2000/svg}"
ROGUES = ["<script>alert(1)</script>", "a\x01b\nc\u202e模型 $x^2$", "&amp; ]]> -->" + "x" * 300]


@pytest.fixture(scope="module")
def records():
    found = []
    for name in ("v3-measured.json", "v3-emulated.json"):
        record = parse_record((RECORDS / name).read_text(), name)
        for n in (2, 4):
            for strategy in ("z1", "z3"):
                cell = record.cell.model_copy(update={"strategy": strategy, "world_size": n})
                found.append(record.model_copy(update={"cell": cell, "cell_id": cell.cell_id, "label": cell.label}))
    return found


def called(record, model):
    cell = record.cell.model_copy(update={"model": model})
    return record.model_copy(update={"cell": cell, "cell_id": f"{abs(hash(model)):012x}"[:12], "label": "x"})


@pytest.fixture(scope="module")
def shown(records):
    return drawn(records)


@pytest.fixture(scope="module")
def rogues(records):
    """Names from outside that are not inert by themselves, in every kind of plot."""
    return drawn([called(record, model) for model in ROGUES for record in (records[0], records[4])])


def a_manifest(run, record):
    content = {"manifest_version": MANIFEST_VERSION, "scenario": {}, "scenario_path": "a.yaml", "scenario_name": "a"}
    write_json(
        run / "manifest.json", content | {"environment": {}, "cells": [{"cell_id": record.cell_id, "label": "a cell"}]}
    )


def drawn(records, **options):
    return [(plot, svg_text(plot)) for plot in plots(records, **options)]


def test_all_is_well_formed_and_nothing_in_it_is_run_or_fetched(rogues):
    for plot, text in rogues:
        assert not text.startswith("<?xml"), plot.name
        assert "<!DOCTYPE" not in text
        root = ET.fromstring(text)
        for element in root.iter():
            tag = element.tag.removeprefix(SVG)
            assert tag in {"svg", "title", "desc", "g", "defs", "path", "use", "text", "clipPath", "rect", "pattern"}
            for key, value in element.attrib.items():
                assert not key.lower().startswith("on"), key
                if "href" in key:
                    assert value.startswith("#"), value
                assert "http" not in value
                assert "url(" not in value.replace("url(#", "")


def test_a_name_stays_text(rogues):
    model = "<script>alert(1)</script>"
    assert not any("<script" in text for _, text in rogues)
    (text,) = [text for plot, text in rogues if plot.title.startswith("The fastest")]
    assert any(model in (element.text or "") for element in ET.fromstring(text).iter(f"{SVG}text"))
    assert any(model in (ET.fromstring(text).findtext(f"{SVG}title") or "") for _, text in rogues)


def test_dollars_are_not_typeset(rogues):
    (text,) = [text for plot, text in rogues if plot.title.startswith("The fastest")]
    assert any("$x^2$, " in (element.text or "") for element in ET.fromstring(text).iter(f"{SVG}text"))


def test_ids_are_unique_over_all_plots_and_all_that_is_referred_to_is_there(rogues):
    seen = set()
    for plot, text in rogues:
        own = {element.attrib["id"] for element in ET.fromstring(text).iter() if "id" in element.attrib}
        assert not own & seen, plot.name
        seen |= own
        referred = {part.partition(")")[0] for part in text.split("url(#")[1:]}
        referred |= {part.partition('"')[0] for part in text.split('href="#')[1:]}
        assert referred <= own, plot.name


def test_names_are_file_stems_and_no_two_are_equal(rogues):
    found = [plot.name for plot, _ in rogues]
    assert len(set(found)) == len(found)
    assert all(name and set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for name in found)


def test_text_takes_the_colour_and_the_font_of_the_page(shown):
    for plot, text in shown:
        root = ET.fromstring(text)
        assert INK not in text
        assert "currentColor" in text
        assert "DejaVu" not in text
        assert list(root.iter(f"{SVG}text")), plot.name
        assert root.attrib["fill"] == "currentColor"
        height = root.attrib["viewBox"].split()[3]
        background = [shape for shape in root.iter(f"{SVG}path") if shape.attrib["d"].startswith(f"M 0 {height} ")]
        assert background == [], plot.name


def test_it_is_an_image_with_a_name_and_a_description(shown):
    for plot, text in shown:
        root = ET.fromstring(text)
        assert root.attrib["role"] == "img"
        title, description = root[0], root[1]
        assert (title.tag, description.tag) == (f"{SVG}title", f"{SVG}desc")
        assert (title.text, description.text) == (plot.title, plot.caption)
        assert root.attrib["aria-labelledby"] == f"{title.attrib['id']} {description.attrib['id']}"
        assert "viewBox" in root.attrib


def test_equal_records_give_equal_plots(records, shown):
    assert [text for _, text in drawn(list(records))] == [text for _, text in shown]


def test_a_users_matplotlibrc_changes_nothing(records, tmp_path):
    """Measured in a process of its own, for matplotlib reads that file once."""
    (tmp_path / "matplotlibrc").write_text(
        "font.size: 30\naxes.grid: True\ntext.parse_math: True\nsvg.fonttype: path\n"
    )
    program = (
        "import sys, hashlib, pathlib\nfrom bench.plots import plots, svg_text\nfrom bench.record import parse_record\n"
        "record = parse_record(pathlib.Path(sys.argv[1]).read_text(), 'x')\n"
        "print(hashlib.sha256(''.join(map(svg_text, plots([record]))).encode()).hexdigest())"
    )
    command = [sys.executable, "-W", "error", "-c", program, str(RECORDS / "v3-measured.json")]
    found = [
        subprocess.run(command, env=os.environ | extra, check=True, capture_output=True, text=True).stdout
        for extra in ({}, {"MATPLOTLIBRC": str(tmp_path / "matplotlibrc"), "PYTHONHASHSEED": "7"})
    ]
    assert found[0] == found[1]


def test_a_plot_is_small(shown):
    for plot, text in shown:
        assert len(text.encode()) < 60_000, plot.name


def test_the_plots_of_200_cells_are_below_a_megabyte_in_a_page(records):
    cells = []
    for seq in range(64, 64 + 10):
        for n in (1, 2, 4, 8):
            for strategy in ("ddp", "z0", "z1", "z2", "z3"):
                changes = {"seq_length": seq, "world_size": n, "strategy": strategy}
                cell = records[0].cell.model_copy(update=changes)
                cells.append(records[0].model_copy(update={"cell": cell, "cell_id": cell.cell_id}))
    assert len(cells) == 200
    found = drawn(cells, limit=1)  # one of each kind, and a page has PAGE_LIMIT of each
    assert {plot.name.partition("-llama")[0] for plot, _ in found} >= {"memory", "traffic", "throughput", "pareto"}
    assert sum(len(text.encode()) for _, text in found) * PAGE_LIMIT < 1_000_000


def test_files_are_an_svg_and_a_png_of_each_and_their_captions(records, tmp_path):
    found = plots(records[4:6])
    written = save(found, tmp_path / "new" / "folder")
    names = {f"{plot.name}.{kind}" for plot in found for kind in ("svg", "png")}
    assert {path.name for path in written} == names | {"plots.md"}
    for path in written:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
        if path.suffix == ".svg":
            assert ET.parse(path).getroot().tag == f"{SVG}svg"
    captions = (tmp_path / "new" / "folder" / "plots.md").read_text()
    assert all(f"![]({plot.name}.svg)" in captions for plot in found)


def test_files_of_equal_records_are_equal(records, tmp_path):
    folders = [tmp_path / name for name in ("a", "b")]
    first, second = ([path.read_bytes() for path in save(plots(records[:2])[:2], folder)] for folder in folders)
    assert first == second


def test_names_in_the_captions_file_are_no_markup(records, tmp_path):
    save(plots([called(records[0], "<b>[x](http://y)`")])[:1], tmp_path)
    assert "\\<b\\>\\[x\\](http://y)\\`" in (tmp_path / "plots.md").read_text()


def test_a_folder_that_cannot_be_written_is_one_message(records, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="plots cannot be written there"):
        save(plots(records[:1]), tmp_path / "file")


def test_the_command_draws_a_run_and_lists_what_it_drew(records, tmp_path):
    run = tmp_path / "run"
    record = records[2]
    write_record(run, record)
    a_manifest(run, record)
    done = CliRunner().invoke(app, ["report", str(run), "--plots", str(tmp_path / "plots")])
    assert done.exit_code == 0, done.output
    shown = done.stdout
    assert f"{tmp_path / 'plots' / 'memory-llama-tiny'}.svg, .png: Memory by component: llama-tiny" in shown
    assert (tmp_path / "plots" / "memory-llama-tiny.png").exists()


def test_a_run_without_numbers_has_nothing_to_draw(records, tmp_path):
    empty = dict.fromkeys(("timing", "throughput", "memory", "comm", "practice"))
    record = records[2].model_copy(update={"status": "oom", "reason": "because"} | empty)
    write_record(tmp_path, record)
    a_manifest(tmp_path, record)
    with pytest.raises(StoreError, match="no row has a number to draw"):
        show_plots(tmp_path, tmp_path / "plots", Console())


def test_a_plan_does_not_import_what_draws():
    program = "import sys, bench.cli, bench.show, bench.plan; print({'matplotlib', 'seaborn'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"
