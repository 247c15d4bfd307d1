"""Wire models: what a rank sends, and what crosses from node to node. test_veth.py holds gloo's against a real link."""

import pytest

from bench.wire import gloo_sends, link_bytes, node_bytes, wire_bytes, wire_model

MIB = 1 << 20
# Sent bytes per rank, as a share of the collective's larger side, for 2 and 4 ranks: gloo, NCCL.
ONCE, TWICE, SHARE, NOTHING = (1 / 2, 3 / 4), (1.0, 3 / 2), (1 / 4, 3 / 16), (0.0, 0.0)
OPS = {
    "all_reduce": (TWICE, TWICE),
    "all_gather": (ONCE, ONCE),
    "all_gather_into_tensor": (ONCE, ONCE),
    "reduce_scatter": (TWICE, ONCE),
    "reduce_scatter_tensor": (TWICE, ONCE),
    "reduce": ((1 / 2 + 1 / 4, 3 / 4 + 3 / 16), ONCE),
    "broadcast": (ONCE, ONCE),
    "gather": (SHARE, SHARE),
    "scatter": (SHARE, SHARE),
    "all_to_all": (ONCE, ONCE),
    "all_to_all_single": (ONCE, ONCE),
    "barrier": (NOTHING, NOTHING),
}
DATA_OPS = sorted(OPS.keys() - {"barrier"})


@pytest.mark.parametrize(("op", "factors"), OPS.items())
def test_wire_factors(op: str, factors: tuple[tuple[float, float], tuple[float, float]]) -> None:
    for backend, expected in zip(("gloo", "nccl"), factors, strict=True):
        sent = [wire_bytes(op, MIB, size, backend) for size in (2, 4)]
        assert sent == pytest.approx([MIB * factor for factor in expected], abs=1)
        assert wire_bytes(op, MIB, 1, backend) == 0


@pytest.mark.parametrize("backend", ["gloo", "nccl", "ccl"])
def test_wire_bytes_of_an_unknown_operation(backend: str) -> None:
    assert wire_bytes("all_gather_object", 100, 2, backend) is None
    assert link_bytes("all_gather_object", 100, [0, 1], backend) is None


def test_wire_model_is_named() -> None:
    assert [wire_model(backend) for backend in ("gloo", "nccl", "ccl")] == ["gloo", "ring", "ring"]
    assert wire_bytes("reduce", 100, 2, "ccl") == 50


def test_reduce_on_gloo_costs_more_the_larger_it_is() -> None:
    # Its ring moves all but two segments, of at most 1 MiB: 3/4 of 8 MiB at 2 ranks, 1/2 of 1 MiB.
    assert [wire_bytes("reduce", size * MIB, 2, "gloo") for size in (1, 8)] == [0.75 * MIB, (6 + 2) * MIB]


@pytest.mark.parametrize("op", DATA_OPS)
@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_every_rank_gets_what_the_collective_owes_it(op: str, size: int) -> None:
    sends = gloo_sends(op, 840, size)
    assert sends is not None
    received = [sum(sent for (_, to), sent in sends.items() if to == rank) for rank in range(size)]
    assert all(0 <= sender < size and 0 <= to < size and sender != to for sender, to in sends)
    share = 840 / size
    if op in ("gather", "reduce"):  # the root gathers what it has not got
        assert received[0] >= (size - 1) * share
    elif op == "broadcast":
        assert received == [0] + [840] * (size - 1)
    elif op == "scatter":
        assert received == [0] + [share] * (size - 1)
    else:
        assert min(received) == pytest.approx(max(received))
        assert min(received) >= (size - 1) * share - 1e-9


# Bytes from node 0 to node 1 and back as a share of the larger side, measured with 8 MiB (docs/metrics.md).
BLOCK, INTERLEAVED = [0, 0, 1, 1], [0, 1, 0, 1]
LINKS = {
    "all_reduce": [(1.0, 1.0), (1.5, 1.5), (3.0, 3.0)],
    "all_gather_into_tensor": [(0.5, 0.5), (0.75, 0.75), (1.5, 1.5)],
    "reduce_scatter_tensor": [(1.0, 1.0), (1.5, 1.5), (3.0, 3.0)],
    "broadcast": [(1.0, 0), (2.0, 0), (1.0, 0)],
    "reduce": [(0.75, 1.25), (0.75, 1.25), (1.5, 2.0)],
    "all_to_all_single": [(0.5, 0.5), (1.0, 1.0), (1.0, 1.0)],
}


@pytest.mark.parametrize(("op", "ways"), LINKS.items())
def test_bytes_between_two_nodes_follow_the_placement(op: str, ways: list[tuple[float, float]]) -> None:
    for nodes, (out, back) in zip(([0, 1], BLOCK, INTERLEAVED), ways, strict=True):
        between = node_bytes(op, 8 * MIB, nodes, "gloo")
        assert between is not None
        assert (between.get((0, 1), 0), between.get((1, 0), 0)) == (out * 8 * MIB, back * 8 * MIB)
        assert link_bytes(op, 8 * MIB, nodes, "gloo") == max(out, back) * 8 * MIB


@pytest.mark.parametrize("op", OPS)
def test_ranks_on_one_node_send_nothing_to_another(op: str) -> None:
    assert node_bytes(op, MIB, [3, 3, 3], "gloo") == {}
    assert link_bytes(op, MIB, [3, 3, 3], "gloo") == 0


def test_a_ring_over_four_nodes_loads_every_link_one_way() -> None:
    assert node_bytes("all_gather", 800, [0, 1, 2, 3], "gloo") == {
        (0, 1): 600, (1, 2): 600, (2, 3): 600, (3, 0): 600,
    }  # fmt: skip


def test_the_order_of_nccls_ranks_is_not_known() -> None:
    assert link_bytes("all_reduce", MIB, BLOCK, "nccl") is None
