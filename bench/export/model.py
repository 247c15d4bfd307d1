"""What an exported file calls its model: most of the catalog has weights under many names, and the tests have none."""

import json
from typing import Any

from bench.cell import Cell
from bench.models.catalog import names

FOLDER = "model"


def is_named(cell: Cell) -> bool:
    """Whether others find the model by the name that the scenario has: a hub id, or a folder of the user's."""
    return cell.model not in names() and not cell.model.endswith(".json")


def model_path(cell: Cell) -> str:
    """Return the name of the model, or the folder beside the exported files that holds its ``config.json``."""
    return cell.model if is_named(cell) else FOLDER


def model_files(cell: Cell, model_config: dict[str, Any]) -> dict[str, str]:
    """Return the ``config.json`` of a model that has no name elsewhere."""
    return {} if is_named(cell) else {f"{FOLDER}/config.json": json.dumps(model_config, indent=2) + "\n"}
