"""The stack and the machine: what a run was made with, and what this machine offers it."""

import contextlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil

from bench import __version__
from bench.errors import LaunchError
from bench.plan import Resources

# The only environment variables that a manifest may hold: they change results, and none is a secret.
_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "DS_ACCELERATOR",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
)
_PREFIXES = ("NCCL_", "GLOO_", "PYTORCH_CUDA_ALLOC", "PYTORCH_ALLOC", "KMP_")
_PACKAGES = ("torch", "deepspeed", "transformers", "accelerate")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def installed() -> dict[str, str]:
    """Return the versions of the packages that decide a result, those that are installed, by their names."""
    return {package: version for package in _PACKAGES if (version := _version(package)) is not None}


def gpus() -> list[dict[str, Any]]:
    """Return index, name and memory (bytes) of the visible NVIDIA GPUs, through NVML; empty when there are none.

    CUDA is never initialised here. ``CUDA_VISIBLE_DEVICES`` is honoured, indices and UUIDs.

    Raises:
        LaunchError: ``CUDA_VISIBLE_DEVICES`` names devices, none of which is there.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no driver, no library: no GPU that this suite can use
        return []
    found = []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    allowed = None if visible is None else {part.strip() for part in visible.split(",")} - {"", "-1"}
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = str(pynvml.nvmlDeviceGetUUID(handle))
        if allowed is not None and str(index) not in allowed and not any(uuid.startswith(part) for part in allowed):
            continue
        memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
        found.append({"index": index, "name": str(pynvml.nvmlDeviceGetName(handle)), "memory_bytes": memory})
    if allowed and not found:
        raise LaunchError(
            f"CUDA_VISIBLE_DEVICES={visible} names no GPU here; give indices or UUIDs, or nothing to use the CPU"
        )
    return found


def cpu_name() -> str:
    """Return the processor's model name, as the system gives it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def resources(cpu_slots: int) -> Resources:
    """Return what this machine offers: its GPUs, or ``cpu_slots`` ranks on the CPU."""
    found, deepspeed = gpus(), installed().get("deepspeed", "")
    if found:
        smallest = min(gpu["memory_bytes"] for gpu in found)
        return Resources(device="cuda", slots=len(found), memory_bytes=smallest, shared=False, deepspeed=deepspeed)
    memory = psutil.virtual_memory().total
    return Resources(device="cpu", slots=cpu_slots, memory_bytes=memory, shared=True, deepspeed=deepspeed)


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def fingerprint() -> dict[str, Any]:
    """Return versions, machine and settings, as the manifest keeps them. No secret and no user name is in it."""
    found = gpus()
    # In an installed package the enclosing checkout, if any, is someone else's.
    ours = _git("ls-files", "--error-unmatch", "environment.py") is not None
    return {
        "stack": {
            "python": platform.python_version(),
            **{package: _version(package) for package in _PACKAGES},
            "device_names": sorted({gpu["name"] for gpu in found}) or [cpu_name()],
            "num_gpus": len(found),
            "num_cores": num_cores(),
            # Of a rank on CPU: the launcher's side sets 1 unless the user says otherwise.
            "omp_num_threads": os.environ.get("OMP_NUM_THREADS", None if found else "1"),
        },
        "zerostage": {
            "version": __version__,
            "commit": _git("rev-parse", "HEAD") if ours else None,
            "dirty": bool(_git("status", "--porcelain", "--untracked-files=no")) if ours else None,
        },
        "platform": platform.platform(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": found,
        "variables": {k: v for k, v in sorted(os.environ.items()) if k in _VARIABLES or k.startswith(_PREFIXES)},
    }
