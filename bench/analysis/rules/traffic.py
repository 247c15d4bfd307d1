"""Why traffic differs from the paper's, and between stages."""

from bench.analysis.rules.rule import Group, Rule, collectives, name, reductions, volume
from bench.analysis.units import mib
from bench.zero.defaults import SIZES

LIMITS = ("stage3_max_live_parameters", "stage3_max_reuse_distance")


def _every_micro_step(group: Group) -> dict[str, str]:
    found = {}
    for row in group.rows:
        steps = row.cell.gradient_accumulation_steps
        once = group.beside(row, "z1", "z0")
        if row.cell.strategy not in ("z2", "z3") or steps == 1 or once is None:
            continue
        here, there = volume(reductions(row)), volume(reductions(once))
        if there and here >= 1.5 * there:
            found[name(row)] = f"{mib(here)} reduced in {steps} micro-steps, {mib(there)} at {once.cell.strategy}"
    return found


def _no_regather(group: Group) -> dict[str, str]:
    found = {}
    for row in group.rows:
        if row.cell.strategy != "z3" or row.num_params is None:
            continue
        gathers = [item for item in collectives(row) if item.op.startswith("all_gather")]
        forward, backward = (
            volume(item for item in gathers if item.phase == phase) for phase in ("forward", "backward")
        )
        runs = row.cell.zero_optimization | row.effective
        limit = min(int(runs.get(key, SIZES[key])) for key in LIMITS)
        if forward and not backward and row.num_params <= limit:
            found[name(row)] = (
                f"{mib(forward)} gathered in forward, none in backward; {row.num_params:,} parameters, limit {limit:,}"
            )
    return found


def _all_reduced(group: Group) -> dict[str, str]:
    found = {}
    for row in group.rows:
        ops = {item.op for item in reductions(row)}
        if row.cell.strategy not in ("z1", "z2") or ops != {"all_reduce"} or row.comm is None or row.theory is None:
            continue
        sent, paper = row.comm.comm_wire_bytes_per_step, row.theory.comm_wire_bytes_per_step
        if sent is not None and sent > 1.05 * paper:
            gathered = volume(item for item in collectives(row) if item.phase == "step")
            found[name(row)] = (
                f"{mib(volume(reductions(row)))} all-reduced and {mib(gathered)} gathered: {mib(sent)} sent, "
                f"paper {mib(paper)}"
            )
    return found


RULES = (
    Rule(
        "all-reduce",
        "Traffic",
        "stage 1 or 2 reduces its gradients by all_reduce alone and sends more than 1.05 times the paper's bytes",
        "Stages 1 and 2 all-reduce whole gradients where the paper reduce-scatters, and gather parameters besides.",
        ("deepspeedai/DeepSpeed#5758", "deepspeedai/DeepSpeed#7059"),
        _all_reduced,
    ),
    Rule(
        "every-micro-step",
        "Traffic",
        "accumulation over more than one micro-step, and stage 2 or 3 reduces at least 1.5 times the bytes of stage 1 "
        "(else 0)",
        "Stages 2 and 3 keep only their share of the gradients, so they reduce at every micro-step; stages 0 and 1 "
        "reduce once per optimizer step.",
        ("deepspeedai/DeepSpeed#2252", "deepspeedai/DeepSpeed#373"),
        _every_micro_step,
    ),
    Rule(
        "no-regather",
        "Traffic",
        "stage 3 gathers in forward and not in backward, with no more parameters than stage3_max_live_parameters and "
        "stage3_max_reuse_distance allow to stay",
        "Stage 3 did not gather again in backward: all parameters fit its limits (1e9 by default), so they stay whole "
        "between forward and backward; the paper counts a second gather.",
        ("deepspeedai/DeepSpeed#2864", "deepspeedai/DeepSpeed#2869"),
        _no_regather,
    ),
)
