#!/usr/bin/env bash
# Set up the environment if need be, then check and test the project. Arguments go to pytest.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

cd "$root"
if [ $# -eq 0 ]; then
    "$PYTHON" -m ruff check .
    "$PYTHON" -m ruff format --check .
    "$PYTHON" -m mypy
    "$(dirname "$PYTHON")/lint-imports" --no-cache
fi
exec "$PYTHON" -m pytest "$@"
