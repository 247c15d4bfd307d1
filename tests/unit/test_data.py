import torch

from bench.cell import Cell
from bench.scenario import Data
from bench.worker.data import micro_batches


def global_batch(cell, step):
    """All rows of one step over all ranks, sorted, so that the way it was cut does not matter."""
    batches = [batch for rank in range(cell.world_size) for batch in micro_batches(cell, 1024, step, rank)]
    return sorted(map(tuple, torch.cat(batches).tolist()))


def test_the_global_batch_does_not_depend_on_strategy_or_cut():
    cuts = [(1, 8, 1), (1, 1, 8), (4, 2, 1), (2, 2, 2), (8, 1, 1)]
    cells = [
        Cell(
            model="llama-tiny",
            strategy=strategy,
            world_size=ranks,
            train_micro_batch_size_per_gpu=micro,
            gradient_accumulation_steps=gas,
            seq_length=16,
        )
        for strategy in ("ddp", "z3")
        for ranks, micro, gas in cuts
    ]
    for step in (0, 7):
        assert len({tuple(global_batch(cell, step)) for cell in cells}) == 1


def test_ranks_micro_steps_steps_and_seeds_see_different_tokens():
    cell = Cell(model="m", strategy="z0", world_size=2, gradient_accumulation_steps=2, seq_length=64)
    other_seed = cell.model_copy(update={"seed": 1})
    rows = [
        tuple(batch[0].tolist())
        for job in (cell, other_seed)
        for step in (0, 1)
        for rank in (0, 1)
        for batch in micro_batches(job, 1024, step, rank)
    ]
    assert len(rows) == len(set(rows)) == 16


def test_tokens_fill_the_vocabulary_and_stay_in_it():
    cell = Cell(model="m", strategy="z0", train_micro_batch_size_per_gpu=16, seq_length=512)
    (batch,) = micro_batches(cell, 100, 0, 0)
    assert batch.shape == (16, 512)
    assert batch.dtype == torch.int64
    assert (int(batch.min()), int(batch.max())) == (0, 99)


def test_text_is_bytes_of_the_file_in_order(tmp_path):
    text = bytes(range(32, 127)) * 4
    (tmp_path / "corpus.txt").write_bytes(text)
    data = Data(kind="text", path=str(tmp_path / "corpus.txt"))
    cell = Cell(model="m", strategy="z0", seq_length=40, train_micro_batch_size_per_gpu=8, data=data)
    (batch,) = micro_batches(cell, 1024, 0, 0)
    rows = [bytes(row.tolist()) for row in batch]
    assert all(row in text for row in rows)
    assert len(set(rows)) > 1


def test_a_corpus_shorter_than_the_sequence_is_repeated(tmp_path):
    (tmp_path / "short.txt").write_text("abc")
    cell = Cell(model="m", strategy="z0", seq_length=8, data=Data(kind="text", path=str(tmp_path / "short.txt")))
    (batch,) = micro_batches(cell, 1024, 0, 0)
    assert bytes(batch[0].tolist()) == b"abcabcab"


def test_the_standard_library_is_always_there():
    cell = Cell(model="m", strategy="z0", seq_length=256, data=Data(kind="text"))
    (batch,) = micro_batches(cell, 1024, 0, 0)
    assert int(batch.max()) < 256
    assert len(set(batch[0].tolist())) > 5
