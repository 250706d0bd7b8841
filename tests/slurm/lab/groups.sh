#!/usr/bin/env bash
# Jobs on groups of workers over the two nodes of a real Slurm: tensor and pipeline parallel, within a
# node and across, have the loss curve of one worker.
#
#   groups.sh GALLEY
. "$(dirname "$0")/common.sh"

steps=12
# cluster FILE GPUS-PER-NODE
cluster() {
  printf '[cluster]\nemulate = true\n[[node]]\nnames = "n[1-2]"\ngpus = [{ type = "a100-40gb", count = %s, threads = 1 }]\n' \
    "$2" > "$1"
}
# job NAME PLAN-LINE...
job() {
  printf '[[train]]\nname = "%s"\nmodel = "%s/examples/tiny-llama"\ndata = "%s/examples/data/cook.jsonl"\n' "$1" "$root" "$root"
  printf 'optimizer = { learning_rate = 1e-3 }\nbatch = { global = 8, sequence = 64 }\nlength = { steps = %s }\n' $steps
  shift
  printf '[train.plan]\nkernels = "portable"\nmicro_batch_tokens = 128\n'
  printf '%s\n' "$@"
}
cluster two.toml 2
cluster one.toml 1
{ job whole; job tp2 "tp = 2"; job tp2pp2 "tp = 2" "pp = 2"; job pp2dp2 "pp = 2" "dp = 2"; } > inside.toml
{ job pp2 "pp = 2"; job tp2across "tp = 2"; job dp2 "dp = 2"; } > across.toml

submit() {  # JOBS CLUSTER -> prints the job id
  sbatch --parsable -N2 --ntasks-per-node=2 -D "$work" -o "$work/${1%.toml}.out" \
    --export="ALL,PATH=$(dirname "$galley"):/usr/bin:/bin" \
    "$root/slurm/galley.sbatch" "$work/$1" --cluster "$work/$2"
}
losses() { cut -d, -f3 "$work/runs/$1/jobs/$2/metrics.csv" | tail -n +2; }
# Each loss within 1e-5 of that of one worker.
same_curve() {  # RUN JOB
  local number
  number=$(losses "$1" "$2" | wc -l)
  [ "$number" = $steps ] || { echo "$2 has $number steps, not $steps"; return 1; }
  paste <(losses inside whole) <(losses "$1" "$2") |
    awk '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > 1e-5) { print "step " NR ": " $1 " and " $2; bad = 1 } } END { exit bad }'
}
spans_nodes() {  # RUN JOB: its plan names GPUs of both nodes
  grep '"job-assigned"' "$work/runs/$1/journal.jsonl" | grep "\"job\":\"$2\"" | grep 'n1:gpu' | grep -q 'n2:gpu'
}

id=$(submit inside.toml two.toml)
check "two GPUs on each node: COMPLETED" wait_for_state "$id" COMPLETED 120
for name in tp2 tp2pp2 pp2dp2; do check "$name: the curve of one worker" same_curve inside $name; done
check "tp 2 x pp 2 takes both nodes" spans_nodes inside tp2pp2
id=$(submit across.toml one.toml)
check "one GPU on each node: COMPLETED" wait_for_state "$id" COMPLETED 120
for name in pp2 tp2across dp2; do
  check "$name: the curve of one worker" same_curve across $name
  check "$name takes both nodes" spans_nodes across $name
done
for node in n1 n2; do
  # pgrep -f would find the shell that carries its own words.
  check "$node: no worker is left" bash -c '! bash "$1/on" "$2" "$3" pgrep -x galley > /dev/null' - "$lab_scripts" "$lab" $node
done
report
