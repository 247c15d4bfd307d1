"""Token batches: a function of (seed, step, row of the global batch) alone.

So every strategy sees the same global batch, however it is cut into ranks and micro-batches, and no two
ranks see the same row.
"""

import hashlib

import torch

from bench import corpus
from bench.cell import Cell


def _generator(*key: int) -> torch.Generator:
    # Neighbouring seeds of the Mersenne Twister are correlated; a hash of the key is not.
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def row(cell: Cell, vocab_size: int, step: int, index: int) -> torch.Tensor:
    """Row ``index`` of the global batch of ``step``: ``seq_length`` int64 tokens."""
    generator = _generator(cell.seed, step, index)
    if cell.data.kind == "synthetic":
        return torch.randint(vocab_size, (cell.seq_length,), generator=generator)
    text = corpus.read(cell.data.path)
    start = int(torch.randint(max(1, len(text) - cell.seq_length), (), generator=generator))
    tokens = torch.tensor(list(text[start : start + cell.seq_length]), dtype=torch.int64)
    return tokens.repeat(-(-cell.seq_length // len(tokens)))[: cell.seq_length]


def micro_batches(cell: Cell, vocab_size: int, step: int, rank: int) -> list[torch.Tensor]:
    """This rank's micro-batches of ``step``, each ``[train_micro_batch_size_per_gpu, seq_length]`` int64."""
    size = cell.train_micro_batch_size_per_gpu
    batches = []
    for micro_step in range(cell.gradient_accumulation_steps):
        first = (micro_step * cell.world_size + rank) * size
        batches.append(torch.stack([row(cell, vocab_size, step, first + i) for i in range(size)]))
    return batches
