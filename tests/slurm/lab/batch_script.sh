#!/usr/bin/env bash
# slurm/galley.sbatch, unchanged, in a real Slurm of two nodes; and mpirun over two nodes without Slurm.
#
#   batch_script.sh GALLEY
#
# GALLEY_SLURM_LAB names the folder of a laboratory that starts Slurm in network namespaces (up, down,
# on; default ../shared/slurm-lab beside the repository). Without it, or without root, the test exits
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

submit() {  # OUTPUT -> prints the job id
  sbatch --parsable -N2 --ntasks-per-node=2 -D "$work" -o "$work/$1" \
    --export="ALL,PATH=$(dirname "$galley"):/usr/bin:/bin" \
    "$root/slurm/galley.sbatch" "$root/examples/demo.toml" --cluster "$root/examples/cluster.toml"
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
adapters_there() {
  local job
  for job in cook units; do
    [ -s "$work/runs/demo/jobs/$job/adapter/adapter_model.safetensors" ] || return 1
    [ -s "$work/runs/demo/jobs/$job/adapter/adapter_config.json" ] || return 1
  done
}
record_says() { [ "$("$galley" exit-code "$work/runs/demo")" = "$1" ]; }

id=$(submit plain.out)
check "two nodes: COMPLETED" wait_for_state "$id" COMPLETED 240
check "two nodes: adapters present" adapters_there
check "two nodes: the record says 0" record_says 0

rm -rf "$work/runs"
id=$(submit requeued.out)
check "requeue: the job trains" wait_for_line "$work/requeued.out" 'cook *running' 120
scancel -b -s USR1 "$id"
check "requeue: it says that it stopped early" wait_for_line "$work/requeued.out" 'stopped early' 60
check "requeue: COMPLETED after a second start" wait_for_state "$id" COMPLETED 300
check "requeue: started twice" grep -q 'start 2' "$work/requeued.out"
check "requeue: went on from its checkpoint" grep -q 'running again from step' "$work/requeued.out"
check "requeue: adapters present" adapters_there

rm -rf "$work/runs"
check "login node, mpirun without Slurm: exit 0" timeout 240 bash -c '
  mpirun --mca plm_rsh_agent "$LAB_RSH" --host n1:2,n2:2 -n 4 --bind-to none -q "$1" run \
    "$2/examples/demo.toml" --cluster "$2/examples/cluster.toml" > mpirun.log 2>&1' - "$galley" "$root"
check "login node: adapters present" adapters_there

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
