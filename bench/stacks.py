"""A requested stack: the exact releases of some packages that a cell is to run with, over the shared torch.

Written as pip requirements, ``deepspeed==0.17.5`` or ``deepspeed==0.18.0 transformers==4.57.0``. No stack, in a
scenario the word ``installed``, is the environment that zerostage itself runs in.
"""

import re
from typing import Any

from bench.errors import nearest

INSTALLED = "installed"
# What zerostage[run] brings, without torch, which all stacks share, and nvidia-ml-py, which no rank imports.
PACKAGES = ("accelerate", "deepspeed", "transformers")
_EXACT = re.compile(r"([A-Za-z0-9._-]+)==([0-9][A-Za-z0-9.+]*)")


def parse(value: Any) -> str | None:
    """Return the stack that a scenario names, its packages in alphabetical order; ``None`` for ``installed``.

    Raises:
        ValueError: it is not a list of exact releases of the packages that a stack may hold.
    """
    if value is None or value == INSTALLED:
        return None
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"a stack is 'package==version', as deepspeed==0.17.5, or the word {INSTALLED}")
    found: dict[str, str] = {}
    for requirement in re.sub(r"\s*==\s*", "==", value).split():
        exact = _EXACT.fullmatch(requirement)
        name = (exact[1] if exact else re.split(r"[^A-Za-z0-9._-]", requirement)[0]).lower().replace("_", "-")
        if name == "torch":
            raise ValueError("torch is shared by all stacks; another torch needs an environment of its own")
        if name not in PACKAGES:
            raise ValueError(
                f"a stack cannot hold '{requirement[:100]}'{nearest(name, PACKAGES)}; valid: {', '.join(PACKAGES)}"
            )
        if exact is None:
            raise ValueError(f"'{requirement[:100]}' is no exact release; write {name}==VERSION")
        if name in found:
            raise ValueError(f"{name} is named twice in one stack")
        found[name] = exact[2]
    return " ".join(f"{name}=={version}" for name, version in sorted(found.items()))


def releases(stack: str | None) -> dict[str, str]:
    """Return the version of each package that ``stack`` names."""
    return dict(requirement.split("==") for requirement in (stack or "").split())


def is_release(found: str, asked: str) -> bool:
    """Whether version ``found`` is the one ``asked`` for, as pip has it: 0.18 is 0.18.0, and 2.6.0 also 2.6.0+cpu."""
    public = found if "+" in asked else found.split("+")[0]
    return re.sub(r"(\.0)+$", "", public) == re.sub(r"(\.0)+$", "", asked)


def file_part(stack: str) -> str:
    """Return ``stack`` as a part of a file name: ``deepspeed-0.17.5``."""
    return re.sub(r"==| ", "-", stack)
