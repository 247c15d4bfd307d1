"""``zerostage emulate``: a scenario put together from options, kept as a file beside its run folder."""

import os
from pathlib import Path
from typing import Any

from bench.errors import ScenarioError
from bench.models.catalog import load_config, max_positions
from bench.scenario_file import parse_scenario
from bench.store import locked, write_json

_SEQ_LENGTH = 2048


def numbers(option: str, text: str) -> list[int]:
    """Return the whole numbers of a list such as ``8,64,1024``.

    Raises:
        ScenarioError: one of them is none.
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ScenarioError(f"{option}: whole numbers with commas between are needed (got '{text}')") from None


def words(text: str) -> list[str]:
    """Return the words of a list such as ``z1,z3``."""
    return [part.strip() for part in text.split(",")]


def strategies(text: str) -> list[Any]:
    """Return the strategies of a list such as ``z1,./ds_z3.json``: names, and files as a scenario has them."""
    return [
        {"config": os.path.abspath(word)} if word.endswith((".json", ".yaml", ".yml")) else word  # noqa: PTH100
        for word in words(text)
    ]


def placed(model: str) -> str:
    """Return a path from where the user stands as one that holds from anywhere."""
    return os.path.abspath(model) if model.startswith(("./", "../")) else model  # noqa: PTH100


def given(values: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given; the others keep a scenario's defaults."""
    return {key: value for key, value in values.items() if value is not None}


def longest(models: list[str]) -> int:
    """Return a sequence length that every model takes, 2048 at most."""
    configs = [load_config(placed(model)) for model in models]
    return min([_SEQ_LENGTH, *(size for size in map(max_positions, configs) if size is not None)])


def write_scenario(results: Path, matrix: dict[str, Any], emulation: dict[str, Any], **settings: Any) -> Path:
    """Write the scenario of an emulation to ``results``/emulate.yaml; return its path.

    Settings that are ``None`` keep their defaults. Rows of earlier calls stay in the run folder of that name, and are
    not computed again.

    Raises:
        ScenarioError: an option is wrong.
        StoreError: the file cannot be written, or another call is running.
    """

    if matrix.get("seq_length") is None:
        matrix = matrix | {"seq_length": longest(matrix["model"])}
    matrix = given(matrix) | {"mode": "emulated"}
    matrix["model"] = [placed(model) for model in matrix["model"]]
    content = given({"matrix": matrix, "emulation": given(emulation), **settings})
    parse_scenario(content, "zerostage emulate")
    path = results / "emulate.yaml"
    with locked(results / path.stem):  # a call that is still running goes by the file too
        write_json(path, content)  # which is YAML as well
    return path
