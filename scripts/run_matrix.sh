#!/usr/bin/env bash
# Set up the environment if need be, run a scenario (scenarios/smoke.yaml unless one is named) and print its tables.
# Further arguments go to `zerostage run`: scripts/run_matrix.sh scenarios/stages.yaml --only 'z3*'
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

case ${1:-} in
    '' | -*) set -- "$root/scenarios/smoke.yaml" "$@" ;;
esac
exec "$PYTHON" -m bench run --results "$root/results/runs" "$@"
