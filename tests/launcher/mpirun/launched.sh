# galley launch: the run's code, signals at any moment, lines without a terminal, requeue.
. "$(dirname "$0")/common.sh"
printf 'a 10 20 1\nb 10 20 99\n' > fake
timeout 50 "$G" launch -n 3 --cluster cluster.toml fake > stdout 2> log
expect $? 3 "exit code"
expect_in "refused" log
expect_in "run directory: runs/fake" stdout
grep -q $'\x1e' log && fail "records for launch were printed"
grep -q $'\x1b' log && fail "escape codes without a terminal"
printf 'a 150 20 1\nb 40 20 1\n' > fake
for delay in 0.05 0.2 0.4 0.8; do
  rm -rf runs
  "$G" launch -n 3 --cluster cluster.toml fake > stdout 2> log &
  RUN=$!
  sleep $delay
  kill -0 $RUN 2> /dev/null || fail "launch ended early"
  case $delay in 0.4|0.8) signal=TERM ;; 0.2) signal=INT ;; *) signal=USR1 ;; esac
  kill -$signal $RUN
  wait $RUN
  expect $? 75 "exit code, $signal after $delay s"
  timeout 50 "$G" launch -n 3 --cluster cluster.toml fake > stdout 2> log
  expect $? 0 "exit code of the second start"
done
# An agent that dies: plain mpirun would say 137.
rm -rf runs; printf 'a 100 50 1\n' > fake
"$G" launch -n 2 --cluster cluster.toml fake > stdout 2> log &
RUN=$!
wait_for '"step":5' runs/fake/journal.jsonl
kill -9 "$(pgrep -P "$(pgrep -P $RUN)" | sort -n | tail -n 1)"
wait $RUN
expect $? 75 "exit code after the loss of an agent"
# A made-up scontrol is asked to requeue, at most three times in a row without a new step.
rm -rf runs; mkdir bin; printf '#!/bin/sh\necho "$@" >> %s/asked\n' "$DIR" > bin/scontrol
printf '#!/bin/sh\nexit 1\n' > bin/squeue; chmod +x bin/*
printf 'a 5 60000 1\n' > fake
for i in 1 2 3 4; do
  rm -f log
  PATH=$DIR/bin:$PATH SLURM_JOB_ID=77 "$G" launch -n 2 --requeue --cluster cluster.toml fake \
    --run r$((i > 0)) -- --oversubscribe --mca ras ^slurm --mca plm ^slurm > stdout 2> log &
  RUN=$!
  wait_for "ready" log; kill -USR1 $RUN; wait_for "stopping (" log; sleep 1.1; kill -USR1 $RUN
  wait $RUN
  expect $? 75 "exit code of start $i"
done
expect "$(grep -c 'requeue 77' asked)" 3 "requeues"
expect_in "starts in a row saved no new step" log
# A closed terminal says HUP twice; that is one order, and every job saves.
rm -rf runs; printf 'a 400 20 1\nb 400 20 1\n' > fake
"$G" launch -n 3 --cluster cluster.toml fake > stdout 2> log &
RUN=$!
wait_for '"step":10' runs/fake/journal.jsonl
sleep 0.7; kill -HUP $RUN; sleep 0.01; kill -HUP $RUN
wait $RUN
expect $? 75 "exit code after HUP twice"
expect "$(grep -c '"record":"job-stopped"' runs/fake/journal.jsonl)" 2 "saved jobs"
expect_in "stopped early (on request)" runs/fake/done.json
# A reader that leaves does not end the run; its code is in the record.
rm -rf runs; printf 'a 60 20 1\n' > fake
timeout 50 "$G" launch -n 2 --cluster cluster.toml fake 2>&1 | head -n 1 > log
expect "$("$G" exit-code runs/fake; echo $?)" 0 "record of the run without a reader"
