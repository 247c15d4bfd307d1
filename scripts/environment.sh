# Sourced by the other scripts: sets PYTHON to an interpreter that has zerostage installed, making .venv once.
# ZEROSTAGE_PYTHON names the interpreter of an environment you already have (with your own torch, say); nothing
# that it has is replaced. The versions of .venv are those of constraints.txt.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

find_python() {
    local candidate
    for candidate in python3 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "error: Python 3.11 or newer is needed, and none was found on PATH" >&2
    exit 2
}

ready() { # PYTHON: whether this checkout and all that its extras name is installed there
    "$1" - "$root" <<'PY' 2>/dev/null
import importlib.metadata, pathlib, sys, tomllib
from packaging.requirements import Requirement

root = pathlib.Path(sys.argv[1])
project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
wanted = project["dependencies"] + project["optional-dependencies"]["run"] + project["optional-dependencies"]["dev"]
for line in wanted:
    requirement = Requirement(line)
    if importlib.metadata.version(requirement.name) not in requirement.specifier:
        sys.exit(1)
import bench
sys.exit(pathlib.Path(bench.__file__).parent != root / "bench")
PY
}

if [ -n "${ZEROSTAGE_PYTHON:-}" ]; then
    PYTHON=$(command -v "$ZEROSTAGE_PYTHON") && [ ! -d "$PYTHON" ] && "$PYTHON" -c '' || {
        echo "error: ZEROSTAGE_PYTHON=$ZEROSTAGE_PYTHON is not a Python interpreter; name one, as /path/to/env/bin/python" >&2
        exit 2
    }
    PYTHON=$(cd "$(dirname "$PYTHON")" && pwd)/$(basename "$PYTHON")
    if ! ready "$PYTHON"; then
        echo "set-up: installing zerostage and what it lacks into the environment of $PYTHON" >&2
        "$PYTHON" -m pip install --quiet packaging -e "$root[run,dev]"
    fi
else
    PYTHON=$root/.venv/bin/python
    stamp=$root/.venv/zerostage.stamp
    wanted=$(cat "$root/constraints.txt" "$root/pyproject.toml" | cksum)
    if [ ! -x "$PYTHON" ] || [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
        base=$(find_python)
        echo "set-up: making .venv with $("$base" --version); the first time takes some minutes" >&2
        "$base" -m venv "$root/.venv"
        "$PYTHON" -m pip install --quiet --constraint "$root/constraints.txt" -e "$root[run,dev]"
        echo "$wanted" >"$stamp"
    fi
fi
