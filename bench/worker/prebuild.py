"""Build, once, what DeepSpeed would otherwise compile inside the first cell: its CPU shared-memory collective."""

import deepspeed.ops
from deepspeed.accelerator import get_accelerator


def main() -> None:
    """Build and load the op where this stack has it; an error here is the compiler's."""
    builder = get_accelerator().create_op_builder("ShareMemCommBuilder")
    if builder is not None and deepspeed.ops.__compatible_ops__.get(builder.NAME, False):
        builder.load()


if __name__ == "__main__":
    main()
