"""The wheel, installed without extras in an empty environment: plan and report work, torch is nowhere."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest
from conftest import zerostage

ROOT = Path(__file__).parents[2]
# What pandas, Parquet and plots bring, some 400 MB, and what every environment has.
NOT_OURS = (
    *("pandas", "numpy", "python_dateutil", "dateutil", "tzdata", "pytz", "six", "pip", "setuptools"),
    *("pyarrow", "seaborn", "matplotlib", "mpl_toolkits", "fonttools", "pillow", "pil", "contourpy", "kiwisolver"),
)


def call(*argv):
    return subprocess.run([str(part) for part in argv], capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def light(tmp_path_factory):
    folder = tmp_path_factory.mktemp("light")
    built = call(sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("zerostage-*.whl")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    installed = call(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel)
    assert installed.returncode == 0, installed.stderr
    return folder / "venv"


def test_there_is_no_torch(light):
    found = call(light / "bin" / "python", "-c", "import torch")
    assert "No module named 'torch'" in found.stderr


def test_it_is_small(light):
    (packages,) = (light / "lib").glob("python*/site-packages")
    ours = [
        path
        for entry in packages.iterdir()
        if not entry.name.lower().startswith(NOT_OURS)
        for path in ([entry] if entry.is_file() else entry.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    ]
    assert 0 < sum(path.stat().st_size for path in ours) < 50e6


def test_plan_works_from_anywhere(light, tmp_path):
    done = subprocess.run(
        [light / "bin" / "zerostage", "plan", ROOT / "scenarios" / "smoke.yaml"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "20 cells" in done.stdout


def test_report_reads_a_run_made_elsewhere(light, scenario_file):
    path = scenario_file({"strategy": ["z0", "z1"], "world_size": 99})
    zerostage("run", path, "--results", path.parent / "runs")
    done = call(light / "bin" / "zerostage", "report", path.parent / "runs" / path.stem)
    assert done.returncode == 0, done.stderr
    assert "world_size 99 is above the" in done.stdout
    page = call(light / "bin" / "zerostage", "report", path.parent / "runs" / path.stem, "--format", "html")
    assert page.returncode == 0, page.stderr
    assert "world_size 99 is above the" in (path.parent / "runs" / path.stem / "report.html").read_text()
    claims = call(light / "bin" / "zerostage", "report", "claims", ROOT / "results" / "reference" / "claims")
    assert "no-stage1" in claims.stdout, claims.stderr


def test_run_says_what_to_install(light, scenario_file):
    path = scenario_file({"strategy": "z0"})
    done = call(light / "bin" / "zerostage", "run", path, "--results", path.parent / "runs")
    assert done.returncode == 2
    assert "torch, deepspeed, transformers not installed" in done.stderr
    assert "pip install 'zerostage[run]'" in done.stderr
    assert "Traceback" not in done.stderr
