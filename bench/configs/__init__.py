"""The configurations that people have, read and resolved: DeepSpeed JSON, accelerate and Trainer files."""

from bench.configs.read import ConfigFile, read_configs
from bench.configs.resolve import Context, Resolved, resolve

__all__ = ["ConfigFile", "Context", "Resolved", "read_configs", "resolve"]
