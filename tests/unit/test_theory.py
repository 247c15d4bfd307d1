import pytest

from bench.zero.stages import STRATEGIES
from bench.zero.theory import adam_bytes_per_param, model_state_bytes, wire_bytes_per_step

# ZeRO paper (arXiv 1910.02054), table 1: GB per GPU, as printed, by parameters in billions and GPUs.
TABLE_1 = {
    (7.5, 1): ("120", "120", "120"),
    (7.5, 4): ("52.5", "41.3", "30"),
    (7.5, 16): ("35.6", "21.6", "7.5"),
    (7.5, 64): ("31.4", "16.6", "1.88"),
    (7.5, 256): ("30.4", "15.4", "0.47"),
    (7.5, 1024): ("30.1", "15.1", "0.12"),
    (128, 1): ("2048", "2048", "2048"),
    (128, 4): ("896", "704", "512"),
    (128, 16): ("608", "368", "128"),
    (128, 64): ("536", "284", "32"),
    (128, 256): ("518", "263", "8"),
    (128, 1024): ("513", "257", "2"),
    (1000, 1): ("16000", "16000", "16000"),
    (1000, 4): ("7000", "5500", "4000"),
    (1000, 16): ("4750", "2875", "1000"),
    (1000, 64): ("4187", "2218", "250"),
    (1000, 256): ("4046", "2054", "62.5"),
    (1000, 1024): ("4011", "2013", "15.6"),
}
PSI = 7_000_000_000


@pytest.mark.parametrize(
    ("billions", "gpus", "strategy", "printed"),
    [
        (billions, gpus, strategy, printed)
        for (billions, gpus), row in TABLE_1.items()
        for strategy, printed in zip(("z1", "z2", "z3"), row, strict=True)
    ],
)
def test_model_states_match_table_1_of_the_paper(billions: float, gpus: int, strategy: str, printed: str) -> None:
    decimals = len(printed.partition(".")[2])
    gigabytes = model_state_bytes(int(billions * 1e9), strategy, gpus, "bf16") / 1e9
    assert gigabytes == pytest.approx(float(printed), abs=1.0 / 10**decimals, rel=0)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_gpu_holds_16_bytes_per_parameter(strategy: str, dtype: str) -> None:
    assert model_state_bytes(PSI, strategy, 1, dtype) == 16 * PSI
    assert sum(adam_bytes_per_param(dtype)) == 16


@pytest.mark.parametrize(
    ("strategy", "dtype", "per_param"),
    [
        ("ddp", "bf16", 16),
        ("z0", "bf16", 16),
        ("z1", "bf16", 2 + 2 + 12 / 8),
        ("z2", "fp16", 2 + 14 / 8),
        ("z3", "bf16", 2),
        ("z1", "fp32", 4 + 4 + 8 / 8),
        ("z2", "fp32", 4 + 12 / 8),
        ("z3", "fp32", 2),
    ],
)
def test_model_states_by_hand_on_8_gpus(strategy: str, dtype: str, per_param: float) -> None:
    assert model_state_bytes(PSI, strategy, 8, dtype) == PSI * per_param


@pytest.mark.parametrize(("dtype", "width"), [("bf16", 2), ("fp16", 2), ("fp32", 4)])
@pytest.mark.parametrize(
    ("strategy", "volumes"), [("ddp", 2), ("z0", 2), ("z1", 2), ("z2", 2), ("z3", 3), ("fsdp2", 3)]
)
def test_wire_volume(strategy: str, volumes: int, dtype: str, width: int) -> None:
    assert wire_bytes_per_step(PSI, strategy, 1, dtype) == 0
    assert wire_bytes_per_step(PSI, strategy, 2, dtype) == volumes * PSI * width / 2
    assert wire_bytes_per_step(PSI, strategy, 8, dtype) == volumes * PSI * width * 7 / 8


@pytest.mark.parametrize("gpus", [1, 2, 64])
def test_ddp_costs_what_stage_0_costs(gpus: int) -> None:
    for cost in (model_state_bytes, wire_bytes_per_step):
        assert cost(PSI, "ddp", gpus, "bf16") == cost(PSI, "z0", gpus, "bf16")
