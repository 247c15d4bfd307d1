"""A row under LLaMA-Factory: a training file for `llamafactory-cli train`.

Keys as in LLaMA-Factory 0.9.5 (hiyouga/LLaMA-Factory, src/llamafactory/hparams). Stage ``pt`` packs its text into
sequences of exactly ``cutoff_len`` tokens, which is what a row trains on; ``sft`` pads them.
"""

from typing import Any

import yaml

from bench.export.deepspeed import deepspeed_json
from bench.export.launch import HOST, NODE, PORT, nodes, ranks_per_node, several_nodes
from bench.export.model import is_named, model_files, model_path
from bench.export.title import title
from bench.export.trainer import DEEPSPEED_FILE
from bench.export.training import training_arguments
from bench.record import Record
from bench.zero.stages import STRATEGIES

FILE = "llamafactory.yaml"
# transformers' names of attention, as LLaMA-Factory calls them (extras/constants.py, AttentionFunction).
_ATTENTION = {"sdpa": "sdpa", "eager": "disabled", "flash_attention_2": "fa2"}


def command(record: Record) -> str:
    """Return the command that trains from the file, to be given on each node."""
    cell = record.cell
    words = ["FORCE_TORCHRUN=1"]
    if nodes(cell) > 1:
        words += [f"NNODES={nodes(cell)}", f"NODE_RANK={NODE}", f"MASTER_ADDR={HOST}", f"MASTER_PORT={PORT}"]
    return " ".join([*words, f"NPROC_PER_NODE={ranks_per_node(cell)}", "llamafactory-cli", "train", FILE])


def llamafactory_files(record: Record, model_config: dict[str, Any]) -> dict[str, str]:
    """Return the training file, its DeepSpeed configuration and, unless it has a name, its model's ``config.json``."""
    cell = record.cell
    ddp = STRATEGIES[cell.strategy].zero_stage is None
    sections: dict[str, dict[str, Any]] = {
        "model": {
            "model_name_or_path": model_path(cell),
            "train_from_scratch": True,
            "flash_attn": _ATTENTION.get(cell.attn_implementation or "sdpa", "auto"),
            "disable_gradient_checkpointing": cell.checkpointing == "none",
            "use_reentrant_gc": cell.checkpointing == "reentrant",
        },
        "method": {
            "stage": "pt",
            "do_train": True,
            "finetuning_type": "full",
            **({} if ddp else {"deepspeed": DEEPSPEED_FILE}),
        },
        "data": {"dataset": "c4_demo", "cutoff_len": cell.seq_length, "packing": True},
        "training": training_arguments(cell, record.device),
    }
    comments = [
        title(record, "under LLaMA-Factory"),
        f"Run it, in its folder: {command(record)}",
        *several_nodes(cell),
        *_to_replace(record),
    ]
    text = "".join(f"# {comment}\n" for comment in comments)
    for name, section in sections.items():
        text += f"\n### {name}\n" + yaml.safe_dump(section, sort_keys=False)
    files = {FILE: text} if ddp else {FILE: text, DEEPSPEED_FILE: deepspeed_json(cell)}
    return files | model_files(cell, model_config)


def _to_replace(record: Record) -> list[str]:
    cell = record.cell
    found = [
        f"Replace dataset: c4_demo is in LLaMA-Factory's own folder data, and must fill {cell.total_steps} steps of "
        f"{cell.train_batch_size} sequences.",
    ]
    if is_named(cell):
        found.append("train_from_scratch draws random weights, as the row did: leave it out to train on.")
    else:
        found += [
            "Replace model_name_or_path by a model of this architecture and leave out train_from_scratch; or put a",
            f"tokenizer into the folder {model_path(cell)}, which has only the config.json, and train random weights.",
        ]
    if STRATEGIES[cell.strategy].zero_stage is None:
        found += [
            "Two things differ from the row: weight decay leaves out norms and biases, and the implementation of AdamW",
            "is torch's choice. Neither can be said here without a DeepSpeed configuration.",
        ]
    if STRATEGIES[cell.strategy].zero_stage == 3 and record.device == "cpu":
        found += [
            "On CPUs stage 3 does not start as it is: transformers starts torch.distributed alone, and stage 3 asks",
            'DeepSpeed for its ranks. deepspeed.init_distributed("gloo") before LLaMA-Factory starts mends it.',
        ]
    if cell.experts_implementation:
        found.append(f"The row ran its experts as {cell.experts_implementation}; LLaMA-Factory has no such key.")
    return found
