"""A row under HF Trainer: a script that trains as it is, on random tokens, to be edited into one's own."""

from typing import Any

from bench.cell import Cell
from bench.export.deepspeed import deepspeed_json
from bench.export.launch import several_nodes, torchrun
from bench.export.model import is_named, model_files, model_path
from bench.export.title import title
from bench.export.training import training_arguments
from bench.record import Record
from bench.zero.stages import STRATEGIES
from bench.zero.theory import TORCH_DTYPE

SCRIPT, DEEPSPEED_FILE = "train.py", "ds_config.json"

_TEXT = '''"""{title}

Run it, in its folder: {command}
{notes}
"""

{imports}
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

MODEL = {model}  # {kind}
ARGUMENTS = {{
{arguments}
}}


class Tokens(torch.utils.data.Dataset):
    """Random tokens, {seq_length} to a sequence. Put your own data set in its place."""

    def __init__(self, vocab_size):
        self.vocab_size = vocab_size

    def __len__(self):
        return {num_sequences}

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(self.vocab_size, ({seq_length},), generator=generator)
        return {{"input_ids": tokens, "labels": tokens}}

{optimizer}
def make_trainer():
{start}    arguments = TrainingArguments(**ARGUMENTS)  # before the model, which stage 3 shards as it is made
    config = AutoConfig.from_pretrained(MODEL, use_cache=False)
    # For trained weights: AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.{dtype})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.{dtype}{implementations})
    data = Tokens(config.get_text_config().vocab_size)
    return {trainer}(model=model, args=arguments, train_dataset=data)


if __name__ == "__main__":
    make_trainer().train()
'''

_NOTE = """It takes the optimizer steps that the row took, with random weights and random tokens: to train something,
replace both where the comments say so. max_steps is the row's."""

_START = """    # With use_cpu transformers starts torch.distributed alone; stage 3 asks DeepSpeed for its ranks.
    deepspeed.init_distributed("gloo")
"""

# Under DDP no DeepSpeed configuration names the optimizer.
_OPTIMIZER = '''
class OneGroupTrainer(Trainer):
    """Trainer's own AdamW has a group without weight decay, for norms and biases; the row has one group."""

    def create_optimizer(self, model=None):
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        arguments = {{"lr": self.args.learning_rate, "weight_decay": self.args.weight_decay}}
        self.optimizer = torch.optim.AdamW(parameters, **arguments, foreach={foreach}, fused={fused})
        return self.optimizer

'''


def trainer_files(record: Record, model_config: dict[str, Any]) -> dict[str, str]:
    """Return the script, its DeepSpeed configuration and, unless it is found by name, its model's ``config.json``."""
    cell = record.cell
    under_deepspeed = STRATEGIES[cell.strategy].zero_stage is not None
    files = {SCRIPT: script(record, torchrun(cell, SCRIPT), DEEPSPEED_FILE if under_deepspeed else None)}
    if under_deepspeed:
        files[DEEPSPEED_FILE] = deepspeed_json(cell)
    return files | model_files(cell, model_config)


def script(record: Record, command: str, deepspeed_file: str | None) -> str:
    """Return a script that ``command`` starts; without a file, its launcher or nobody says what DeepSpeed does."""
    cell = record.cell
    ddp = STRATEGIES[cell.strategy].zero_stage is None
    arguments = training_arguments(cell, record.device) | _checkpointing(cell) | (_DDP if ddp else {})
    if deepspeed_file is not None:
        arguments = {"deepspeed": deepspeed_file} | arguments
    implementation = cell.optimizer.implementation
    by_hand = record.device == "cpu" and not ddp
    return _TEXT.format(
        title=title(record, "under HF Trainer"),
        command=command,
        notes="\n".join([*several_nodes(cell), _NOTE]),
        model=f'"{model_path(cell)}"',
        kind="a folder or a hub id" if is_named(cell) else "the folder with this model's config.json; or a hub id",
        imports="import deepspeed\nimport torch" if by_hand else "import torch",
        start=_START if by_hand else "",
        arguments="\n".join(f"    {_quoted(key)}: {_quoted(value)}," for key, value in arguments.items()),
        seq_length=cell.seq_length,
        num_sequences=cell.train_batch_size * cell.total_steps,
        optimizer=_OPTIMIZER.format(foreach=implementation == "foreach", fused=implementation == "fused")
        if ddp
        else "",
        trainer="OneGroupTrainer" if ddp else "Trainer",
        dtype=TORCH_DTYPE[cell.dtype],
        implementations=_implementations(cell),
    )


# As the worker's: buffers are constants, and all parameters are used.
_DDP = {"ddp_find_unused_parameters": False, "ddp_broadcast_buffers": False}


def _checkpointing(cell: Cell) -> dict[str, Any]:
    if cell.checkpointing == "none":
        return {}
    reentrant = cell.checkpointing == "reentrant"
    return {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": reentrant}}


def _implementations(cell: Cell) -> str:
    chosen = {
        "attn_implementation": cell.attn_implementation,
        "experts_implementation": cell.experts_implementation,
    }
    return "".join(f', {name}="{value}"' for name, value in chosen.items() if value is not None)


def _quoted(value: Any) -> str:
    """Return ``value`` as Python writes it, strings in double quotes."""
    return f'"{value}"' if isinstance(value, str) else repr(value).replace("'", '"')
