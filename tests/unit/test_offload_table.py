"""The table of offloaded rows: of rows whose numbers may be shown, each cell once."""

from made import made

from bench.analysis.offload import offload
from bench.record import Offload, RankOffload


def kept(num_bytes, **changes):
    rank = RankOffload(**dict.fromkeys(RankOffload.model_fields, num_bytes))
    return made(
        "z2", offload=Offload(ranks=[rank, rank], predicted=[{}, {}], node_host_peak_bytes=num_bytes), **changes
    )


def test_a_row_that_is_known_to_be_wrong_has_no_figures_here():
    mebibyte = 2**20
    wrong, right = kept(mebibyte, validity="invalid"), kept(2 * mebibyte, repeat=1)
    (table,) = offload([wrong, right, kept(3 * mebibyte, repeat=2)])
    assert [row[1] for row in table.rows] == ["2.00 MiB"]
    assert offload([wrong]) == []
