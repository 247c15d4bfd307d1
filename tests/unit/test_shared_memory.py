import mmap
import os
from pathlib import Path

from bench.shared_memory import mapped_ports, remove_buffers


def test_only_the_buffers_of_that_launch_are_removed(tmp_path: Path) -> None:
    mine = [f"deepspeed_allreduce_buffer_{os.getuid()}_127.0.0.1_29511_{rank}" for rank in range(2)]
    others = [
        f"deepspeed_allreduce_buffer_{os.getuid()}_127.0.0.1_2951_0",
        f"deepspeed_allreduce_buffer_{os.getuid()}_127.0.0.1_129511_0",
        f"deepspeed_allreduce_buffer_{os.getuid() + 1}_127.0.0.1_29511_0",
        "something_else_29511_0",
    ]
    for name in mine + others:
        (tmp_path / name).touch()
    assert remove_buffers(29511, tmp_path) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)
    assert remove_buffers(29511, tmp_path / "nowhere") == 0


def test_the_port_of_a_forked_rank_is_that_of_its_buffers(tmp_path: Path) -> None:
    name = f"deepspeed_allreduce_buffer_{os.getuid()}_10.0.0.7_29512_3"
    with (tmp_path / name).open("wb+") as file:
        file.truncate(mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), 0):
            assert "29512" in mapped_ports(os.getpid())
    assert "29512" not in mapped_ports(os.getpid())
    assert mapped_ports(2**30) == set()
