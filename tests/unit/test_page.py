import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bench.cell import BatchLimits
from bench.errors import StoreError
from bench.imports.files import import_files
from bench.record import BatchTry, Failure, Finding, Offload, RankOffload, parse_record
from bench.report.cells import part_id
from bench.report.page import page, write_page
from bench.runs import read_run
from bench.store import write_json, write_record

RECORDS = Path(__file__).parents[1] / "data" / "records"
VOID = {"meta", "link", "br", "input", "use", "path", "rect", "img"}


def load(name):
    path = RECORDS / name
    return parse_record(path.read_text(), str(path))


def altered(record, *, repeat=0, stack=None, fields=(), **settings):
    """Return a record of another cell, with some ``fields`` of its own."""
    cell = record.cell.model_copy(update=settings)
    key = hashlib.sha256(cell.model_dump_json().encode()).hexdigest()[:12]
    same = {"cell": cell, "cell_id": key, "label": cell.label, "repeat": repeat, "requested_stack": stack}
    return record.model_copy(update=same | dict(fields))


FAILED = dict.fromkeys(("timing", "throughput", "memory", "comm", "practice", "theory", "parity"))


def failed(record, tail, **settings):
    launch = record.launch.model_copy(update={"log_tail": tail, "exit_status": 1})
    fields = {"status": "crashed", "validity": "unchecked", "reason": "it crashed", "launch": launch}
    return altered(record, fields=FAILED | fields, **settings)


def make_run(folder, records, **manifest):
    """Write a run folder with ``records``, and read it."""
    for record in records:
        write_record(folder, record)
    cells = {(r.cell_id, r.requested_stack): r.label for r in records}
    whole = {
        "manifest_version": 1,
        "scenario": {"matrix": {}, "repeat": 1, "zero_optimization": {}},
        "scenario_path": "scenarios/page.yaml",
        "scenario_name": folder.name,
        "cells": [{"cell_id": i, "label": label, "stack": stack, "repeats": 1} for (i, stack), label in cells.items()],
        "environment": {"stack": {"torch": "2.13.0"}, "gpus": []},
    }
    write_json(folder / "manifest.json", whole | manifest)
    return read_run(folder)


class Parsed(HTMLParser):
    """What a browser would see: elements with their attributes, text by element, every attribute's value."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.stack, self.texts = [], [], {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        while self.stack and self.stack.pop() != tag:
            pass

    def handle_data(self, data):
        name = self.stack[-1] if self.stack else ""
        self.texts[name] = self.texts.get(name, "") + data

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]

    @property
    def text(self):
        return "".join(text for name, text in self.texts.items() if name not in ("script", "style"))


@pytest.fixture
def measured():
    return load("v3-measured.json")


@pytest.fixture
def emulated():
    return load("v3-emulated.json")


@pytest.fixture
def run(tmp_path, measured, emulated):
    others = [altered(measured, strategy=name) for name in ("z1", "z2")]
    return make_run(tmp_path / "pages", [measured, *others, emulated, failed(measured, ["the end"], strategy="z0")])


def test_each_row_has_a_part_and_each_link_inside_the_page_leads_somewhere(run):
    seen = Parsed(page(run))
    ids = [attrs["id"] for _, attrs in seen.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    for record in run.records:
        assert f"cell-{record.cell_id}-r0" in ids
    targets = {attrs["href"][1:] for attrs in seen.all("a") if attrs["href"].startswith("#")}
    assert targets <= set(ids)
    assert {part_id(r.cell_id, 0, None) for r in run.records} <= targets


def test_the_contents_name_what_tells_one_group_of_rows_from_another(tmp_path, measured):
    rows = [altered(measured, seq_length=n, strategy=s) for n in (64, 128) for s in ("z1", "z2")]
    text = page(make_run(tmp_path / "groups", rows))
    assert re.findall(r'<a href="#group-\d+">([^<]+)', text) == ["llama-tiny, seq 64", "llama-tiny, seq 128"]


def test_the_parts_stand_in_their_order(run):
    headings = re.findall(r'<h2 id="h-(\w+)"', page(run))
    order = ["answer", "comparisons", "plots", "claims", "rows", "cells", "environment", "definitions"]
    assert headings == [name for name in order if name in headings]
    assert {"answer", "comparisons", "rows", "cells", "environment", "definitions"} <= set(headings)


def test_nothing_is_loaded_and_only_this_script_and_this_style_may_act(run):
    text = page(run)
    seen = Parsed(text)
    for tag, attrs in seen.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form"), tag
        assert not {"src", "srcset", "action", "formaction", "background", "poster"} & attrs.keys()
        assert not [name for name in attrs if name.startswith("on")]
    for attrs in seen.all("a"):
        assert attrs["href"].startswith(("#", "https://github.com/"))
    policy = next(attrs["content"] for attrs in seen.all("meta") if "http-equiv" in attrs)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    (script,) = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", text, flags=re.DOTALL)
    for name, content in (("script-src", script), ("style-src-elem", style)):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[name] == f"'sha256-{digest}'"


@pytest.mark.parametrize(
    "name",
    ["<script>alert(1)</script>", "javascript:alert(1)", "a\"b'c<i>", "x</title><b>y</b>", "]]><svg onload=alert(1)>"],
)
def test_a_models_name_is_text_wherever_it_stands(tmp_path, measured, name):
    rows = [altered(measured, model=name, strategy=strategy) for strategy in ("z0", "z2")]
    seen = Parsed(page(make_run(tmp_path / "named", rows)))
    assert len(seen.all("script")) == 1
    assert not seen.all("i")
    assert not [attrs for _, attrs in seen.elements if "onload" in attrs]
    assert name in seen.text
    assert not [attrs for attrs in seen.all("a") if not attrs["href"].startswith(("#", "https://github.com/"))]
    assert {attrs["data-model"] for attrs in seen.all("tr") if "data-model" in attrs} == {name}


def test_a_strategys_and_a_runs_name_are_text_in_attributes_too(tmp_path, measured):
    name = '"><img src=x onerror=alert(1)>'
    seen = Parsed(page(make_run(tmp_path / "a'b&<u>", [altered(measured, name=name)])))
    assert not seen.all("img")
    assert not seen.all("u")
    assert {attrs["data-strategy"] for attrs in seen.all("tr") if "data-strategy" in attrs} == {name}
    assert seen.texts["h1"] == "a'b&<u>"
    assert seen.texts["title"].startswith("a'b&<u>")


def test_the_end_of_a_log_is_shown_and_never_acts(tmp_path, measured):
    tail = [
        "</script><script>alert(1)</script>",
        "\x1b[31;1mred\x1b[0m and \x1b]0;title\x07",
        "null \x00, bell \x07, back\x08, del \x7f, next \x85",
        "turned \u202ereve\u2066rsed",
        "half \ud83d of a pair",
        "<!-- open comment",
        "&lt;kept&gt; 'single' \"double\"",
    ]
    text = page(make_run(tmp_path / "log", [failed(measured, tail)]))
    text.encode()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2066]", text)
    seen = Parsed(text)
    assert len(seen.all("script")) == 1
    assert "</script><script>alert(1)</script>" in seen.texts["pre"]
    assert "red and \u241b]0;title\u2407" in seen.texts["pre"]
    assert "null \u2400, bell \u2407, back\u2408, del \u2421, next \ufffd" in seen.texts["pre"]
    assert "turned \\u202ereve\\u2066rsed" in seen.texts["pre"]
    assert "half \ufffd of a pair" in seen.texts["pre"]
    assert "&lt;kept&gt; 'single' \"double\"" in seen.texts["pre"]


def test_findings_reasons_and_failures_are_text(tmp_path, measured):
    bad = "<b onclick=alert(1)>x</b>"
    failure = Failure(rank=0, activity=bad, type=bad, message=bad, traceback=[bad + "\n"])
    row = failed(measured, []).model_copy(
        update={"reason": bad, "failure": failure, "findings": [Finding(check=bad, verdict="note", text=bad)]}
    )
    seen = Parsed(page(make_run(tmp_path / "failed", [row])))
    assert not [attrs for attrs in seen.all("b") if "onclick" in attrs]
    assert seen.text.count(bad) >= 6


def test_a_row_shows_its_configuration_whole_and_the_command_that_measures_it_again(run):
    text = page(run)
    record = run.records[0]
    part = text[text.index(f'<details class="cell" id="cell-{record.cell_id}-r0"') :]
    pres = [Parsed(found).texts["pre"] for found in re.findall(r"<pre.*?</pre>", part, flags=re.DOTALL)]
    shown = [json.loads(found) for found in pres[:2] if found.startswith("{")]
    assert record.effective in shown
    command = f"zerostage run scenarios/page.yaml --only {record.cell_id} --fresh --results"
    assert any(found.startswith(command) for found in pres)


def test_a_renamed_folder_has_no_command_and_says_why(run):
    run.folder.rename(run.folder.with_name("other"))
    seen = Parsed(page(read_run(run.folder.with_name("other"))))
    assert "the folder was renamed" in seen.text
    assert "--fresh" not in seen.texts.get("pre", "")


def test_rows_of_stacks_and_repeats_have_parts_of_their_own(tmp_path, measured):
    rows = [altered(measured, repeat=repeat, stack=stack) for repeat in (0, 1) for stack in (None, "deepspeed==0.17.5")]
    seen = Parsed(page(make_run(tmp_path / "stacks", rows)))
    parts = [attrs["id"] for attrs in seen.all("details") if attrs.get("class") == "cell"]
    assert parts == [part_id(r.cell_id, r.repeat, r.requested_stack) for r in read_run(tmp_path / "stacks").records]
    assert len(set(parts)) == 4


def test_what_a_launch_repeats_stands_at_the_first_alone(tmp_path, measured):
    other = {"effective": measured.effective | {"lr": 0.5}}
    rows = [measured, altered(measured, repeat=1), altered(measured, repeat=2, fields=other)]
    rows = [row.model_copy(update={"cell_id": measured.cell_id}) for row in rows]
    text = page(make_run(tmp_path / "launches", rows))
    parts = [part.split("</details>")[0] for part in text.split('<details class="cell"')[1:]]
    whole = [(part.count(">In effect<"), part.count('aria-label="Memory"')) for part in parts]
    assert whole == [(1, 1), (0, 0), (1, 0)]
    link = f': as in <a href="#cell-{measured.cell_id}-r0">the first launch</a>'
    assert f"Memory, traffic, configuration, launch command, command to run it again{link}" in parts[1]
    assert f"Memory, traffic, launch command, command to run it again{link}" in parts[2]
    assert '"lr": 0.5' in parts[2]


def test_only_a_run_on_several_gpus_is_without_the_warning(tmp_path, measured):
    warning = "No multi-GPU row has been measured here."
    assert warning in page(make_run(tmp_path / "cpu", [measured]))
    several = altered(measured, world_size=2, fields={"device": "cuda", "device_name": "H200"})
    emulated = load("v3-emulated.json")
    assert warning not in page(make_run(tmp_path / "gpus", [several, emulated]))
    one = altered(measured, world_size=1, fields={"device": "cuda", "device_name": "H200"})
    assert warning in page(make_run(tmp_path / "gpu", [one]))


def test_rows_without_figures_are_not_counted_as_measured_ones(tmp_path, measured):
    text = page(make_run(tmp_path / "some", [measured, failed(measured, [], strategy="z0")]))
    assert "2 measured rows (1 completed), on cpu" in text
    assert "1 measured row (none completed), on cpu" in page(make_run(tmp_path / "none", [failed(measured, [])]))


def test_a_row_known_to_be_wrong_shows_no_figure_in_the_index(tmp_path, measured):
    wrong = altered(measured, strategy="z1", fields={"validity": "invalid"})
    text = page(make_run(tmp_path / "wrong", [measured, wrong]))
    index = text[text.index('id="rows"') : text.index('id="cells"')]
    line = index[index.index(f"#cell-{wrong.cell_id}-r0") :].splitlines()[0]
    assert Parsed(line).text.count("MiB") == 0
    assert "MiB" in index


def searched(record, **settings):
    """Return a row whose micro batch was searched for."""
    tries = [
        BatchTry(train_micro_batch_size_per_gpu=2, how="measured", status="completed", fits=True, peak_bytes=2**20),
        BatchTry(train_micro_batch_size_per_gpu=4, how="measured", status="oom", fits=False, phase="forward"),
    ]
    return altered(record, largest_batch=BatchLimits(), fields={"batch_search": tries}, **settings)


def offloaded(record, **settings):
    names = RankOffload.model_fields
    kept = Offload(ranks=[RankOffload(**dict.fromkeys(names, 2**20))], predicted=[{}], node_host_peak_bytes=2**20)
    one = record.memory.model_copy(update={"ranks": record.memory.ranks[:1], "peak_allocated_rank": 0})
    return altered(record, fields={"offload": kept, "memory": one, "effective": {}}, **settings)


@pytest.fixture
def all_kinds(tmp_path, measured, emulated):
    """A run with every kind of table."""
    rows = [altered(measured, strategy=name) for name in ("z0", "z1", "z2")]
    rows += [measured, emulated, failed(measured, ["the end"], strategy="ddp"), searched(measured, strategy="z2")]
    rows += [offloaded(measured, name="z2-offload"), altered(measured, stack="deepspeed==0.17.5")]
    folder = tmp_path / "kinds"
    import_files([Path(__file__).parents[1] / "data" / "imports" / "all_results.json"], folder)
    return make_run(folder, rows)


def test_every_heading_of_a_column_is_defined(all_kinds):
    text = page(all_kinds)
    tables = text[text.index('id="comparisons"') : text.index('id="plots"')]
    tables += text[text.index('id="rows"') : text.index('id="cells"')]
    heads = set(re.findall(r'<th scope="col"[^>]*>([^<]+)', tables))
    assert {"N", "fails at", "pinned", "collectives", "which is", "vs best", "paper", "from"} <= heads
    known = set(re.findall(r"<dt>([^<]+)", text[text.index('id="definitions"') :]))
    assert {re.sub(r"^vs (?!best).*", "vs z0", head) for head in heads} <= known


def test_a_search_for_the_largest_batch_is_told(all_kinds):
    text = page(all_kinds)
    (row,) = (record for record in all_kinds.records if record.batch_search)
    part = text[text.index(f'id="cell-{row.cell_id}-r0"') :]
    part = part[: part.index("</details>")]
    table = part[part.index("Search for the largest batch") :]
    assert re.findall(r">(\w+)<td", table)[:1] == ["2"]
    assert '<td class="t oom">oom' in table


def test_a_run_of_imported_rows_alone_has_their_table_and_no_other_part(tmp_path):
    folder = tmp_path / "imported"
    import_files([Path(__file__).parents[1] / "data" / "imports" / "all_results.json"], folder)
    text = page(read_run(folder))
    assert re.findall(r'<h2 id="h-(\w+)"', text) == ["answer", "comparisons", "environment", "definitions"]
    seen = Parsed(text)
    assert "all_results.json" in seen.text
    assert "1 imported row: figures of other programs" in seen.text
    assert "No multi-GPU row has been measured here." in seen.text


def test_a_claim_with_rows_comes_first_and_names_them(run):
    text = page(run)
    claims = text[text.index('id="claims"') : text.index('id="rows"')]
    counts = [int(count) for count in re.findall(r"<summary>(\d+) rows? behind it", claims)]
    assert counts
    silent = re.search(r"<summary>(\d+) claims? on which this run has no row", claims)
    assert claims.rindex("behind it") < silent.start()
    assert len(re.findall(r'<article class="claim">', claims)) == len(counts) + int(silent[1])
    linked = set(re.findall(r'href="#cell-(\w+)-r0"', claims))
    assert linked
    assert linked <= {record.cell_id for record in run.records}


def test_a_figure_of_a_comparison_leads_to_the_row_that_it_is_of(run):
    text = page(run)
    compared = text[text.index('id="comparisons"') : text.index('id="h-notes"')]
    by_id = {record.cell_id: record for record in run.records}
    found = re.findall(r'data-strategy="(\w+)"[^>]*><th scope="row"><a href="#cell-(\w+)-r0">(\w+)</a>', compared)
    assert len(found) >= 4
    for strategy, cell_id, name in found:
        assert by_id[cell_id].cell.strategy == strategy == name


def test_a_page_that_cannot_be_written_is_the_users_to_mend(run, tmp_path):
    with pytest.raises(StoreError, match=r"missing.report\.html: cannot write .*--output"):
        write_page(run, tmp_path / "missing" / "report.html")


def test_the_same_run_gives_the_same_page(run, tmp_path):
    write_page(run, tmp_path / "a.html")
    write_page(run, tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def _colours(style):
    """Return the colours of the two schemes by their names."""
    light, dark = re.findall(r":root \{(.*?)\}", style, flags=re.DOTALL)[:2]
    found = [dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", block)) for block in (light, dark)]
    return {"light": found[0], "dark": found[1]}


def _contrast(a, b):
    """Return the ratio of WCAG 2.2 between two colours."""

    def luminance(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_stands_out_from_every_background_in_both_schemes():
    style = (Path(__file__).parents[2] / "bench" / "report" / "page.css").read_text()
    for scheme, colours in _colours(style).items():
        for ink in ("ink", "soft", "link", "accent", "good", "warn", "bad"):
            for ground in ("bg", "faint", "hover", "note"):
                ratio = _contrast(colours[ink], colours[ground])
                assert ratio >= 4.5, f"{scheme}: --{ink} on --{ground} is {ratio:.2f}"
