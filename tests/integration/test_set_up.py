"""The op that DeepSpeed compiles, before the first cell: no compiler can, or a killed build has left it locked."""

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from conftest import zerostage

from bench.environment import fingerprint
from bench.launch import deepspeed, extensions
from bench.store import read_records

pytestmark = pytest.mark.ranks

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def run(path, **variables):
    done = zerostage("run", path, "--results", path.parent / "runs", **NO_GPU, **variables)
    return done, {record.cell.strategy: record for record in read_records(path.parent / "runs" / path.stem)}


def a_compiler_that_fails(folder):
    compiler = folder / "g++"
    compiler.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        '*-MMD*) echo "shm.cpp:7:10: fatal error: immintrin.h: No such file or directory" >&2; exit 1;;\n'
        '*) exec /usr/bin/g++ "$@";;\n'
        "esac\n"
    )
    compiler.chmod(0o755)
    return {"CXX": str(compiler)}


def no_compiler(folder):
    programs = folder / "bin"
    programs.mkdir()
    for program in (*Path("/bin").iterdir(), *Path("/usr/bin").iterdir()):
        if not any(name in program.name for name in ("++", "gcc", "clang")) and program.name != "cc":
            (programs / program.name).unlink(missing_ok=True)
            (programs / program.name).symlink_to(program)
    return {"PATH": str(programs)}


@pytest.mark.parametrize(
    ("broken", "reasons"),
    [
        pytest.param(
            a_compiler_that_fails,
            ["shm.cpp:7:10: fatal error: immintrin.h: No such file or directory"],
            marks=pytest.mark.slow,
        ),
        (no_compiler, ["c++: not found", "there is no c++ on PATH: install a C++ compiler (g++)"]),
    ],
)
def test_an_op_that_cannot_be_compiled_costs_only_the_cells_that_need_it(scenario_file, tmp_path, broken, reasons):
    variables = broken(tmp_path) | {"TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")}
    path = scenario_file({"strategy": ["z1", "ddp"], "world_size": 1})
    done, found = run(path, **variables)
    assert done.returncode == 1, done.stdout + done.stderr
    assert found["ddp"].status == "completed"
    assert found["z1"].status == "build_error"
    assert [reason for reason in reasons if reason not in found["z1"].reason] == []
    assert found["z1"].launch is None
    again, _ = run(path, **variables)  # a compiler may be there by now, so it is tried again
    assert "1 of 2 rows are there already" in again.stdout
    assert again.returncode == 1


def compiles(build):
    with contextlib.suppress(psutil.NoSuchProcess):  # a short-lived one has gone meanwhile
        return any("++" in child.name() for child in build.children(recursive=True))
    return False


def kill_while_it_compiles(extensions_folder, log):
    """Start a build, kill -9 all its processes while the compiler runs, and return the lock that is left."""
    argv = [sys.executable, "-m", "bench.worker.prebuild"]
    lock = extensions_folder / "deepspeed_shm_comm" / "lock"
    with log.open("w") as stream:
        env = deepspeed.environment("cpu", extensions_folder) | NO_GPU
        build = psutil.Popen(argv, env=env, stdout=stream, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 240
    while not (lock.exists() and compiles(build)):
        assert build.poll() is None, log.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    for process in [build, *build.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    build.wait()
    return lock


@pytest.mark.slow
def test_the_lock_of_a_build_that_was_killed_is_found_explained_and_cleared(scenario_file, tmp_path, monkeypatch):
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    stack = fingerprint()["stack"]
    folder = extensions.folder({name: stack[name] for name in ("python", "torch", "deepspeed")})
    lock = kill_while_it_compiles(folder, tmp_path / "killed.log")
    assert lock.exists()
    assert extensions.holder(lock) is None

    done, found = run(scenario_file({"strategy": "z1", "world_size": 1}))
    assert done.returncode == 0, done.stdout + done.stderr
    assert found["z1"].status == "completed"
    assert "set-up: compiling DeepSpeed's C++ op" in done.stdout
    assert "set-up: found deepspeed_shm_comm/lock, " in done.stdout
    assert " old, which no process holds: left by a build that was killed; removed\n" in done.stdout
    assert not lock.exists()
