#!/usr/bin/env bash
# Hold the emulation against a real GPU: every cell of scenarios/gpu-check.yaml (3 models x 4 stages and 3 kinds of offload, one GPU) measured
# and emulated. The rows go to FOLDER/gpu-check, their tables, "Emulated beside measured" last, to FOLDER/gpu-check.md.
#   scripts/gpu_check.sh FOLDER [further arguments of `zerostage run`]
set -euo pipefail
if [ $# -eq 0 ]; then
    echo "error: name a folder for the rows: scripts/gpu_check.sh FOLDER" >&2
    exit 2
fi
folder=$1
shift
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

if ! "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "error: torch finds no CUDA GPU here; this check needs one (ZEROSTAGE_PYTHON names another environment)" >&2
    exit 2
fi
status=0
"$PYTHON" -m bench run "$root/scenarios/gpu-check.yaml" --results "$folder" "$@" || status=$?
"$PYTHON" -m bench report "$folder/gpu-check" --format markdown >"$folder/gpu-check.md"
exit "$status"
