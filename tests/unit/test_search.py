"""The launches of a search, and the row that they end in. A launch here is a function of the size."""

from pathlib import Path

import pytest

from bench.job import Job
from bench.plan import Resources, plan
from bench.record import AllocatorModel, Emulation, parse_record
from bench.scenario import Scenario
from bench.search import Search

V1 = Path(__file__).parents[1] / "data" / "records" / "v1-completed.json"
CUDA = Resources(device="cuda", slots=8, memory_bytes=2**40, shared=False)
CPU = Resources(device="cpu", slots=8, memory_bytes=2**40, shared=True)
RECORD = parse_record(V1.read_text(), str(V1))


def planned(strategy="fsdp2", **settings):
    axes = {"model": "llama-tiny", "strategy": strategy, "train_micro_batch_size_per_gpu": "max", "world_size": 2}
    scenario = {"matrix": axes, "largest_batch": {"memory_gib": 2**-20, "at_most": 64}} | settings
    return plan(Scenario.model_validate(scenario), CUDA)[0]


class Launches:
    """Each size holds 100 bytes of the 1024 that there are; ``ends`` are statuses by (size, whether it is a try)."""

    def __init__(self, run, cell=None, repeat=0, ends=None, offer=CUDA):
        self.offer = offer
        self.targets = []
        self.run, self.ends, self.made, self.referred, self.said = run, ends or {}, [], [], []
        self.job = Job(cell or planned(), repeat)

    def launch(self, job):
        size = job.planned.cell.train_micro_batch_size_per_gpu
        self.made.append((size, job.part))
        for name in (f"logs/{job.name}.log", f"traces/{job.name}.json.gz"):
            path = self.run / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(job.part)
        status = self.ends.get((size, bool(job.part)), "completed")
        ranks = [
            rank.model_copy(update={"peak_allocated_bytes": 100 * size, "init_peak_bytes": 1}) for rank in
            RECORD.memory.ranks
        ]  # fmt: skip
        emulation = None
        if job.planned.cell.emulation is not None:
            self.targets.append(job.planned.cell.emulation)
            refused = None if 100 * size <= 1024 or self.offer is CPU else 100
            model = AllocatorModel(
                peak_allocated_bytes=1, peak_reserved_bytes=1, num_alloc_retries=0, out_of_memory_bytes=refused
            )
            emulation = Emulation(
                fits=refused is None, allocator=model, guesses=[], flops_per_step=1, trace="x", not_known=[]
            )
        return RECORD.model_copy(
            update={
                "emulation": emulation,
                "provenance": job.planned.cell.provenance,
                "cell": job.planned.cell,
                "cell_id": job.planned.cell_id,
                "status": status,
                "reason": None if status == "completed" else f"ended {status}",
                "memory": RECORD.memory.model_copy(update={"ranks": ranks}) if status == "completed" else None,
                "launch": RECORD.launch.model_copy(update={"log": f"logs/{job.name}.log"}),
            }
        )

    def search(self):
        return Search(self.job, self.run, self.offer, self.launch, self.refer, self.said.append)

    def refer(self, cell):
        self.referred.append(cell.cell.train_micro_batch_size_per_gpu)

    def sizes(self):
        return [size for size, _ in self.made]


def test_the_row_is_a_whole_launch_at_the_size_found_with_a_reference(tmp_path):
    launches = Launches(tmp_path)
    search = launches.search()
    row = search.row()
    assert launches.sizes() == [1, 2, 4, 8, 16, 12, 10, 11, 10]
    assert launches.made[-1] == (10, "")
    assert launches.referred == [10]
    assert (row.status, row.cell.train_micro_batch_size_per_gpu, row.label) == (
        "completed",
        10,
        launches.job.planned.label,
    )
    assert "/mbsmax/" in row.label
    assert row.cell.cell_id == row.cell_id == launches.job.planned.cell_id
    assert row.cell.steps == launches.job.planned.cell.steps
    assert [each.train_micro_batch_size_per_gpu for each in row.batch_search] == launches.sizes()
    assert {each.train_micro_batch_size_per_gpu: each.fits for each in row.batch_search}[11] is False
    assert row.spent_s == sum(each.wall_time_s for each in row.batch_search)
    assert row.launch.log == f"logs/{launches.job.name}.log"
    search.forget()
    assert [path.name for path in (tmp_path / "logs").iterdir()] == [f"{launches.job.name}.log"]
    assert not (tmp_path / "searches").exists()


def test_the_row_of_an_emulated_cell_is_that_of_its_try(tmp_path):
    launches = Launches(tmp_path, planned(matrix=EMULATED, largest_batch={"at_most": 64}))
    search = launches.search()
    row = search.row()
    # The formulas let all 64 fit into the emulated GPU.
    assert launches.sizes() == [64, 63, 61, 57, 49, 33, 1, 17, 9, 13, 11, 10]
    assert launches.referred == []
    assert (row.cell.train_micro_batch_size_per_gpu, row.provenance) == (10, "emulated")
    for name in (row.launch.log, row.emulation.trace):
        assert launches.job.name in name
        assert (tmp_path / name).read_text() == "-mbs10"
    search.forget()
    assert len(list(tmp_path.glob("*/*"))) == 2


EMULATED = {"model": "llama-tiny", "strategy": "z1", "train_micro_batch_size_per_gpu": "max", "mode": "emulated"}


def test_a_size_that_fits_only_without_its_timed_pass_is_not_the_result(tmp_path):
    launches = Launches(tmp_path, ends={(10, False): "oom"})
    row = launches.search().row()
    assert row.cell.train_micro_batch_size_per_gpu == 9
    assert launches.made[-2:] == [(9, "-mbs9"), (9, "")]
    assert launches.sizes().count(11) == 1


def test_where_not_even_one_fits_the_row_is_out_of_memory_and_says_where(tmp_path):
    launches = Launches(tmp_path, ends={(1, True): "oom"})
    row = launches.search().row()
    assert (row.status, row.memory) == ("oom", None)
    assert row.reason == "micro batch 1 does not fit: ended oom"
    assert len(row.batch_search) == 1
    assert (tmp_path / row.launch.log).read_text() == "-mbs1"


def test_a_launch_that_says_nothing_of_its_size_ends_the_search(tmp_path):
    launches = Launches(tmp_path, ends={(4, True): "hang"})
    row = launches.search().row()
    assert (row.status, row.reason, row.label) == ("hang", "micro batch 4: ended hang", launches.job.planned.label)
    assert [each.train_micro_batch_size_per_gpu for each in row.batch_search] == [1, 2]
    assert (tmp_path / row.launch.log).read_text() == "-mbs4"


def test_a_search_that_ends_at_its_limit_has_no_size_that_fails(tmp_path):
    cell = planned(largest_batch={"memory_gib": 1.0, "at_most": 6})
    launches = Launches(tmp_path, cell)
    row = launches.search().row()
    assert row.cell.train_micro_batch_size_per_gpu == 6
    assert all(each.fits for each in row.batch_search)


def test_an_interrupted_search_goes_on_where_it_was(tmp_path):
    class Interrupted(Launches):
        def launch(self, job):
            if len(self.made) == 5:
                raise KeyboardInterrupt
            return super().launch(job)

    with pytest.raises(KeyboardInterrupt):
        Interrupted(tmp_path).search().row()
    (tmp_path / "searches").joinpath(Job(planned(), 0).name, "mbs8.json").write_text("torn")
    again = Launches(tmp_path)
    row = again.search().row()
    assert again.sizes() == [8, 12, 10, 11, 10]
    assert row.cell.train_micro_batch_size_per_gpu == 10
    assert len(row.batch_search) == 9


def test_a_further_repeat_is_launched_at_the_size_that_the_first_found(tmp_path):
    first = Launches(tmp_path).search().row()
    second = Launches(tmp_path, repeat=1)
    row = second.search().row(first)
    assert second.sizes() == [10]
    assert second.referred == [10]
    assert row.cell == first.cell
    assert row.batch_search[:-1] == [each.model_copy(update={"wall_time_s": 0.0}) for each in first.batch_search]
    assert row.spent_s == row.launch.wall_time_s
    third = Launches(tmp_path, repeat=2, ends={(10, False): "oom"})
    row = third.search().row(first)
    assert (row.status, row.cell.train_micro_batch_size_per_gpu) == ("oom", 10)
    assert "an earlier launch found, does not fit in this one" in row.reason


def test_the_formulas_propose_and_the_launches_decide(tmp_path):
    """They say that not even 1 fits in a KiB; the launches, which hold less, that 10 does."""
    launches = Launches(tmp_path, planned("z1"))
    row = launches.search().row()
    assert (row.batch_search[0].how, row.batch_search[0].fits) == ("predicted", False)
    assert row.cell.train_micro_batch_size_per_gpu == 10


@pytest.mark.parametrize(("offer", "path", "memory"), [(CUDA, "cuda-like", 1024), (CPU, "cpu", 2**40)])
def test_where_formulas_have_no_answer_emulation_proposes(tmp_path, offer, path, memory):
    """Of a family without formulas; emulated, 100 bytes of each size are held too, so 10 is proposed, and right.

    On CUDA by the allocator, to which the budget is the GPU; on CPU by the storages, as in the launches.
    """
    cell = planned("z3")
    launches = Launches(tmp_path, cell.model_copy(update={"params": None}), offer=offer)
    launches.search().row()
    parts = [part for _, part in launches.made]
    assert parts[:5] == [f"-mbs{size}-emulated" for size in (1, 2, 4, 8, 16)]
    assert launches.made[-3:] == [(10, "-mbs10"), (11, "-mbs11"), (10, "")]
    assert {(target.accelerator_path, target.gpu_memory_bytes) for target in launches.targets} == {(path, memory)}
