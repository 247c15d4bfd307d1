"""``zerostage plan --ds-config``: verdicts by formula, and one message for a mistake."""

import io
import json
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

from bench.cli import main
from bench.fit import Asked, show_fit, verdict
from bench.plan import PlannedCell, Resources, plan
from bench.scenario import Scenario

FOLDER = Path(__file__).parents[2] / "scenarios" / "llama_factory"
FILES = sorted(FOLDER.glob("*.json"))


def asked(**changes: object) -> Asked:
    settings: dict[str, object] = {
        "model": "llama-3.1-8b",
        "gpus": "8",
        "gpu": "H100 SXM",
        "gpu_memory_gib": None,
        "gpus_per_node": 8,
        "seq_length": None,
        "micro_batch": None,
        "gas": None,
        "dtype": None,
        "activation_checkpointing": False,
    }
    return Asked(**settings | changes)  # type: ignore[arg-type]


def shown(paths: list[Path], **changes: object) -> str:
    console = Console(record=True, width=220, file=io.StringIO())
    show_fit(paths, asked(**changes), "0.19.8", console)
    return console.export_text()


def verdicts(text: str) -> dict[str, str]:
    """Return the word of the last column by configuration."""
    rows = [line.split("│")[1:-1] for line in text.splitlines() if line.startswith("│")]
    return {row[0].strip(): re.match(r"[a-z ]+[a-z]", row[-1].strip())[0] for row in rows}  # type: ignore[index]


def test_which_of_llama_factorys_files_fit_an_8b_model_on_8_gpus():
    """Stage 0 keeps 16 B per parameter, 120 GiB, and its fp32 gradients besides; every other file fits."""
    text = shown(FILES)
    found = verdicts(text)
    assert found.pop("ds_z0_config") == "does not fit"
    assert set(found) == {path.stem for path in FILES} - {"ds_z0_config"}
    assert set(found.values()) == {"fits"}
    assert "llama-3.1-8b (8,030.3M parameters) on GPUs of 80 GiB, by formula" in text
    assert "note: " in text


def test_a_smaller_gpu_changes_the_verdict_and_offload_needs_the_host():
    paths = [FOLDER / "ds_z2_config.json", FOLDER / "ds_z2_offload_config.json"]
    text = shown(paths, gpu_memory_gib=40)
    assert verdicts(text) == {"ds_z2_config": "does not fit", "ds_z2_offload_config": "close"}
    host = {row.split("│")[1].strip(): row.split("│")[-3].strip() for row in text.splitlines() if row.startswith("│")}
    assert host["ds_z2_config"] == "-"
    assert float(host["ds_z2_offload_config"]) > 8.03e9 * 18 / 2**30  # all ranks of the node together


def entries(**matrix: object) -> list[PlannedCell]:
    emulation = {"gpu_memory_gib": matrix.pop("gib", 80)}
    axes = {"model": "llama-tiny", "world_size": 2, "seq_length": 64, "mode": "emulated"} | matrix
    scenario = Scenario.model_validate({"matrix": axes, "emulation": emulation})
    return plan(scenario, Resources(device="cpu", slots=0, memory_bytes=0, shared=True, deepspeed="0.19.8"))


@pytest.mark.parametrize(
    ("gib", "words", "share"), [(2.0, "fits", "(47%)"), (1.0, "close: ", "(93%)"), (0.9, "does not fit", "(104%)")]
)
def test_the_words_of_a_verdict(gib: float, words: str, share: str):
    """One bucket of 5e8 elements, 1 GB in bf16, is nearly all that a tiny model holds."""
    (entry,) = entries(strategy="z2", gib=gib)
    found, device, host = verdict(entry)
    assert device == pytest.approx(1e9, rel=0.05)
    assert found.startswith(words)
    assert found.endswith(share)
    assert host == 0


def test_what_has_no_formula_and_what_is_refused_have_their_words():
    (entry,) = entries(model="mixtral-tiny", strategy="z2")
    found, device, host = verdict(entry)
    assert found.startswith("no formula for this ")
    assert (device, host) == (None, None)
    (entry,) = entries(strategy="zpp-hpz")
    found, device, host = verdict(entry)
    assert found.startswith("skipped: zero_hpz_partition_size: ")
    assert (device, host) == (None, None)


def test_the_host_is_that_of_all_ranks_of_a_node():
    one, two = (verdict(entry)[2] for entry in entries(strategy="z3-offload", world_size=[1, 2]))
    assert one is not None
    assert two is not None
    assert one == pytest.approx(two, rel=0.001)  # twice as many ranks, each with half


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[object, str]:
    monkeypatch.setattr(sys, "argv", ["zerostage", "plan", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ds-config", FILES[0]], ["--ds-config needs --model"]),
        (["--ds-config", FILES[0], "--model", "llama-3.1-8c"], ["llama-3.1-8c", "did you mean 'llama-3.1-8b'"]),
        (["--ds-config", FILES[0], "--model", "llama-tiny", "--gpu", "H300"], ["unknown GPU 'H300'"]),
        (["--ds-config", FILES[0], "--model", "llama-tiny", "--gpus", "8,x"], ["--gpus", "whole numbers"]),
        (["--ds-config", "/nowhere/at/all.json", "--model", "llama-tiny"], ["/nowhere/at/all.json"]),
        ([], ["plan needs one scenario file", "--ds-config"]),
    ],
)
def test_a_mistake_is_one_message(monkeypatch, capsys, arguments, words):
    code, text = run(monkeypatch, capsys, *arguments)
    assert code == 2
    assert text.startswith("error: ")
    assert len(text.splitlines()) == 1
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", ["wrong.json"]),
        (json.dumps({"zero_optimisation": {"stage": 2}}), ["wrong.json", "zero_optimisation"]),
        (json.dumps({"zero_optimization": {"stage": 7}}), ["wrong.json", "stage"]),
    ],
)
def test_a_wrong_file_is_named_before_anything_is_shown(monkeypatch, capsys, tmp_path, content, words):
    (tmp_path / "wrong.json").write_text(content)
    files = [FILES[0], tmp_path / "wrong.json"]
    code, text = run(monkeypatch, capsys, "--ds-config", *files, "--model", "llama-tiny")
    assert code == 2
    assert text.startswith("error: ")
    for word in words:
        assert word in text
    assert capsys.readouterr().out == ""
