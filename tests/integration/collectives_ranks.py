"""One rank: sends each collective of 8 MiB over the link, and notes what its host sent for it.

Usage: collectives_ranks.py FOLDER; leaves FOLDER/<rank>.json, {operation: bytes}.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from link import sent_bytes

NUM_BYTES = 8 << 20

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
whole, other = torch.ones(NUM_BYTES // 4), torch.ones(NUM_BYTES // 4)
shard = torch.ones(NUM_BYTES // 4 // size)
shards = list(other.chunk(size))
COLLECTIVES = {
    "all_reduce": lambda: dist.all_reduce(whole),
    "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, shard),
    "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(shard, whole),
    "broadcast": lambda: dist.broadcast(whole, 0),
    "reduce": lambda: dist.reduce(whole, 0),
    "gather": lambda: dist.gather(shard, shards if rank == 0 else None, 0),
    "scatter": lambda: dist.scatter(shard, shards if rank == 0 else None, 0),
    "all_to_all_single": lambda: dist.all_to_all_single(other, whole),
}


def sent(collective, count):
    """Bytes that this host sends for ``count`` collectives and the barriers around them."""
    dist.barrier()  # nothing of the last one is on its way any more
    before = sent_bytes()
    dist.barrier()  # all have looked
    for _ in range(count):
        collective()
    dist.barrier()
    return sent_bytes() - before


found = {}
for op, collective in COLLECTIVES.items():
    sent(collective, 1)
    found[op] = (sent(collective, 4) - sent(collective, 2)) / 2
(Path(sys.argv[1]) / f"{rank}.json").write_text(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
