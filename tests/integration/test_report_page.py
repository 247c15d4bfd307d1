"""The HTML report as a person meets it, in Debian's chromium: from disk, by mouse and by keyboard, wide and narrow."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import zerostage

from bench.report.page import write_page
from bench.runs import read_run

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="no chromium and chromedriver here (Debian: chromium, chromium-driver)"
    ),
]
WIDTHS = (1280, 390)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A real run: two stages on three GPU counts, emulated."""
    results = tmp_path_factory.mktemp("results")
    argv = ["--model", "llama-tiny", "--gpus", "2,4,8", "--strategy", "z1,z3", "--seq-length", "32"]
    done = zerostage("emulate", *argv, "--results", results)
    assert done.returncode == 0, done.stderr
    return results / "emulate"


@pytest.fixture(scope="module")
def report(folder):
    path = folder / "report.html"
    write_page(read_run(folder), path)
    return path


@pytest.fixture(scope="module")
def chromium():
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(300)
    yield driver
    driver.quit()


class Page:
    """A page in the browser. Leaving it, nothing may have been logged, and nothing fetched."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, path, fragment="", width=1280, scheme="light", script=True):
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not script})
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
        self.driver.get("about:blank")  # from one fragment to another the page would stay
        self.driver.get(path.resolve().as_uri() + fragment)
        return self

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def all(self, css):
        return self.driver.find_elements("css selector", css)

    def one(self, css):
        return self.driver.find_element("css selector", css)

    def column(self, css, at):
        """Return the texts of a column of the first table below ``css``, of the rows that are shown."""
        script = """const table = document.querySelector(arguments[0] + " table");
            return [...table.tBodies[0].rows].filter((row) => !row.hidden)
                .map((row) => row.cells[arguments[1]].textContent);"""
        return self.run(script, css, at)

    def press(self, *keys):
        from selenium.webdriver import ActionChains

        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def focused(self):
        return self.driver.switch_to.active_element


@pytest.fixture
def seen(chromium):
    chromium.get_log("browser")
    page = Page(chromium)
    yield page
    assert chromium.get_log("browser") == []
    assert page.run("return performance.getEntriesByType('resource').map((entry) => entry.name)") == []
    page.open(Path(__file__), script=True)


def heading(page, section, name):
    """Return the button in the heading of the column ``name`` of the first table of a section."""
    found = [b for b in page.all(f"{section} table:first-of-type th button") if b.text.strip() == name]
    return found[0]


def sizes(texts):
    units = {"MiB": 2**20, "GiB": 2**30}
    return [float(number.replace(",", "")) * units[unit[:3]] for number, unit in (text.split() for text in texts)]


def test_a_press_on_a_heading_sorts_up_down_and_back(report, seen):
    seen.open(report)
    first = seen.column("#rows", 0)
    button = heading(seen, "#rows", "peak per GPU")
    at = int(button.find_element("xpath", "..").get_attribute("data-c"))
    numbers = sizes(seen.column("#rows", at))
    assert numbers != sorted(numbers)
    for direction, expected in (("ascending", sorted(numbers)), ("descending", sorted(numbers, reverse=True))):
        button.click()
        assert button.find_element("xpath", "..").get_attribute("aria-sort") == direction
        assert sizes(seen.column("#rows", at)) == expected
        assert len(seen.all("#rows [aria-sort]")) == 1
    button.click()
    assert seen.all("#rows [aria-sort]") == []
    assert seen.column("#rows", 0) == first


def test_units_are_part_of_the_number_and_words_come_last(report, seen):
    """The cells of one column are replaced by what other runs have in them."""
    seen.open(report)
    button = heading(seen, "#rows", "peak per GPU")
    at = int(button.find_element("xpath", "..").get_attribute("data-c"))
    texts = ["2.00 GiB", "oom", "1,023.00 MiB", "9.50 MiB?", "", "900.00 MiB†"]
    script = """[...document.querySelector("#rows table").tBodies[0].rows]
        .forEach((row, number) => { row.cells[arguments[0]].textContent = arguments[1][number]; });"""
    seen.run(script, at, texts)
    button.click()
    assert seen.column("#rows", at) == ["9.50 MiB?", "900.00 MiB†", "1,023.00 MiB", "2.00 GiB", "oom", ""]
    button.click()
    assert seen.column("#rows", at) == ["2.00 GiB", "1,023.00 MiB", "900.00 MiB†", "9.50 MiB?", "oom", ""]


def choose(page, section, label, value):
    from selenium.webdriver.support.select import Select

    for each in page.all(f"{section} .filter label"):
        if each.text.startswith(label):
            Select(each.find_element("css selector", "select")).select_by_value(value)


def test_choices_and_words_leave_the_rows_that_fit(report, seen):
    seen.open(report)
    count = seen.one("#rows .count")
    assert count.text == "6 of 6 rows"
    choose(seen, "#rows", "Strategy", "z3")
    assert count.text == "3 of 6 rows"
    assert set(seen.column("#rows", 1)) == {"z3"}
    choose(seen, "#rows", "GPUs", "4")
    assert seen.column("#rows", 2) == ["4"]
    search = seen.one("#rows input[type=search]")
    search.send_keys("nothing like this")
    assert count.text == "0 of 6 rows"
    assert not seen.one("#rows table").is_displayed()
    assert "No row matches" in seen.one("#rows .empty").text
    seen.one("#rows .filter button").click()
    assert count.text == "6 of 6 rows"
    assert not seen.one("#rows .empty").is_displayed()


def test_a_gpu_count_hides_the_other_columns_of_a_comparison(report, seen):
    seen.open(report)
    choose(seen, "#comparisons", "GPUs", "8")
    shown = [head.text for head in seen.all("#comparisons thead th[data-n]") if head.is_displayed()]
    assert shown
    assert set(shown) == {"N=8"}
    titles = [span.text for span in seen.all("#comparisons caption span") if span.is_displayed()]
    assert [title for title in titles if title.startswith("N=")] == ["N=8, emulated"]
    by_metric = seen.run(
        """const table = document.querySelector("#comparisons th[data-n]").closest("table");
        return [...table.rows].slice(1).map((row) => [...row.cells].filter((cell) => !cell.hidden).length);"""
    )
    assert by_metric == [3, 4, 4]  # three columns of N=8; below them the name too


def test_a_link_of_the_index_opens_the_rows_part(report, seen):
    seen.open(report)
    link = seen.all("#rows tbody a")[3]
    name, label = link.get_attribute("href").split("#")[1], link.text
    assert seen.one(f"[id='{name}']").get_attribute("open") is None
    link.click()
    part = seen.one(f"[id='{name}']")
    assert part.get_attribute("open") is not None
    assert part.find_element("css selector", "summary b").text == label
    assert part.find_element("css selector", "pre").is_displayed()
    assert seen.run(
        "const box = arguments[0].getBoundingClientRect(); return box.top < innerHeight && box.top >= 0", part
    )


def test_a_figure_of_a_comparison_leads_to_its_row(report, seen):
    seen.open(report)
    links = seen.all("#comparisons tbody td a")
    assert links
    name = links[-1].get_attribute("href").split("#")[1]
    links[-1].click()
    label = seen.one(f"[id='{name}'] summary b").text
    assert "/z3/w8" in label
    assert seen.one(f"[id='{name}']").get_attribute("open") is not None


def test_an_address_with_a_fragment_opens_the_part(report, folder, seen):
    record = read_run(folder).records[-1]
    seen.open(report, f"#cell-{record.cell_id}-r0")
    part = seen.one(f"#cell-{record.cell_id}-r0")
    assert part.get_attribute("open") is not None
    assert seen.focused().tag_name == "summary"
    assert len(seen.all("details.cell[open]")) == 1


def test_a_part_opens_and_closes_by_its_summary(report, seen):
    seen.open(report)
    part = seen.all("details.cell")[0]
    summary = part.find_element("css selector", "summary")
    for expected in (True, False):
        summary.click()
        assert (part.get_attribute("open") is not None) is expected


def test_everything_can_be_done_without_a_mouse(report, seen):
    from selenium.webdriver import Keys

    seen.open(report)
    seen.press(Keys.TAB)
    assert seen.focused().get_attribute("class") == "skip"
    assert seen.focused().rect["x"] >= 0
    seen.press(Keys.ENTER)
    assert seen.focused().get_attribute("id") == "main"
    reached = set()
    for _ in range(400):
        seen.press(Keys.TAB)
        at = seen.focused()
        if at.tag_name == "body":
            break
        outline = seen.run("const style = getComputedStyle(arguments[0]); return style.outlineStyle", at)
        assert outline != "none", at.get_attribute("outerHTML")[:200]
        if at.tag_name == "button" and at.text.strip() == "peak per GPU":
            seen.press(Keys.ENTER)
            assert at.find_element("xpath", "..").get_attribute("aria-sort") == "ascending"
            seen.press(Keys.SPACE)
            assert at.find_element("xpath", "..").get_attribute("aria-sort") == "descending"
        if at.tag_name == "summary" and at.find_element("xpath", "..").get_attribute("class") == "cell":
            reached.add("part")
            seen.press(Keys.ENTER)
            assert at.find_element("xpath", "..").get_attribute("open") is not None
            break
        reached.add(at.tag_name)
    assert {"input", "select", "button", "a", "part"} <= reached


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_and_nothing_sticks_out(report, seen, width, scheme):
    from axe_core_python.selenium import Axe

    seen.open(report, width=width, scheme=scheme)
    # One row's part of each kind is enough, and axe takes seconds for each thousand elements.
    seen.run("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    seen.run("document.querySelectorAll('details.cell').forEach((part, number) => { if (number > 1) part.remove(); })")
    found = Axe().run(seen.driver)
    assert [(each["id"], each["nodes"][0]["html"]) for each in found["violations"]] == []
    assert {"color-contrast", "label", "link-name", "scrollable-region-focusable"} <= {p["id"] for p in found["passes"]}
    wide, room = seen.run("const root = document.documentElement; return [root.scrollWidth, root.clientWidth]")
    assert wide <= room


def test_schemes_differ_and_follow_the_reader(report, seen):
    grounds = []
    for scheme in ("light", "dark"):
        seen.open(report, scheme=scheme)
        grounds.append(seen.run("return getComputedStyle(document.body).backgroundColor"))
    light, dark = (sum(int(part) for part in ground[4:-1].split(", ")) for ground in grounds)
    assert light > 3 * 200
    assert dark < 3 * 60


def test_without_scripts_all_of_it_can_be_read(report, chromium):
    page = Page(chromium)
    page.open(report, script=False)
    try:
        tree = chromium.execute_cdp_cmd("DOM.getDocument", {"depth": -1})
        text = chromium.execute_cdp_cmd("DOM.getOuterHTML", {"nodeId": tree["root"]["nodeId"]})["outerHTML"]
    finally:
        page.open(report)
    assert text.count('<details class="cell"') == 6
    assert "<button" not in text
    assert text.count('class="filter"') == text.count('hidden=""></div>') == 2


def test_on_paper_the_page_has_no_controls(report, seen):
    seen.open(report)
    seen.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        for css in (".toc", ".filter", ".command button"):
            assert not [each for each in seen.all(css) if each.is_displayed()], css
        assert seen.one("#comparisons table th").is_displayed()
        assert heading(seen, "#rows", "peak per GPU").is_displayed()
    finally:
        seen.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_the_command_is_copied_or_left_selected(report, folder, seen):
    record = read_run(folder).records[0]
    seen.open(report, f"#cell-{record.cell_id}-r0")
    seen.driver.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    box = seen.all(f"#cell-{record.cell_id}-r0 .command")[-1]
    box.find_element("css selector", "button").click()
    assert record.cell_id in box.find_element("css selector", "pre").text
    seen.run("return new Promise((done) => setTimeout(done, 200))")
    assert box.find_element("css selector", "button").text in ("Copied", "Selected")


def test_names_and_logs_from_outside_stay_text(folder, tmp_path, seen):
    bad = "</script><script>window.acted = 1</script><img src=x onerror='window.acted = 2'>"
    other = shutil.copytree(folder, tmp_path / "emulate")
    path = sorted((other / "records").glob("*.json"))[0]
    data = json.loads(path.read_text())
    data["cell"]["model"] = data["label"] = bad
    data |= {"status": "crashed", "reason": bad, "memory": None, "comm": None, "emulation": None, "practice": None}
    data["launch"]["log_tail"] = [bad, "\x1b[31mred\x1b[0m \x00 \u202e"]
    path.write_text(json.dumps(data))
    report = other / "report.html"
    write_page(read_run(other), report)
    seen.open(report, f"#cell-{data['cell_id']}-r0")
    part = seen.one(f"#cell-{data['cell_id']}-r0")
    assert part.find_element("css selector", "summary b").text == bad
    assert part.find_element("css selector", ".log").text == f"{bad}\nred \u2400 \\u202e"
    choose(seen, "#rows", "Model", bad)
    assert seen.one("#rows .count").text == "1 of 6 rows"
    assert seen.run("return window.acted") is None
    assert seen.all("img") == []
    # What the policy would stop, were a script to get in.
    seen.run(
        """const made = document.createElement("script");
        made.textContent = "window.acted = 3";
        document.body.append(made);"""
    )
    assert seen.run("return window.acted") is None
    (refusal,) = seen.driver.get_log("browser")
    assert "Content Security Policy" in refusal["message"]
