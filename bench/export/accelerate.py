"""A row under `accelerate launch`: its YAML names the DeepSpeed configuration, and the script does not."""

from typing import Any

import yaml

from bench.cell import Cell
from bench.export.deepspeed import deepspeed_json
from bench.export.launch import HOST, NODE, PORT, nodes, several_nodes
from bench.export.model import model_files
from bench.export.title import title
from bench.export.trainer import DEEPSPEED_FILE, SCRIPT, script
from bench.record import Record
from bench.zero.stages import STRATEGIES

FILE = "accelerate.yaml"
COMMAND = f"accelerate launch --config_file {FILE} {SCRIPT}"


def _settings(cell: Cell, device: str) -> dict[str, Any]:
    stage = STRATEGIES[cell.strategy].zero_stage
    settings: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "num_machines": nodes(cell),
        "num_processes": cell.world_size,
        "machine_rank": NODE if nodes(cell) > 1 else 0,
        "main_process_port": PORT,
        "main_training_function": "main",
    }
    if nodes(cell) > 1:
        settings |= {"main_process_ip": HOST, "same_network": True, "rdzv_backend": "static"}
    if stage is None:
        return {"distributed_type": "MULTI_CPU" if device == "cpu" else "MULTI_GPU", "mixed_precision": "no"} | settings
    # Everything else is the file's; accelerate refuses a key that is in both places.
    plugin: dict[str, Any] = {"deepspeed_config_file": DEEPSPEED_FILE, "zero3_init_flag": stage == 3}
    if nodes(cell) > 1:
        plugin["deepspeed_multinode_launcher"] = "standard"
    return {"distributed_type": "DEEPSPEED", "deepspeed_config": plugin} | settings


def accelerate_files(record: Record, model_config: dict[str, Any]) -> dict[str, str]:
    """Return the YAML, the DeepSpeed configuration that it names, and a script to launch."""
    cell = record.cell
    comments = [title(record, "under accelerate"), f"Run it, in its folder: {COMMAND}", *several_nodes(cell)]
    text = "".join(f"# {comment}\n" for comment in comments)
    files = {FILE: text + yaml.safe_dump(_settings(cell, record.device), sort_keys=False)}
    files[SCRIPT] = script(record, COMMAND, None)
    if STRATEGIES[cell.strategy].zero_stage is not None:
        files[DEEPSPEED_FILE] = deepspeed_json(cell)
    return files | model_files(cell, model_config)
