#!/usr/bin/env bash
# Set up the environment if need be, run a scenario (scenarios/smoke.yaml unless one is named), print its tables and
# write report.html into its run folder.
# Further arguments go to `zerostage run`: scripts/run_matrix.sh scenarios/stages.yaml --only 'z3*'
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

case ${1:-} in
    '' | -*) set -- "$root/scenarios/smoke.yaml" "$@" ;;
esac
results=$root/results/runs
page=yes
previous=
for word in "$@"; do
    case $word in
        --results=*) results=${word#--results=} ;;
        --dry-run | --help) page= ;;
    esac
    [ "$previous" != --results ] || results=$word
    previous=$word
done

status=0
"$PYTHON" -m bench run --results "$root/results/runs" "$@" || status=$?
# 1: a cell has no answer, which the page shows; 2 and above: a mistake, or interrupted.
if [ -n "$page" ] && [ "$status" -le 1 ]; then
    "$PYTHON" -m bench report --results "$results" --format html || status=$?
fi
exit "$status"
