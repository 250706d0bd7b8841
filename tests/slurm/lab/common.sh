# Sourced by the cases: a Slurm of two nodes, n1 and n2, with what a case needs to use it. $1 is galley.
#
# GALLEY_SLURM_LAB names the folder of a laboratory that starts Slurm in network namespaces (up, down,
# on; default ../shared/slurm-lab beside the repository). Without it, or without root, a case exits
# 77 with the reason (1 when GALLEY_REQUIRE_REFERENCE=1 and only the folder is missing).
set -u
galley=$(realpath "$1")
root=$(cd "$(dirname "$0")/../../.." && pwd)
lab_scripts=${GALLEY_SLURM_LAB:-$root/../shared/slurm-lab}

skip() { echo "SKIPPED: $1"; exit 77; }
if [ ! -e "$lab_scripts/up" ]; then
  if [ "${GALLEY_REQUIRE_REFERENCE:-0}" = 1 ]; then
    echo "FAILED: no Slurm laboratory in $lab_scripts, but GALLEY_REQUIRE_REFERENCE is set"
    exit 1
  fi
  skip "no Slurm laboratory in $lab_scripts (GALLEY_SLURM_LAB)"
fi
[ "$(id -u)" = 0 ] || skip "the Slurm laboratory needs root"

scratch=$(mktemp -d /tmp/glab.XXXXXX)        # a short path: unix sockets live below it
lab=$scratch/l
trap 'bash "$lab_scripts/down" "$lab" --purge >/dev/null 2>&1; rm -rf "$scratch"' EXIT
printf 'node n1 cpus=2 mem=4000\nnode n2 cpus=2 mem=4000\n' > "$scratch/lab.conf"
# The nodes have a /tmp of their own: what they must all see is named here.
export LAB_SHARE=$root:$(dirname "$galley"):$scratch
cd "$root"
if ! bash "$lab_scripts/up" "$lab" "$scratch/lab.conf" > "$scratch/env.sh"; then
  echo "FAILED: the Slurm laboratory did not start"
  exit 1
fi
# shellcheck disable=SC1091
. "$scratch/env.sh"
work=$lab/work
mkdir -p "$work"
cd "$work"

passed=0
failed=0
check() {  # NAME COMMAND...
  local name=$1
  shift
  if "$@"; then
    passed=$((passed + 1))
    echo "ok: $name"
  else
    failed=$((failed + 1))
    echo "FAILED: $name"
    tail -n 40 "$work"/*.out "$work"/mpirun.log 2>/dev/null
  fi
}

state() { scontrol show job "$1" | grep -oE 'JobState=[A-Z_]+' | cut -d= -f2; }
wait_for_state() {  # ID STATE SECONDS
  local end=$((SECONDS + $3))
  while [ "$SECONDS" -lt "$end" ]; do
    [ "$(state "$1")" = "$2" ] && return 0
    sleep 0.5
  done
  echo "job $1 is $(state "$1"), not $2"
  return 1
}
wait_for_line() {  # FILE PATTERN SECONDS
  local end=$((SECONDS + $3))
  while [ "$SECONDS" -lt "$end" ]; do
    grep -q "$2" "$1" 2>/dev/null && return 0
    sleep 0.2
  done
  return 1
}
report() {
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ]
}
