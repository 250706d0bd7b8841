# USR1 at many moments after `ready`: 75, and the same command finishes. Twice: at once.
. "$(dirname "$0")/common.sh"
printf 'a 120 20 1\nb 25 20 1\nc 10 20 1\n' > fake
for delay in 0 0.05 0.2 0.45 0.7; do
  rm -rf runs
  start 3 --cluster cluster.toml fake
  wait_for "ready" log
  sleep $delay
  kill -USR1 "$(mpirun_pid)"
  wait "$RUN"
  expect $? 75 "exit code, signal after $delay s"
  expect "$("$G" exit-code runs/fake; echo $?)" 75 "record"
  timeout 50 $M -n 3 "$G" run --cluster cluster.toml fake > stdout 2> log
  expect $? 0 "exit code of the second start"
done
for signal in USR2 TERM; do  # to rank 0 alone: every worker saves
  rm -rf runs; printf 'a 400 20 1\nb 400 20 1\n' > fake
  start 3 --cluster cluster.toml fake
  wait_for '"step":10' runs/fake/journal.jsonl
  kill -$signal "$(ranks | head -n 1)"
  wait "$RUN"
  expect $? 75 "exit code after $signal"
  expect "$(grep -c '"record":"job-stopped"' runs/fake/journal.jsonl)" 2 "saved jobs"
done
# The second signal does not wait for a step border.
rm -rf runs; printf 'a 5 20000 1\n' > fake
start 2 --cluster cluster.toml fake
wait_for "a  *running" log
kill -USR1 "$(mpirun_pid)"
wait_for "stopping (" log
kill -USR1 "$(mpirun_pid)"
began=$SECONDS
wait "$RUN"
expect $? 75 "exit code after two signals"
[ $((SECONDS - began)) -lt 8 ] || fail "the second signal waited for the step"
# Wall time: stops before its end.
rm -rf runs; printf 'a 10000 20 1\n' > fake
timeout 50 $M -n 2 "$G" run --wall-time 18s --cluster cluster.toml fake > stdout 2> log
expect $? 75 "exit code at the wall time"
expect_in "the wall time ends" log
expect "$(grep -c '"record":"job-stopped"' runs/fake/journal.jsonl)" 1 "saved jobs"
# Slurm sends TERM to every process of a job, workers too: they checkpoint all the same.
rm -rf runs; printf 'a 400 20 1\nb 400 20 1\n' > fake
start 3 --cluster cluster.toml fake
wait_for '"step":10' runs/fake/journal.jsonl
kill -TERM $(ranks) "$(worker_of a)" "$(worker_of b)"
wait "$RUN"
expect $? 75 "exit code after TERM to everybody"
expect "$(grep -c '"record":"job-stopped"' runs/fake/journal.jsonl)" 2 "saved jobs"
