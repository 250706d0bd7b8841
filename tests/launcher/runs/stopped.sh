# Signals at odd moments, to mpirun after "ready" and to galley launch at any time: 75 each time, and the same
# command finishes with the adapter of an undisturbed run.
. "$(dirname "$0")/common.sh"
{ job a 120 1; job b 120 2; } > jobs.toml
timeout 200 $M -n 3 "$G" run jobs.toml --run quiet --cluster cluster.toml > out 2> log
expect $? 0 "exit code of the undisturbed run"
stops=0
for delay in 0.0 0.4 1.1; do
  rm -f log
  timeout 100 $M -n 3 "$G" run jobs.toml --cluster cluster.toml > out 2> log &
  RUN=$!
  wait_for " ready" log
  sleep "$delay"
  kill -USR1 "$(pgrep -P "$RUN" | head -n 1)" 2> /dev/null
  wait "$RUN"
  code=$?
  [ "$code" = 75 ] || [ "$code" = 0 ] || fail "exit code $code after USR1 $delay s after ready"
  expect "$("$G" exit-code runs/jobs)" "$code" "the record"
  [ "$code" = 75 ] && stops=$((stops + 1))
done
[ "$stops" -ge 1 ] || fail "the run was never stopped: it is too short for this test"
for signal in TERM INT USR2; do
  for delay in 0.1 0.5 1.3; do
    timeout 100 "$G" launch -n 3 jobs.toml --run launched --cluster cluster.toml > out 2> log &
    RUN=$!
    sleep "$delay"
    kill "-$signal" "$(pgrep -P "$RUN" | head -n 1)" 2> /dev/null
    wait "$RUN"
    code=$?
    [ "$code" = 75 ] || [ "$code" = 0 ] || fail "exit code $code after $signal at $delay s to launch"
  done
done
timeout 200 "$G" launch -n 3 jobs.toml --run launched --cluster cluster.toml > out 2> log
expect $? 0 "exit code of launch at the end"
timeout 200 $M -n 2 "$G" run jobs.toml --cluster cluster.toml > out 2> log
expect $? 0 "exit code at the end"
for name in a b; do
  expect "$(adapter_of jobs $name)" "$(adapter_of quiet $name)" "adapter of $name"
  expect "$(adapter_of launched $name)" "$(adapter_of quiet $name)" "adapter of $name under launch"
  steps_are_whole jobs $name 120 || fail "steps of $name"
  steps_are_whole launched $name 120 || fail "steps of $name under launch"
done
echo "ok"
