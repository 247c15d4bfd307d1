#!/usr/bin/env bash
# Hold the emulation against a real GPU: every cell of scenarios/gpu-check.yaml (3 models x 4 stages, one GPU) measured and
# emulated, in under 8 minutes; the rows and the comparison go to the folder that is named.
#   scripts/gpu_check.sh FOLDER [further arguments of `zerostage run`]
set -euo pipefail
folder=${1:?usage: scripts/gpu_check.sh FOLDER}
shift
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

"$PYTHON" - <<'PY'
import sys
import torch

if not torch.cuda.is_available():
    sys.exit(f"error: torch {torch.__version__} finds no CUDA GPU here; this check needs one")
PY
status=0
"$PYTHON" -m bench run "$root/scenarios/gpu-check.yaml" --results "$folder" "$@" || status=$?
"$PYTHON" -m bench report "$folder/gpu-check" --format markdown >"$folder/gpu-check.md"
exit "$status"
