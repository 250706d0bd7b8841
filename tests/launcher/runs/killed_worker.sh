# kill -9 of a worker, twice, also while checkpoints are written every moment: its job goes on from its last
# checkpoint, the other does not notice, and both adapters are bit-equal to those of undisturbed runs.
. "$(dirname "$0")/common.sh"
{ echo 'run = { checkpoint = { every = "100ms", keep = 2 } }'; job a 60 1; job b 60 2; } > jobs.toml
timeout 200 $M -n 3 "$G" run jobs.toml --run quiet --cluster cluster.toml > out 2> log
expect $? 0 "exit code of the undisturbed run"
timeout 250 $M -n 3 "$G" run jobs.toml --cluster cluster.toml > out 2> log &
RUN=$!
# Until the newest checkpoint of job a is at this step or behind it.
wait_for_checkpoint() {
  local newest
  for _ in $(seq 1200); do
    newest=$(sed -n 's/.*"record":"job-checkpointed","job":"a","attempt":[0-9]*,"step":\([0-9]*\).*/\1/p' \
      runs/jobs/journal.jsonl 2> /dev/null | tail -n 1)
    [ "${newest:-0}" -ge "$1" ] && return
    sleep 0.02
  done
  fail "no checkpoint at step $1"
}
for step in 6 20; do
  wait_for_checkpoint $step
  kill -9 "$(worker_of jobs a)"
  wait_for "a  *running again from step" log
done
wait "$RUN"
expect $? 0 "exit code"
expect "$(grep -c '"record":"job-restarts","job":"a"' runs/jobs/journal.jsonl)" 2 "restarts of a"
expect "$(grep -c '"record":"job-restarts","job":"b"' runs/jobs/journal.jsonl)" 0 "restarts of b"
for name in a b; do
  expect "$(adapter_of jobs $name)" "$(adapter_of quiet $name)" "adapter of $name"
  steps_are_whole jobs $name 60 || fail "steps of $name"
done
echo "ok"
