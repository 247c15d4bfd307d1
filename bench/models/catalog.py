"""Where a model's configuration comes from: this catalog, a local path or the Hugging Face hub.

A catalog entry is a file ``configs/<name>.json`` that holds the keys of the model's published
``config.json`` that fix its architecture, and nothing about its weights: a benchmark trains from random
values. Two families of entry differ from what is published:

- every GPT-2 entry sets all three dropouts to 0 (0.1 when published), because the benchmark compares the
  losses of runs that draw different random numbers. No other family has dropout by default;
- ``llama-tiny``, ``llama-tiny-tied``, ``llama-small``, ``gpt2-tiny`` and ``mixtral-tiny`` are not
  published models: they are test sizes.

The position settings keep the published spelling (``rope_theta``, ``rope_scaling``), which transformers 4.50
and later and transformers 5 both read.
"""

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from bench.errors import ScenarioError, nearest

_CONFIGS = Path(__file__).parent / "configs"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def names() -> list[str]:
    """Return the names of the catalog's models, sorted."""
    return sorted(file.stem for file in _CONFIGS.glob("*.json"))


def load_config(model: str) -> dict[str, Any]:
    """Return the configuration of ``model`` as a new dictionary.

    ``model`` is a catalog name, which wins over a file of that name; or a local path, that is a folder with
    a ``config.json`` or a ``.json`` file; or a hub id ``org/name``, whose ``config.json`` is downloaded. A
    word is a path when it exists on disk or starts with ``/``, ``./``, ``../`` or ``~``.

    Raises ``ScenarioError`` when ``model`` is none of these, the download fails, the file is not a JSON
    object with a ``model_type``, or the model needs code from its repository (``auto_map``).
    """
    kind = _kind(model)
    if kind == "catalog":
        return _read(_CONFIGS / f"{model}.json")
    if kind == "path":
        return _read(_local_file(model))
    return _read(_download(model))


def has_experts(config: dict[str, Any]) -> bool:
    """Whether the model that ``config`` describes routes its tokens to experts, by the keys that transformers has."""
    return any(key in config for key in ("num_local_experts", "num_experts", "n_routed_experts"))


def max_positions(config: dict[str, Any]) -> int | None:
    """Return the longest sequence that a model takes, ``None`` where its configuration does not say."""
    longest = config.get("max_position_embeddings") or config.get("n_positions")
    return longest if isinstance(longest, int) else None


def hidden_size(config: dict[str, Any]) -> int | None:
    """Return the width from which transformers resolves ``auto``, under each of the names that it has."""
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    several = (text or config).get("hidden_sizes")
    found = [(text or config).get(name) for name in ("hidden_size", "n_embd", "d_model")]
    found += [max(several)] if isinstance(several, list) and several else []
    return next((value for value in found if isinstance(value, int)), None)


def content_key(model: str) -> str:
    """Return a text that is the same for the same model wherever its file lies.

    A catalog name or a hub id is its own key (a hub id without its revision). A local path gives ``sha256:``
    and 16 hexadecimal digits of the configuration's content, so neither the path nor the file's layout
    matters. A hub id is not downloaded.

    Raises ``ScenarioError`` as `load_config` does, for a catalog name or a hub id only when the word itself
    is not valid.
    """
    if _kind(model) != "path":
        return model
    canonical = json.dumps(load_config(model), sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _kind(model: str) -> str:
    if model in names():
        return "catalog"
    # An empty word would be the current folder; it is a mistake in the scenario instead.
    if model and (model.startswith(("/", "./", "../", "~", os.sep)) or os.path.lexists(model)):
        return "path"
    if _HUB_ID.fullmatch(model):
        return "hub"
    raise ScenarioError(
        f"unknown model '{model}': give a catalog name ({', '.join(names())}), a local folder with "
        f"config.json (./folder), or a hub id (org/name){nearest(model, names())}"
    )


def _local_file(model: str) -> Path:
    # os.path.expanduser leaves an unknown "~user" as it is, where Path.expanduser raises.
    path = Path(os.path.expanduser(model))  # noqa: PTH111
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ScenarioError(f"model '{model}': the folder {path} has no config.json")
        return path / "config.json"
    if not path.is_file():
        raise ScenarioError(f"model '{model}': there is no file or folder {path}")
    if path.suffix != ".json":
        raise ScenarioError(f"model '{model}': give a folder with config.json or a .json file, not {path}")
    return path


def _download(model: str) -> Path:
    remedy = "give a local folder with its config.json instead (./folder)"
    try:
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(model, "config.json"))
    except ImportError as error:
        raise ScenarioError(
            f"model '{model}' is a hub id, but huggingface_hub cannot be imported ({error}); {remedy}"
        ) from error
    # The hub client raises errors of several unrelated libraries (HTTP, cache, file system); whichever it
    # was, the user's way out is the same.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        raise ScenarioError(f"model '{model}': its config.json cannot be downloaded ({reason}); {remedy}") from error


def _read(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    # ValueError covers both broken JSON and bytes that are not UTF-8.
    except (OSError, ValueError) as error:
        raise ScenarioError(f"model configuration {file} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ScenarioError(f"model configuration {file} is not a JSON object")
    if not isinstance(config.get("model_type"), str):
        raise ScenarioError(f"model configuration {file} has no model_type, so its architecture is unknown")
    if "auto_map" in config:
        raise ScenarioError(
            f"model configuration {file} has an auto_map: the model needs code from its repository, and "
            "trust_remote_code stays off. Give a model whose architecture is part of transformers"
        )
    return config
