"""The skip list of CI, on small suites of its own."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

SUITE = """
import pytest

def test_passes(): pass

@pytest.mark.skip(reason="no network here")
def test_network(): pass

@pytest.mark.parametrize("size", [1, 2])
def test_fixture(machine, size): pass

@pytest.fixture
def machine(): pytest.skip("a machine of 1 core")

@pytest.mark.xfail(reason="known", strict=True)
def test_known(): assert False

@pytest.mark.xfail(reason="not run", run=False)
def test_known_and_not_run(): assert False
"""
BOTH = "test_suite.py::test_network: no network*\ntest_suite.py::test_fixture*: a machine of ? core\n"


@pytest.fixture
def suite_folder(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder whose conftest.py is that of this project."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)  # CI puts the real list there
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # nothing but the conftest.py, and quick
    pytester.makeconftest((Path(__file__).parents[1] / "conftest.py").read_text())
    return pytester


@pytest.fixture
def run(suite_folder: pytest.Pytester):
    """Return a function that runs a suite under a list of allowed skips."""

    def run(allowed: str, suite: str = SUITE, *arguments: str) -> pytest.RunResult:
        suite_folder.makepyfile(test_suite=suite)
        suite_folder.path.joinpath("allowed.txt").write_text(allowed)
        return suite_folder.runpytest("--allowed-skips=allowed.txt", *arguments)

    return run


def test_listed_skips_pass_and_are_printed_with_their_reasons(run) -> None:
    result = run("# a comment\n\n" + BOTH)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        [
            "allowed: test_suite.py::test_network: no network here",
            "allowed: test_suite.py::test_fixture[[]1]: a machine of 1 core",
            "allowed: test_suite.py::test_fixture[[]2]: a machine of 1 core",
        ]
    )
    result.stdout.no_fnmatch_line("note: *")
    result.stdout.no_fnmatch_line("*NOT ALLOWED*")


def test_a_skip_that_is_not_listed_fails_the_run_by_name_and_reason(run) -> None:
    result = run(BOTH.splitlines()[1])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, skipped=3, xfailed=2)
    result.stdout.fnmatch_lines(["NOT ALLOWED: test_suite.py::test_network: no network here", "error: *allowed.txt*"])


def test_the_reason_must_match_too(run) -> None:
    result = run(BOTH.replace("no network*", "no disk*"))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["NOT ALLOWED: test_suite.py::test_network: no network here"])


def test_an_entry_that_matches_nothing_is_named_and_does_not_fail(run) -> None:
    result = run(BOTH + "test_gone.py::*: long ago\n")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["note: allowed.txt:3 matched no skip of this run: test_gone.py::[*]: long ago"])


def test_a_module_that_skips_itself_fails_the_run(run) -> None:
    result = run("", "import pytest\npytest.importorskip('no_such_module_anywhere')\n")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["NOT ALLOWED: test_suite.py: could not import 'no_such_module_anywhere'*"])


def test_deselected_tests_are_no_skips(run) -> None:
    assert run("", SUITE, "-k", "passes").ret == pytest.ExitCode.OK


def test_other_failures_keep_their_exit_status(run) -> None:
    assert run("", "def test_fails(): assert False").ret == pytest.ExitCode.TESTS_FAILED
    assert run("", "").ret == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.parametrize("line", ["test_suite.py::test_network", "a:b"])
def test_a_line_that_is_not_an_entry_is_refused(run, line: str) -> None:
    result = run("# why\n" + line)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: allowed.txt:2: '{line}' is not 'node id glob: reason glob'"])


def test_a_list_that_is_not_there_is_refused(suite_folder: pytest.Pytester) -> None:
    result = suite_folder.runpytest("--allowed-skips=nowhere.txt")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*nowhere.txt*No such file*"])


def test_without_the_option_a_skip_is_a_skip(suite_folder: pytest.Pytester) -> None:
    suite_folder.makepyfile(test_suite=SUITE)
    result = suite_folder.runpytest()
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*skips, by*")
