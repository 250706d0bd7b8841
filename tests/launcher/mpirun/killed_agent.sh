# A lost agent ends the run under plain mpirun: the record says 75, no worker is left, and the same
# command finishes.
. "$(dirname "$0")/common.sh"
printf 'a 60 50 1\nb 60 50 1\n' > fake
for victim in 2 1; do  # an agent, then the coordinator itself
  rm -rf runs
  start 3 --cluster cluster.toml fake
  wait_for '"step":10' runs/fake/journal.jsonl
  workers="$(worker_of a) $(worker_of b)"
  kill -9 "$(ranks | sed -n "${victim}p")"
  wait "$RUN"
  [ $? != 0 ] || fail "mpirun said 0"
  expect "$("$G" exit-code runs/fake; echo $?)" 75 "record"
  for pid in $workers; do
    for _ in $(seq 40); do kill -0 "$pid" 2> /dev/null || break; sleep 0.05; done
    kill -0 "$pid" 2> /dev/null && fail "worker $pid lives on"
  done
  timeout 50 $M -n 3 "$G" run --cluster cluster.toml fake > stdout 2> log
  expect $? 0 "exit code of the second start"
  expect_in "running again from step" log
  expect_in "start 2" log
done
