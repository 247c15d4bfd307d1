"""FLOPs and order of what an emulated step ran."""

import gzip
import json
from pathlib import Path

import pytest
import torch
import torch.distributed

from bench.emulate.emulator import Emulator
from bench.emulate.trace import Trace, flops
from bench.measure.comm import CollectiveRecorder
from bench.models.catalog import load_config
from bench.record import parse_record

RECORD = Path(__file__).parents[1] / "data" / "records" / "v3-emulated.json"
grouped = torch.ops.aten._grouped_mm.default


def test_a_step_has_the_flops_of_its_matrix_products():
    record = parse_record(RECORD.read_text(), RECORD.name)
    config, tokens = load_config("llama-tiny"), record.cell.seq_length
    width, heads = config["hidden_size"], config["num_attention_heads"]
    kv = config["num_key_value_heads"] * width // heads
    block = 2 * width * width + 2 * width * kv + 3 * width * config["intermediate_size"]
    products = config["num_hidden_layers"] * block + width * config["vocab_size"]
    # Scores and values: two products forward, five backward; each token against every token.
    attention = config["num_hidden_layers"] * 7 * 2 * tokens * width
    assert record.emulation.flops_per_step == tokens * (6 * products + attention)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ((10, 8), (4, 8, 16), 2 * 10 * 8 * 16),  # every row by the matrix of its expert
        ((4, 16, 8), (8, 10), 2 * 16 * 8 * 10),
        ((8, 10), (10, 16), 2 * 8 * 10 * 16),  # the gradient of every expert's matrix
        ((4, 10, 8), (4, 8, 16), 2 * 4 * 10 * 8 * 16),
    ],
)
def test_grouped_products_count_each_token_once(left, right, expected):
    assert flops(grouped, (torch.empty(left), torch.empty(right)), {}, None) == expected


@pytest.fixture
def trace():
    """A product, a view, two more products of the same shape, an elementwise operator; two phases."""
    emulator, recorder, found = Emulator(), CollectiveRecorder(), Trace()
    with emulator:
        left, right = torch.empty(100, 20), torch.empty(20, 30)
        with found.following(emulator, recorder):
            recorder.enter_phase("forward")
            product = left @ right
            product.view(-1)
            left @ right
            recorder.enter_phase("backward")
            product.mul_(2.0)
            left @ right
    return found


def test_the_order_is_kept_and_each_operator_described_once(trace):
    assert [each["op"] for each in trace.operators] == ["mm.default", "mul_.Tensor"]
    assert trace.order == [0, 0, 1, 0]
    assert trace.phases == [(0, "forward"), (2, "backward")]
    assert trace.flops() == 3 * 2 * 100 * 20 * 30


def test_bytes_are_those_read_and_written(trace):
    product, scaled = trace.operators
    assert product["bytes"] == 4 * (100 * 20 + 20 * 30 + 100 * 30)
    assert scaled["bytes"] == 2 * 4 * 100 * 30  # read, and written in place


def test_a_copy_is_an_operator_and_no_collective():
    """Observers see a copy before it runs, as they do a collective."""
    emulator, recorder, found = Emulator(), CollectiveRecorder(), Trace()
    with emulator:
        left, right = torch.empty(100), torch.empty(100)
        with found.following(emulator, recorder):
            left.copy_(right)
            torch.cat([left, right])
            left.to(torch.bfloat16)
    assert [each["op"] for each in found.operators] == ["copy_.default", "cat.default", "_to_copy.default"]
    assert found.order == [0, 1, 2]


def test_the_file_holds_the_same(trace, tmp_path):
    path = tmp_path / "traces" / "a.json.gz"
    trace.write(path)
    stored = json.loads(gzip.decompress(path.read_bytes()))
    assert stored["order"] == trace.order
    assert stored["operators"] == trace.operators
    assert stored["trace_version"] == 1
