"""DeepSpeed 0.19's defaults of the ``zero_optimization`` keys that its predictions need (runtime/zero/config.py).

``overlap_comm`` is not among them: its default is on at stage 3 and off below. tests/unit/test_ds_config.py compares
both tables with the installed release.
"""

import sys

# In elements.
SIZES = {
    "reduce_bucket_size": 500_000_000,
    "sub_group_size": 1_000_000_000,
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
    "stage3_model_persistence_threshold": sys.maxsize,
    "stage3_param_persistence_threshold": 100_000,
    "stage3_prefetch_bucket_size": 50_000_000,
    "zero_hpz_partition_size": 1,
}
SWITCHES = {
    "contiguous_gradients": True,
    "reduce_scatter": True,
    "round_robin_gradients": False,
    "stage3_allgather_sequential": False,
    "stage3_use_all_reduce_for_fetch_params": False,
    "use_multi_rank_bucket_allreduce": True,
}
