#!/usr/bin/env bash
# slurm/galley.sbatch, unchanged, in a real Slurm of two nodes; and mpirun over two nodes without Slurm.
#
#   batch_script.sh GALLEY
. "$(dirname "$0")/common.sh"

submit() {  # OUTPUT -> prints the job id
  sbatch --parsable -N2 --ntasks-per-node=2 -D "$work" -o "$work/$1" \
    --export="ALL,PATH=$(dirname "$galley"):/usr/bin:/bin" \
    "$root/slurm/galley.sbatch" "$root/examples/demo.toml" --cluster "$root/examples/cluster.toml"
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

report
