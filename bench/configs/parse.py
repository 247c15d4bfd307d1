"""A file's text -> plain data. Everything that is wrong with the text is said here, with its line."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from bench.errors import ScenarioError
from bench.yaml_keys import UniqueKeys

MAX_NODES = 20_000
MAX_DEPTH = 50

# Jinja ({{ zero_stage }}, {% if %}), shell ($ZERO_STAGE, ${ZERO_STAGE:-1}), and a bare word in capitals as in
# Megatron-DeepSpeed's templates (CONFIG_MBSIZE). `.weight$` in a pattern is none of them.
_PLACEHOLDER = re.compile(r"\{\{[^{}\n]*\}\}|\{%[^\n]*?%\}|\$\{[A-Za-z_][^}\n]*\}|\$[A-Za-z_][A-Za-z0-9_]*")
_BARE_WORD = re.compile(r"[A-Z][A-Z0-9]*_[A-Z0-9_]+\b")
_FILL_IN = "a template: fill it in before the suite reads it"


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the mapping that ``path`` holds: JSON where its name ends so or its text starts with ``{``, else YAML.

    Raises:
        ScenarioError: it cannot be read, is neither, is a template, or holds a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"{path}: cannot read the configuration: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: cannot read the configuration: not UTF-8 text ({error.reason})") from None
    except ValueError as error:  # a null character in the path
        raise ScenarioError(f"{str(path)!r}: cannot read the configuration: {error}") from None
    if text.startswith("\ufeff"):
        raise ScenarioError(f"{path}: line 1 starts with a byte order mark; save the file as UTF-8 without BOM")
    is_json = path.suffix == ".json" or (path.suffix not in (".yaml", ".yml") and text.lstrip().startswith("{"))
    data = _json(path, text) if is_json else _yaml(path, text)
    if not isinstance(data, dict):
        kind = "empty" if data is None else "a list" if isinstance(data, list) else "a single value"
        raise ScenarioError(f"{path}: a configuration is a mapping (key: value); this file is {kind}")
    _check_size(path, data)
    return data


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _template(path: Path, text: str) -> ScenarioError | None:
    found = _PLACEHOLDER.search(text)
    if found is None:
        return None
    return ScenarioError(f"{path}: line {_line(text, found.start())}: the placeholder {found[0]} is not filled in; "
                         f"this is {_FILL_IN}")  # fmt: skip


def _json(path: Path, text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        data = dict(pairs)
        if len(data) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"the key '{twice}' is given twice; keep one (DeepSpeed refuses such a file too)")
        return data

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise _template(path, text) or ScenarioError(f"{path}: {_what_json(text, error)}") from None
    except ValueError as error:  # of the hook; or a number of more digits than Python reads
        digits = "a number has more digits than any that a configuration holds"
        raise ScenarioError(f"{path}: {digits if 'digits' in str(error) else error}") from None
    except RecursionError:
        raise ScenarioError(f"{path}: nested too deeply for a configuration") from None


def _what_json(text: str, error: json.JSONDecodeError) -> str:
    """Say what is wrong in the words of somebody who edits the file."""
    rest = text[error.pos :]
    before = text[: error.pos].rstrip()
    where = f"line {error.lineno}"
    if not text.strip():
        return "the file is empty; an empty DeepSpeed configuration is {}"
    if re.match(r"\s*(//|#|/\*)", rest):
        return (
            f"{where}: JSON has no comments; remove it (DeepSpeed alone would read the file, transformers and "
            "accelerate refuse it)"
        )
    if re.match(r"\s*[}\]]", rest) and before.endswith(","):
        return f"line {_line(text, len(before) - 1)}: a comma before the closing bracket; remove it"
    if error.msg.startswith("Illegal trailing comma"):  # Python 3.13
        return f"{where}: a comma before the closing bracket; remove it"
    if word := _BARE_WORD.match(rest):
        return f"{where}: the placeholder {word[0]} is not filled in; this is {_FILL_IN}"
    if re.match(r"(True|False|None)\b", rest):
        return f"{where}: JSON writes true, false and null in small letters"
    if rest.startswith("'"):
        return f"{where}: JSON takes double quotes, not single ones"
    return f"not valid JSON: {where}, column {error.colno}: {error.msg}"


def _yaml(path: Path, text: str) -> Any:
    try:
        return yaml.load(text, Loader=UniqueKeys)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise _template(path, text) or ScenarioError(f"{path}: not valid YAML: {where}{error.problem}") from None
    except yaml.YAMLError as error:  # a character that YAML does not have
        raise ScenarioError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    # What PyYAML's constructors raise when a tag is on a value of another kind (`!!bool abc`).
    except (ValueError, RecursionError, TypeError, LookupError, AttributeError) as error:
        raise _template(path, text) or ScenarioError(f"{path}: not a configuration: {error}") from None


def _check_size(path: Path, data: dict[str, Any]) -> None:
    """Refuse what no configuration is: YAML aliases can make a short text endless, or larger than the memory."""
    level: list[Any] = [data]
    seen = depth = 0
    while level:
        seen += len(level)
        depth += 1
        if seen > MAX_NODES or depth > MAX_DEPTH:
            raise ScenarioError(f"{path}: nested too deeply, or too large, for a configuration")
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += value.values()
            elif isinstance(value, list):
                below += value
            if len(below) > MAX_NODES:
                break
        level = below


def check_filled_in(key: str, value: Any) -> None:
    """Refuse a template's placeholder, and a shell variable that nobody expanded, anywhere in ``value``.

    Raises:
        ValueError: naming the key below ``key`` and the placeholder.
    """
    if isinstance(value, dict):
        for name, item in value.items():
            check_filled_in(f"{key}.{name}" if key else name, item)
            check_filled_in(key or name, name)
    elif isinstance(value, list):
        for item in value:
            check_filled_in(key, item)
    elif isinstance(value, str) and (found := _PLACEHOLDER.search(value)):
        raise ValueError(f"'{key}': the placeholder {found[0]} is not filled in; this is {_FILL_IN}")
