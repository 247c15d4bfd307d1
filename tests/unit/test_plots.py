"""Which plots a run has, and that what they draw is what the records say."""

from pathlib import Path

import pytest
from matplotlib.patches import Rectangle

from bench.plots import plots
from bench.plots.capacity import device_memory_bytes
from bench.plots.groups import groups
from bench.plots.memory import peak_bytes
from bench.plots.style import CATEGORY_FILLS, looks, op_fill, settings
from bench.record import Finding, Volume, parse_record
from bench.zero.memory import CATEGORIES

RECORDS = Path(__file__).parents[1] / "data" / "records"


def stored(name):
    return parse_record((RECORDS / name).read_text(), name)


@pytest.fixture
def measured():
    return stored("v3-measured.json")


@pytest.fixture
def emulated():
    return stored("v3-emulated.json")


def row(record, strategy=None, world_size=None, *, tokens=None, step_s=None, repeat=0, cell=None, **changes):
    """Return a row of another cell: ``tokens`` per second and GPU, each timed step ``step_s`` long."""
    wanted = {"strategy": strategy, "world_size": world_size} | (cell or {})
    new_cell = record.cell.model_copy(update={name: value for name, value in wanted.items() if value is not None})
    changes = {"train_batch_size": new_cell.train_batch_size, "label": new_cell.label} | changes
    if tokens is not None:
        rates = {"tokens_per_second_per_gpu": tokens, "tokens_per_second": tokens * new_cell.world_size}
        changes["throughput"] = record.throughput.model_copy(update=rates)
    if step_s is not None:
        times = [[step_s] * 4, [step_s] * 4]
        changes["timing"] = record.timing.model_copy(update={"step_times_s": times, "step_thread_cpu_times_s": times})
    return record.model_copy(
        update={"cell": new_cell, "cell_id": new_cell.cell_id, "repeat": repeat, "practice": None} | changes
    )


def failed(record, strategy, world_size, status="oom", **changes):
    nothing = dict.fromkeys(("timing", "throughput", "memory", "comm", "practice", "emulation"))
    return row(record, strategy, world_size, status=status, reason="because", **nothing | changes)


def names(records):
    return [plot.name for plot in plots(records)]


def one(records, kind):
    (plot,) = [plot for plot in plots(records) if plot.name.startswith(kind)]
    return plot


def texts(axes):
    return [text.get_text() for text in axes.texts]


def bars(axes):
    """Return {name: width of the stacked bar} of a panel, from its artists."""
    labels = [label.get_text() for label in axes.get_yticklabels()]
    found = dict.fromkeys(labels, 0.0)
    for patch in axes.patches:
        assert isinstance(patch, Rectangle)
        found[labels[round(patch.get_y() + patch.get_height() / 2)]] += patch.get_width()
    return found


def marks(axes, name):
    """Return {name of the bar: value of the mark ``name``} of a panel."""
    labels = [label.get_text() for label in axes.get_yticklabels()]
    lines = [line for line in axes.lines if line.get_gid() == f"mark-{name}"]
    return {labels[round(line.get_ydata()[0])]: line.get_xdata()[0] for line in lines}


def test_a_run_without_numbers_has_no_plot(measured):
    assert names([]) == []
    assert names([failed(measured, "z0", 2), failed(measured, "z1", 2, "skipped")]) == []


def test_measured_rows_have_every_kind_that_they_have_numbers_for(measured):
    records = [row(measured, "z0", 2, tokens=10.0), row(measured, "z3", 2, tokens=20.0, practice=measured.practice)]
    assert names(records) == [
        "heatmap",
        "memory-llama-tiny",
        "traffic-llama-tiny",
        "throughput-llama-tiny",
        "step-times-llama-tiny",
        "step-breakdown-llama-tiny",
        "pareto-llama-tiny",
        "predicted-measured",
    ]


def test_emulated_rows_have_no_plot_of_times(emulated):
    records = [row(emulated, "z0", 2), row(emulated, "z3", 2)]
    per_group = [f"{kind}-llama-tiny" for kind in ("memory", "traffic", "pareto")]
    assert names(records) == ["heatmap", *per_group, "predicted-emulated"]
    assert plots(records)[0].title == "How full the GPU is, by model and strategy"
    pareto = one(records, "pareto")
    assert pareto.title.startswith("Traffic against peak memory")
    assert "down and to the left" in pareto.caption


def test_emulated_beside_measured_are_compared_and_share_no_axis(measured, emulated):
    assert "emulated-measured" in names([measured, emulated])
    assert "emulated-measured" not in names([measured])
    for plot in plots([measured, emulated]):
        if plot.name.startswith("memory"):
            assert ("measured on" in plot.caption) != ("no GPU ran" in plot.caption)


def test_an_invalid_row_is_counted_and_not_drawn(measured):
    wrong = row(measured, "z1", 2, validity="invalid", findings=[Finding(check="c", verdict="invalid", text="wrong")])
    plot = one([row(measured, "z0", 2), wrong], "memory")
    assert "1 invalid row not drawn." in plot.caption
    (axes,) = plot.draw().axes
    assert bars(axes)["z1"] == 0
    assert "invalid" in texts(axes)


def test_stacked_bars_sum_to_the_peak_to_the_byte(measured, emulated):
    for record in (measured, emulated):
        points = record.memory.largest.points
        peak = next(point for point in points if point.point == "peak")
        assert sum(1 for held in peak.bytes.values() if held) > 3
        (axes,) = one([record], "memory").draw().axes
        assert bars(axes) == {"z3": record.memory.peak_allocated_bytes}


def test_of_several_launches_the_bar_is_the_median_one(measured):
    def peak(value):
        rank = measured.memory.ranks[0].model_copy(update={"points": [], "peak_allocated_bytes": value})
        return measured.memory.model_copy(update={"ranks": [rank], "peak_allocated_bytes": value})

    records = [row(measured, "z0", 2, repeat=n, memory=peak(value)) for n, value in enumerate([900, 1000, 5000])]
    plot = one(records, "memory")
    (axes,) = plot.draw().axes
    assert bars(axes) == {"z0": 1000}
    assert "n = 3 launches per cell." in plot.caption
    (spread,) = axes.collections
    assert spread.get_segments()[0][:, 0].tolist() == [900, 5000]


def test_the_paper_is_marked_at_its_figure(measured):
    memory, traffic = (one([measured], kind).draw().axes[0] for kind in ("memory", "traffic"))
    assert marks(memory, "paper") == {"z3": measured.theory.model_state_bytes}
    assert marks(traffic, "paper") == {"z3": measured.theory.comm_wire_bytes_per_step}
    assert marks(traffic, "practice") == {"z3": measured.practice.comm_wire_bytes_per_step}
    assert bars(traffic)["z3"] == pytest.approx(measured.comm.comm_wire_bytes_per_step)


@pytest.mark.parametrize("status", ["oom", "timeout", "crashed", "skipped", "config_error"])
def test_a_failure_is_a_word_in_its_place(measured, emulated, status):
    for record in (measured, emulated):
        found = plots([row(record, "z0", 2), row(record, "z3", 2), failed(record, "z1", 2, status)])
        drawn = {plot.name.partition("-")[0]: plot for plot in found}
        for kind in ("heatmap", "memory", "traffic"):
            assert status in texts(drawn[kind].draw().axes[0]), kind
        for kind in ("memory", "traffic", "pareto"):
            assert f"Failed: z1: {status}." in drawn[kind].caption


def test_a_model_of_which_nothing_ran_has_its_words(measured, emulated):
    for record in (measured, emulated):
        lost = [failed(record, strategy, 2, cell={"model": "llama-2-70b"}) for strategy in ("z0", "z3")]
        axes = one([row(record, "z0", 2), *lost], "heatmap").draw().axes[0]
        assert texts(axes).count("oom") == 2


def test_a_cell_that_was_not_asked_for_is_no_hole(measured):
    records = [row(measured, "z0", 1), row(measured, "z0", 2), row(measured, "z1", 2)]
    assert "not run" in texts(one(records, "heatmap").draw().axes[0])


def test_the_capacity_is_a_line_where_it_can_be_seen_and_a_word_where_not(emulated):
    def on(gpu_memory_bytes):
        asked = emulated.cell.emulation.model_copy(update={"gpu_memory_bytes": gpu_memory_bytes})
        return one([row(emulated, cell={"emulation": asked})], "memory").draw().axes[0]

    peak = peak_bytes(emulated)
    (line,) = [line for line in on(2 * peak).lines if line.get_gid() == "capacity"]
    assert line.get_xdata()[0] == 2 * peak
    axes = on(80 * 2**30)
    assert not [line for line in axes.lines if line.get_gid() == "capacity"]
    assert any(text.startswith("GPU memory: 80.0 GiB") for text in texts(axes))
    assert axes.get_xlim()[1] < 2 * peak


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("NVIDIA H200", 141),
        ("NVIDIA H100 80GB HBM3", 80),
        ("NVIDIA A100-SXM4-40GB", 40),
        ("NVIDIA A100-SXM4-80GB", 80),
        ("Tesla V100-SXM2-32GB", 32),
        ("NVIDIA L40S", 48),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA GeForce RTX 4090", None),
        ("Tesla V100-PCIE", None),
    ],
)
def test_a_gpus_memory_is_known_by_its_drivers_name_or_not_at_all(name, gib):
    assert device_memory_bytes(name) == (None if gib is None else gib * 2**30)


def test_on_cuda_the_allocators_count_is_one_part_and_reserved_a_mark(measured):
    rank = measured.memory.ranks[0].model_copy(update={"points": [], "peak_reserved_bytes": 3 * 2**29})
    memory = measured.memory.model_copy(update={"ranks": [rank], "peak_allocated_bytes": 2**30, "kind": "allocator"})
    plot = one([row(measured, "z1", 2, memory=memory, device="cuda", device_name="NVIDIA H200")], "memory")
    (axes,) = plot.draw().axes
    assert bars(axes) == {"z1": 2**30}
    assert marks(axes, "reserved") == {"z1": 3 * 2**29}
    assert "1.00 GiB (1.50 GiB)" in texts(axes)
    assert axes.get_xlabel() == "peak memory per GPU (GiB)"
    assert any(text.startswith("GPU memory, nominal: 141 GiB") for text in texts(axes))


def test_what_does_not_fit_is_told_everywhere(emulated):
    large = row(emulated, "z0", emulation=emulated.emulation.model_copy(update={"fits": False}))
    found = {plot.name.partition("-")[0]: plot for plot in plots([large, row(emulated, "z3")])}
    assert any("does not fit" in text for text in texts(found["memory"].draw().axes[0]))
    assert any(text.startswith("does not fit") for text in texts(found["heatmap"].draw().axes[0]))
    crossed = [line for line in found["pareto"].draw().axes[0].lines if line.get_gid() == "does-not-fit"]
    assert len(crossed) == 1
    assert "does not fit" in found["pareto"].caption


def test_efficiency_is_tokens_per_gpu_over_those_of_the_smallest_count(measured):
    records = [row(measured, "z0", n, tokens=tokens) for n, tokens in ((1, 100.0), (2, 90.0), (4, 70.0))]
    plot = one(records, "throughput")
    total, efficiency = plot.draw().axes
    assert list(total.lines[0].get_ydata()) == [100, 180, 280]
    assert list(efficiency.lines[0].get_ydata()) == [1, 0.9, 0.7]
    assert "weak scaling, the micro batch stays" in plot.caption


def test_at_a_fixed_global_batch_scaling_is_strong(measured):
    cells = [{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4 // n} for n in (1, 2, 4)]
    records = [row(measured, "z0", n, tokens=5.0, cell=cell) for n, cell in zip((1, 2, 4), cells, strict=True)]
    (group,) = groups(records)
    assert group.counts == [1, 2, 4]
    assert "strong scaling" in one(records, "throughput").caption


def test_suspect_times_are_hollow_and_named(measured):
    timing = measured.timing.model_copy(update={"suspect_reasons": ["4 ranks share 2 cores"]})
    plot = one([row(measured, "z0", 1, tokens=5.0), row(measured, "z0", 2, tokens=5.0, timing=timing)], "throughput")
    assert "Hollow, not to be relied on: z0 N=2." in plot.caption
    points = [line for line in plot.draw().axes[0].lines if line.get_marker() == "o" and line.get_linestyle() == "None"]
    assert [line.get_fillstyle() for line in points] == ["full", "none"]


def test_every_timed_step_is_drawn(measured):
    (axes,) = one([measured], "step-times").draw().axes
    (ticks,) = axes.patches
    slowest = [max(times) * 1e3 for times in zip(*measured.timing.step_times_s, strict=True)]
    assert ticks.get_path().vertices[::2, 0].tolist() == pytest.approx(slowest)
    assert axes.get_yticklabels()[0].get_text() == "z3  3 x 1"


def test_a_step_is_its_cpu_time_and_the_rest(measured):
    timing = {"step_times_s": [[0.2, 0.1], [0.1, 0.3]], "step_thread_cpu_times_s": [[0.05, 0.1], [0.1, 0.1]]}
    record = row(measured, timing=measured.timing.model_copy(update=timing))
    plot = one([record], "step-breakdown")
    (axes,) = plot.draw().axes
    assert [patch.get_width() for patch in axes.patches] == pytest.approx([50, 150])
    assert "forward, backward and update are not told apart" in plot.caption


def test_the_front_holds_what_no_other_beats(measured):
    def with_peak(strategy, peak, tokens):
        memory = measured.memory.model_copy(update={"peak_allocated_bytes": peak})
        return row(measured, strategy, tokens=tokens, memory=memory)

    records = [with_peak(*each) for each in (("z0", 300, 30.0), ("z1", 200, 20.0), ("z2", 250, 10.0), ("z3", 100, 5.0))]
    (axes,) = one(records, "pareto").draw().axes
    (front,) = [line for line in axes.lines if line.get_gid() == "front"]
    assert list(zip(front.get_xdata(), front.get_ydata(), strict=True)) == [(100, 5), (200, 20), (300, 30)]


def framed(axes):
    return [round(patch.get_x()) for patch in axes.patches if patch.get_gid() == "best"]


@pytest.mark.parametrize(
    ("z0", "z3", "frames"),
    [
        ((10.0, 11.0, 12.0), (20.0, 19.0, 21.0), [1]),
        ((10.0, 11.0, 19.5), (20.0, 19.0, 21.0), []),  # launches overlap
        ((10.0, 11.0), (20.0, 19.0, 21.0), []),  # two launches separate nothing
    ],
)
def test_the_fastest_of_a_row_is_framed_where_launches_separate_it(measured, z0, z3, frames):
    records = [
        row(measured, strategy, 2, tokens=speed, repeat=repeat)
        for strategy, speeds in (("z0", z0), ("z3", z3))
        for repeat, speed in enumerate(speeds)
    ]
    axes = one(records, "heatmap").draw().axes[0]
    assert framed(axes) == frames
    assert ("★ 20\n100%" in texts(axes)) == bool(frames)


def test_what_cannot_be_relied_on_wins_nothing(measured):
    timing = measured.timing.model_copy(update={"suspect_reasons": ["4 ranks share 2 cores"]})
    records = [row(measured, "z0", 2, tokens=10.0), row(measured, "z3", 2, tokens=20.0, timing=timing)]
    axes = one(records, "heatmap").draw().axes[0]
    assert framed(axes) == []
    assert {"10\n50%", "20?\n100%"} <= set(texts(axes))
    (axes,) = one(records, "pareto").draw().axes
    (front,) = [line for line in axes.lines if line.get_gid() == "front"]
    assert list(front.get_ydata()) == [10]


def test_equal_predictions_are_counted(measured):
    assert "traffic of one step: 1 of 1 equal to the byte" in one([measured], "predicted").caption
    other = measured.practice.model_copy(
        update={"volumes": [Volume(phase="step", op="all_reduce", dtype="bfloat16", num_bytes=8)]}
    )
    assert "traffic of one step: 0 of 1 equal" in one([row(measured, practice=other)], "predicted").caption


def test_predictions_are_compared_where_there_is_a_formula(measured):
    points = measured.memory.largest.points
    equal = sum(sum(p.bytes.get(name, 0) for name in p.predicted) == sum(p.predicted.values()) for p in points)
    assert f"memory at each moment: {equal} of {len(points)} equal to the byte" in one([measured], "predicted").caption


def test_stacks_are_told_apart(measured):
    records = [row(measured, "z2", 2, tokens=5.0, requested_stack=stack) for stack in ("deepspeed==0.18.0", None)]
    (axes,) = one(records, "memory").draw().axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["z2 deepspeed==0.18.0", "z2 installed"]
    (axes,) = one(records, "pareto").draw().axes
    styles = {line.get_fillstyle() for line in axes.lines if line.get_marker() == "^"}
    assert styles == {"full", "left"}


def test_groups_are_those_of_the_tables(measured):
    records = [row(measured, "z0", n, cell={"seq_length": seq}) for seq in (64, 128) for n in (1, 2)]
    records.append(row(measured, "z0", 2, cell={"dtype": "fp32"}))
    found = groups(records)
    assert [group.name for group in found] == [
        "llama-tiny, seq 64, bf16",
        "llama-tiny, seq 128, bf16",
        "llama-tiny, seq 64, fp32",
    ]
    assert [group.counts for group in found] == [[1, 2], [1, 2], [2]]


def test_a_limit_leaves_groups_out_and_says_which(measured):
    records = [row(measured, "z0", 2, tokens=5.0, cell={"seq_length": seq}) for seq in (16, 32, 64)]
    drawn = [plot for plot in plots(records, limit=2) if plot.name.startswith("memory")]
    assert [plot.title for plot in drawn] == [f"Memory by component: llama-tiny, seq {n}" for n in (16, 32)]
    assert "Not drawn here: llama-tiny, seq 64; 'zerostage report RUN --plots FOLDER' draws all." in drawn[1].caption
    assert "Not drawn" not in drawn[0].caption
    assert len([plot for plot in plots(records) if plot.name.startswith("memory")]) == 3


def test_more_gpu_counts_than_panels_are_named(measured):
    counts = [1, 2, 4, 8, 16, 32, 64, 128]
    plot = one([row(measured, "z0", n) for n in counts], "memory")
    shown = [axes.get_title(loc="left") for axes in plot.draw().axes]
    assert shown[0] == "N = 1"
    assert shown[-1] == "N = 128"
    assert len(shown) == 6
    for n in counts:
        assert (f"N = {n}" in shown) != (n in (4, 32))
    assert "N = 4, 32: no room here, see the tables." in plot.caption


def test_every_axis_has_a_unit_or_names_what_it_lists(measured, emulated):
    records = [row(measured, s, n, tokens=9.0) for s in ("z0", "z3") for n in (1, 2)]
    records += [row(emulated, s, n) for s in ("z0", "z3") for n in (2, 8)] + [measured, emulated]
    units = ("(B)", "(KiB)", "(MiB)", "(GiB)", "(bytes)", "(ms)", "tokens/s)", "(%)", "(ranks)", "(GPUs)", "strategy")
    for plot in plots(records):
        figure = plot.draw()
        with settings():
            figure.draw_without_rendering()
        for axes in figure.axes:
            labelled = axes.xaxis.get_tick_params().get("labelbottom", True)
            if labelled and axes.axison:
                assert axes.get_xlabel().endswith(units), (plot.name, axes.get_xlabel())


def test_every_caption_says_where_its_numbers_come_from(measured, emulated):
    records = [row(measured, s, n, tokens=9.0) for s in ("z0", "z3") for n in (1, 2)] + [measured, emulated]
    for plot in plots(records):
        assert any(word in plot.caption.lower() for word in ("measured", "emulated")), plot.name


def luminance(colour):
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_in_grey_every_part_of_a_bar_differs_from_every_other():
    assert set(CATEGORIES) < set(CATEGORY_FILLS)
    ops = ("all_reduce", "reduce_scatter_tensor", "all_gather_into_tensor", "reduce", "broadcast", "all_to_all_single")
    traffic = [op_fill(phase, op) for phase in ("forward", "backward", "step") for op in ops]
    for fills in (list(CATEGORY_FILLS.values()), traffic):
        for number, fill in enumerate(fills):
            for other in fills[number + 1 :]:
                apart = abs(luminance(fill.colour) - luminance(other.colour)) > 0.03
                assert apart or fill.hatch != other.hatch, (fill, other)


def test_every_strategy_has_a_marker_of_its_own(measured):
    found = ["ddp", "fsdp2", "z0", "z1", "z2", "z3"]
    files = [row(measured, "z3", 2, cell={"name": name}) for name in ("ds_a", "ds_b", "z3-offload", "zpp-hpz")]
    seen = looks([*(row(measured, strategy, 2) for strategy in found), *files])
    assert len({look.marker for look in seen.values()}) == len(seen) == 10
    assert {seen[name].colour for name in ("z3", "ds_a", "z3-offload")} == {seen["z3"].colour}
    many = looks([row(measured, "z3", 2, cell={"name": f"file {n:02}"}) for n in range(20)])
    assert len({(look.marker, look.line) for look in many.values()}) == 20


def test_a_strategy_looks_the_same_in_every_plot(measured):
    records = [row(measured, s, n, tokens=9.0) for s in ("z1", "z2") for n in (1, 2)]
    drawn = {}
    for kind in ("throughput", "pareto", "step-times"):
        axes = one(records, kind).draw().axes[0]
        drawn[kind] = {(line.get_color(), line.get_marker()) for line in axes.lines if line.get_marker() in ("s", "^")}
    assert drawn["throughput"] == drawn["pareto"] == drawn["step-times"]
    assert len(drawn["throughput"]) == 2
