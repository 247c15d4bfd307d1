"""YAML in, a `bench.scenario.Scenario` out; what is wrong in it, in the words of somebody who writes YAML."""

import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from bench.errors import ScenarioError, nearest
from bench.scenario import Data, Emulation, Freeze, LargestBatch, Lora, Matrix, Optimizer, Rule, Scenario, shown
from bench.yaml_keys import UniqueKeys


class _Loader(UniqueKeys):
    """Reads ``1e9`` as the number that its author meant."""


def _number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int | float:
    value = float(loader.construct_yaml_float(node))
    return int(value) if "e" in node.value.lower() and value.is_integer() else value


_Loader.add_constructor("!exponent", _number)
_Loader.add_constructor("tag:yaml.org,2002:float", _number)  # YAML's own float has a point and a signed exponent
_Loader.add_implicit_resolver("!exponent", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789"))


# What pydantic says of a wrong type, in the words of somebody who writes YAML.
_EXPECTED = {
    "int_type": "a whole number is needed",
    "int_from_float": "a whole number is needed",
    "float_type": "a number is needed",
    "bool_type": "true or false is needed",
    "string_type": "a word is needed",
    "tuple_type": "a list is needed: start each rule with '- '",
    "dict_type": "a mapping (key: value) is needed",
    "model_type": "a mapping (key: value) is needed",
}


def _describe(error: Any) -> str:
    """Put one pydantic error in words: the dotted key, what is wrong, and the nearest valid key."""
    steps = list(error["loc"])
    key = ".".join(str(step) for step in steps)
    if error["type"] == "extra_forbidden":
        owner: Any = {
            "matrix": Matrix,
            "exclude": Rule,
            "include": Rule,
            "data": Data,
            "optimizer": Optimizer,
            "lora": Lora,
            "freeze": Freeze,
            "emulation": Emulation,
            "largest_batch": LargestBatch,
        }
        fields = (owner[steps[0]] if len(steps) > 1 else Scenario).model_fields
        elsewhere = " (an axis: it belongs under 'matrix')" if len(steps) == 1 and key in Matrix.model_fields else ""
        hint = elsewhere or nearest(steps[-1], fields)
        return f"unknown key '{key}'{hint}; valid here: {', '.join(fields)}"
    if error["type"] == "missing":
        return f"'{key}' is required"
    message = _EXPECTED.get(error["type"], error["msg"].removeprefix("Value error, "))
    if isinstance(error["input"], str) and error["type"] in ("int_type", "float_type", "bool_type"):
        message += ", written without quotes"
    if error["type"] == "literal_error":
        message += nearest(error["input"], re.findall(r"'([^']+)'", error["ctx"]["expected"]))
    if not key:  # of the scenario as a whole
        return str(message)
    given = "" if error["type"] == "value_error" else f" (got {shown(error['input'])})"
    return f"'{key}': {message}{given}"


def _beside(folder: Path, data: dict[Any, Any]) -> dict[Any, Any]:
    """Read relative paths as relative to the scenario's folder, wherever the user stands."""

    def model(value: Any) -> Any:
        if not isinstance(value, str) or not value.startswith(("./", "../")):
            return value
        # Without the dot it could be taken for a catalog name.
        return str(folder / value) if folder.is_absolute() else f"./{folder / value}"

    def strategy(value: Any) -> Any:
        if not isinstance(value, dict) or not isinstance(value.get("config"), str) or not value["config"]:
            return value
        return value | {"config": str(folder / Path(value["config"]).expanduser())}

    def rule(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for axis, placed in (("model", model), ("strategy", strategy)):
            if axis in value:
                asked = value[axis]
                value = value | {axis: [placed(item) for item in asked] if isinstance(asked, list) else placed(asked)}
        return value

    for key in {"matrix", "exclude", "include"} & data.keys():
        rules = data[key]
        data = data | {key: [rule(item) for item in rules] if isinstance(rules, list) else rule(rules)}
    corpus = data.get("data")
    if isinstance(corpus, dict) and isinstance(corpus.get("path"), str) and corpus["path"]:
        data["data"] = corpus | {"path": str(folder / Path(corpus["path"]).expanduser())}
    return data


def load_scenario(path: Path) -> Scenario:
    """Read a scenario file. Paths in it (``./model``, ``data.path``) are relative to its folder.

    Raises:
        ScenarioError: the file cannot be read, is not YAML, or a key or value in it is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"{path}: cannot read the scenario: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: cannot read the scenario: not UTF-8 text ({error.reason})") from None
    try:
        data = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ScenarioError(f"{path}: not valid YAML: {error}") from None
    # What PyYAML's constructors raise when a tag is on a value of another kind (`!!bool abc`, `!!map [a]`).
    except (ValueError, RecursionError, TypeError, LookupError, AttributeError) as error:
        raise ScenarioError(f"{path}: not a scenario: {error}") from None
    if not isinstance(data, dict):
        raise ScenarioError(f"{path}: a scenario is a mapping with a 'matrix' section; see scenarios/smoke.yaml")
    return parse_scenario(_beside(path.parent, data), str(path))


def parse_scenario(data: dict[Any, Any], name: str) -> Scenario:
    """Check the content of a scenario; ``name`` says in messages where it comes from.

    Raises:
        ScenarioError: a key or value in it is wrong.
    """
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        problems = [f"{name}: {_describe(item)}" for item in error.errors()]
        raise ScenarioError("\n".join(dict.fromkeys(problems))) from None
