# Four jobs on two emulated GPU types, with many agents, one agent, and none but rank 0.
. "$(dirname "$0")/common.sh"
printf 'a 10 20 1\nb 20 20 1\nc 5 20 30\nd 10 10 1\n' > fake
for n in 5 2 1; do
  rm -rf runs
  timeout 50 $M -n $n "$G" run --cluster cluster.toml fake > stdout 2> log
  expect $? 0 "exit code with -n $n"
  for job in a b c d; do [ -f runs/fake/jobs/$job/adapter/done ] || fail "no adapter of $job"; done
  expect "$("$G" exit-code runs/fake; echo $?)" 0 "exit-code"
  expect_in "c  *starts on n1:gpu0 a100-40gb" log
  expect_in "waits for a GPU" log
  expect_in "^ready\|[0-9] ready$" log
  expect "$(grep -c finished stdout)" 4 "rows in the summary"
  [ -f runs/fake/plan.json ] && [ -f runs/fake/jobs.csv ] || fail "no plan or no table"
  # The same command again finds everything done, runs nothing and keeps the plan.
  cp runs/fake/plan.json plan
  timeout 50 $M -n $n "$G" run --cluster cluster.toml fake > stdout 2> log
  expect $? 0 "second exit code"
  grep -q "starts on" log && fail "a finished job was done again"
  cmp -s plan runs/fake/plan.json || fail "the plan of a finished run was replaced"
done
# Without a cluster file the machine is one host device with all its cores.
rm -rf runs; printf 'a 5 10 0.1\nb 5 10 0.1\n' > fake
timeout 50 $M -n 2 "$G" run fake > stdout 2> log
expect $? 0 "exit code on the host device"
expect_in "1 host device, 1 agent, worker timeout 10" log
expect_in "b  *waits for a GPU" log
