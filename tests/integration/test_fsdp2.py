"""The outside baseline that shards: it trains like plain PyTorch, and every collective is counted, to the byte."""

import pytest
from forked import planned

pytestmark = pytest.mark.ranks

# llama-tiny: 4 blocks of 46,208 parameters, and 131,136 beside them (embedding, head, last norm).
BLOCK, REST, BLOCKS = 46_208, 131_136, 4
PSI = BLOCKS * BLOCK + REST
CELLS = {
    "once": planned(strategy="fsdp2", train_micro_batch_size_per_gpu=2),
    "accumulated": planned(strategy="fsdp2", gradient_accumulation_steps=2, dtype="fp32"),
    "padded": planned(strategy="fsdp2", world_size=3, activation_checkpointing=True, model="gpt2-tiny"),
}


@pytest.fixture(scope="module")
def records(ranks):
    return {name: ranks.measure(cell) for name, cell in CELLS.items()}


@pytest.mark.parametrize("name", CELLS)
def test_it_trains_like_plain_pytorch_and_moves_what_torchs_code_moves(records, name):
    record = records[name]
    assert record.status == "completed", record.reason
    assert record.parity.reference is not None
    assert record.practice is not None
    assert record.findings == []
    assert record.validity == "valid"


@pytest.mark.parametrize(("name", "width", "steps"), [("once", 2, 1), ("accumulated", 4, 2)])
def test_collectives_of_one_step(records, name, width, steps):
    counted = [
        (c.phase, c.op, c.num_bytes, c.count, c.during_autograd)
        for c in records[name].comm.collectives
        if c.num_elements > 8
    ]
    assert sorted(counted) == [
        ("backward", "all_gather_into_tensor", BLOCK * width, BLOCKS * steps, True),
        ("backward", "reduce_scatter_tensor", BLOCK * width, BLOCKS * steps, True),
        ("backward", "reduce_scatter_tensor", REST * width, steps, True),
        ("forward", "all_gather_into_tensor", BLOCK * width, BLOCKS * steps, False),
        ("forward", "all_gather_into_tensor", REST * width, steps, False),
    ]
    (norm,) = [c for c in records[name].comm.collectives if c.num_elements <= 8]
    assert (norm.phase, norm.op, norm.num_elements) == ("step", "all_reduce", 1)


def test_each_rank_holds_its_share_and_no_more(records):
    record = records["once"]
    for rank, shards in zip(record.memory.ranks, record.shards, strict=True):
        assert (shards.parameters, shards.gradients, shards.optimizer_states) == (PSI // 2, PSI // 2, 3 * PSI // 2)
        at = {point.point: point.bytes for point in rank.points}
        assert at["forward"]["parameters"] == 2 * PSI // 2
        # Of what was gathered only what belongs to no block is left when forward ends, and nothing after backward.
        assert at["forward"]["gathered_parameters"] == 2 * REST
        assert at["backward"].get("gathered_parameters", 0) == 0
        assert at["backward"]["gradients"] == 2 * PSI // 2
        assert at["step"]["other"] < 2000


def test_the_engine_says_what_it_is(records):
    effective = records["once"].effective
    assert effective["engine"] == "torch fully_shard"
    assert (effective["zero_stage"], effective["model_dtype"], effective["master_dtype"]) == (
        None,
        "bfloat16",
        "float32",
    )
