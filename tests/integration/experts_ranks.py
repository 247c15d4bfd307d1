"""One of two ranks that trains a mixture of experts at stage 3 while the other's tokens go to other experts.

Usage, with RANK and WORLD_SIZE set: experts_ranks.py KIND TIMEOUT_S OUT_FOLDER. KIND: ``fused`` is OLMoE as
transformers has it, ``apart`` a layer whose experts are modules of their own, made a leaf if need be, and
``apart-no-leaf`` the same without. Leaves OUT_FOLDER/rank<r>.json: the experts that were chosen, the leaves, and
the losses.
"""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import deepspeed
import torch
import torch._dynamo  # transformers imports it with a model's class, and under zero.Init that fails
import torch.distributed as dist
from torch import nn

from bench.cell import Cell
from bench.worker import engine as engines
from bench.worker.leaves import expert_blocks, leaf_modules
from bench.worker.model import build_model

OLMOE = {
    "model_type": "olmoe", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "num_experts": 8, "num_experts_per_tok": 1,
    "max_position_embeddings": 32, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
WIDTH = 16


class Apart(nn.Module):
    """Rank 0 sends all to the first expert, rank 1 a half to each."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x):
        if dist.get_rank() == 0:
            return self.experts[0](x)
        first, second = x.chunk(2)
        return torch.cat([self.experts[0](first), self.experts[1](second)])


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.mlp = Apart()
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, x):
        return self.out(self.mlp(self.embed(x))).square().mean()


kind, timeout_s, out = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])
rank = int(os.environ["RANK"])
dist.init_process_group(
    "gloo", init_method=f"file://{out}/store", rank=rank, world_size=2, timeout=timedelta(seconds=timeout_s)
)
deepspeed.init_distributed(dist_backend="gloo", timeout=timedelta(seconds=timeout_s))
zero = {"stage3_param_persistence_threshold": 0}
cell = Cell(model="llama-tiny", strategy="z3", dtype="fp32", world_size=2, zero_optimization=zero)
config = engines.zero_config(cell)
chosen, generator = set(), torch.Generator().manual_seed(rank)
if kind == "fused":
    model = build_model(OLMOE, dtype=torch.float32, device=torch.device("cpu"), seed=0,
                        activation_checkpointing=False, zero3_config=config)  # fmt: skip
    assert expert_blocks(model) == []
    for module in model.modules():
        if type(module).__name__ == "OlmoeExperts":
            module.register_forward_pre_hook(lambda module, inputs: chosen.update(inputs[1].flatten().tolist()))
    batch = torch.randint(64, (1, 3), generator=generator)

    def run():
        return engine(input_ids=batch, labels=batch).loss
else:
    torch.manual_seed(0)
    model = Loss()
    assert expert_blocks(model) == [Apart]
    chosen = {0} if rank == 0 else {0, 1}
    if kind == "apart-no-leaf":
        engines.set_leaf_modules = lambda model: None
    batch = torch.randn(4, WIDTH, generator=generator)

    def run():
        return engine(batch)


engine = engines.build_engine(cell, model)
losses = []
for _ in range(4):  # prefetching begins with the third
    loss = run()
    engine.backward(loss)
    engine.step()
    losses.append(float(loss.detach()))
found = {"chosen": sorted(chosen), "leaves": leaf_modules(engine), "losses": losses}
(out / f"rank{rank}.json").write_text(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
