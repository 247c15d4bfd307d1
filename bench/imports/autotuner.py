"""One experiment of DeepSpeed's autotuner: metrics.json, with exp.json, ds_config.json and stderr.log beside it.

``_autotuning_exit`` in deepspeed/runtime/engine.py writes metrics.json; an experiment that failed leaves none, and the
autotuner counts it as 0.
"""

from collections.abc import Mapping
from typing import Any

from bench.imports.reading import Reading, Wanted, given, number, settings_of, suspect, whole
from bench.imports.row import Setting
from bench.record import Finding, Status
from bench.status import judge_log

LOGS = ("stderr.log", "stdout.log")
FORMAT = "DeepSpeed autotuner"
_PHASES = ("forward", "fwd", "backward", "bwd", "step")
# From this GAS on, a tenth of the micro steps, rounded, is at least one (deepspeed/utils/timer.py trim_mean).
TRIMMED_FROM_GAS = 6

PARTS = (
    "latency is forward + backward + step of one optimizer step and leaves out all between them, so throughput is "
    "higher than end to end (DeepSpeedExamples autotuning README)"
)
FLOPS = "FLOPS_per_gpu counts the profiled forward three times, a recomputed forward not"
NO_FLOPS = "FLOPS_per_gpu is 0: the profiler counted nothing"
UNCLEAR = (
    "throughput x latency is 1000 times the batch, so this is of DeepSpeed before 0.8.1: the times are milliseconds "
    "(before 0.6.2), or microseconds and throughput 1000 times too low; FLOPS_per_gpu is 1000 or 10^6 times too low "
    "(deepspeedai/DeepSpeed#1881, #2711)"
)
UNKNOWN_UNIT = (
    "unit unknown without train_batch_size: microseconds from DeepSpeed 0.8.1 on, before that perhaps milliseconds "
    "(deepspeedai/DeepSpeed#2711)"
)
NO_GAS = (
    "latency is that of one micro step and throughput gradient_accumulation_steps times too high, as before DeepSpeed "
    "0.10.3 (deepspeedai/DeepSpeed#2888)"
)
TRIMMED = (
    "from 6 accumulation steps on, a 10% trimmed mean over the micro steps of one optimizer step drops the only one in "
    "which the optimizer works: step and latency lack it, throughput is too high (deepspeed/utils/timer.py trim_mean, "
    "seen with 0.19.8)"
)


def is_metrics(data: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a metrics.json."""
    return "throughput" in data and ("latency" in data or "FLOPS_per_gpu" in data)


def is_experiment(data: Mapping[str, Any]) -> bool:
    """Whether a JSON object is an exp.json."""
    return isinstance(data.get("ds_config"), dict) and "name" in data


def _settings(experiment: Mapping[str, Any], ds_config: Mapping[str, Any]) -> dict[str, Setting]:
    ran = settings_of(experiment, ("name", "num_gpus", "num_nodes"))
    ran |= settings_of(ds_config, ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"))
    zero = ds_config.get("zero_optimization")
    stage = number(zero.get("stage")) if isinstance(zero, dict) else None
    return ran if stage is None else ran | {"zero_optimization_stage": stage}


def _batch(ran: Mapping[str, Setting]) -> int | None:
    """Return the global batch, which ds_config.json gives whole or as its factors."""
    if batch := whole(ran.get("train_batch_size")):
        return batch
    names = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "num_gpus")
    micro_batch, steps, gpus = (whole(ran.get(name)) for name in names)
    nodes = whole(ran.get("num_nodes")) or 1
    return micro_batch * steps * gpus * nodes if micro_batch and steps and gpus else None


def _unit(throughput: float, latency: float, batch: int | None) -> tuple[str, Finding | None]:
    """Return the unit of the times: throughput x latency is the batch times the units of time in a second."""
    product = throughput * latency
    of_microseconds = batch if batch else round(product / 1e6)
    if of_microseconds and abs(product / 1e6 / of_microseconds - 1) < 1e-6:
        return "us", None
    if batch and abs(product / 1e3 / batch - 1) < 1e-6:
        return "ms_or_us", suspect(UNCLEAR)
    return "unknown_unit", suspect(UNKNOWN_UNIT)


def _accumulation(data: Mapping[str, Any], latency: float, ran: Mapping[str, Setting]) -> list[Finding]:
    parts = [number(data.get(name)) or 0 for name in _PHASES]
    factor = latency / sum(parts) if sum(parts) > 0 else 0
    steps = whole(ran.get("gradient_accumulation_steps")) or 0
    found = [suspect(NO_GAS)] if steps > 1 and abs(factor - 1) < 1e-6 else []
    return found + ([suspect(TRIMMED)] if max(steps, round(factor)) >= TRIMMED_FROM_GAS else [])


def metrics(
    data: Mapping[str, Any], experiment: Mapping[str, Any], ds_config: Mapping[str, Any], log: str, identity: str
) -> Reading:
    """Read metrics.json. ``experiment``, ``ds_config``, ``log`` are what lies beside it, empty where nothing does."""
    ran = _settings(experiment, ds_config or _config(experiment))
    throughput, latency = number(data["throughput"]), number(data.get("latency"))
    if not throughput or throughput < 0 or latency == 0:
        return _failed(ran, log, identity, "the metric is 0, as the autotuner writes for an experiment that failed")
    renamed = "fwd" in data  # since 0.10.1, when the times had long been microseconds
    unit, doubt = ("us", None) if renamed else _unit(throughput, latency or 0, _batch(ran))
    wanted: list[Wanted] = [
        ("throughput", "throughput_samples_per_second", throughput, "one optimizer step, all ranks")
    ]
    flops = number(data.get("FLOPS_per_gpu"))
    if flops != 0:
        wanted.append(("throughput", "flops_per_gpu_per_second", data.get("FLOPS_per_gpu"), "one optimizer step"))
    wanted += [("time", f"{name}_{unit}", data.get(name), "mean micro step of one optimizer step") for name in _PHASES]
    wanted.append(("time", f"latency_{unit}", data.get("latency"), "one optimizer step, sum of its parts"))
    figures, refused = given(wanted)
    findings = [suspect(PARTS), *([doubt] if doubt else []), *([suspect(FLOPS)] if flops else [])]
    findings += [suspect(NO_FLOPS)] if flops == 0 else []
    findings += _accumulation(data, latency or 0, ran)
    return Reading(FORMAT, figures, findings + refused, ran, "completed", identity=identity)


def failed_experiment(experiment: Mapping[str, Any], log: str, identity: str) -> Reading:
    """Read exp.json where no metrics.json lies beside it: the autotuner has no figure for this experiment."""
    ran = _settings(experiment, _config(experiment))
    return _failed(ran, log, identity, "the experiment left no metrics.json")


def _config(experiment: Mapping[str, Any]) -> Mapping[str, Any]:
    found = experiment.get("ds_config")
    return found if isinstance(found, dict) else {}


def _failed(ran: dict[str, Setting], log: str, identity: str, reason: str) -> Reading:
    judged, said = judge_log(log)
    # A launcher may see its ranks end well and the experiment still have no figure.
    status: Status = judged if judged not in (None, "completed") else "crashed"
    return Reading(FORMAT, [], [], ran, status, f"{reason}; {said}" if said else reason, identity)
