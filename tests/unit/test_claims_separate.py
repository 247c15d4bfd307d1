"""The settings that tell supporting rows from contradicting ones are found from the rows."""

from bench.claims.separate import separated, variable, where
from bench.claims.verdict import Evidence


def row(supports, **facts):
    return Evidence("label", "id", 0, "deepspeed 0.19.8", "measured", "valid", supports, "says", facts=facts)


def test_one_setting_is_enough_where_it_is():
    leaves = separated(
        [
            row(True, gradient_accumulation_steps=1, dtype="bf16", world_size=2),
            row(True, gradient_accumulation_steps=1, dtype="fp32", world_size=8),
            row(False, gradient_accumulation_steps=2, dtype="bf16", world_size=8),
            row(False, gradient_accumulation_steps=4, dtype="fp32", world_size=2),
        ]
    )
    assert variable(leaves, "en") == "gradient_accumulation_steps"
    assert where(leaves, True, "en") == "GAS 1"
    assert where(leaves, False, "en") == "GAS 2 or 4"


def test_two_settings_where_neither_is_enough():
    rows = [
        row(dtype == "bf16" and release == "0.17.5", dtype=dtype, deepspeed=release)
        for dtype in ("bf16", "fp32")
        for release in ("0.17.5", "0.18.0", "0.19.8")
    ]
    leaves = separated(rows)
    assert variable(leaves, "en") == "dtype and release of DeepSpeed"
    assert where(leaves, True, "en") == "dtype bf16 and DeepSpeed 0.17.5"
    assert where(leaves, False, "en") == "dtype fp32; dtype bf16 and DeepSpeed 0.18.0 or 0.19.8"


def test_a_number_separates_by_its_range_not_by_each_value():
    rows = [
        row(params > 1e9, num_params=params, world_size=n)
        for params in (10**8, 5 * 10**8, 2 * 10**9, 7 * 10**9)
        for n in (2, 8)
    ]
    leaves = separated(rows)
    assert len(leaves) == 2
    assert where(leaves, False, "en") == "parameters 100,000,000 to 500,000,000"
    assert where(leaves, True, "en") == "parameters 2,000,000,000 to 7,000,000,000"


def test_a_threshold_that_moves_with_another_setting():
    rows = [
        row(ratio * steps > 4, over_limits=ratio, gradient_accumulation_steps=steps)
        for ratio in (0.5, 2.0, 6.0)
        for steps in (1, 4)
    ]
    leaves = separated(rows)
    assert variable(leaves, "zh").startswith("gradient_accumulation_steps")
    assert where(leaves, True, "en") == "GAS 1 and parameters / limit 6; GAS 4 and parameters / limit 2 to 6"


def test_nothing_recorded_separates_them():
    same = {"dtype": "bf16", "world_size": 2, "num_params": None}
    assert separated([row(True, **same), row(False, **same)]) is None
