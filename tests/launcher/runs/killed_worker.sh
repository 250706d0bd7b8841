# kill -9 of a worker, twice, also while checkpoints are written every moment: its job goes on from its last
# checkpoint, the other does not notice, and both adapters are bit-equal to those of undisturbed runs.
. "$(dirname "$0")/common.sh"
{ echo 'run = { checkpoint = { every = "100ms", keep = 2 } }'; job a 60 1; job b 60 2; } > jobs.toml
timeout 200 $M -n 3 "$G" run jobs.toml --run quiet --cluster cluster.toml > out 2> log
expect $? 0 "exit code of the undisturbed run"
timeout 250 $M -n 3 "$G" run jobs.toml --cluster cluster.toml > out 2> log &
RUN=$!
for step in 8 25; do
  wait_for "\"record\":\"job-checkpointed\",\"job\":\"a\",\"attempt\":[0-9]*,\"step\":\($step\|$((step + 1))\|$((step + 2))\|$((step + 3))\|$((step + 4))\|$((step + 5))\|$((step + 6))\)," \
    runs/jobs/journal.jsonl
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
