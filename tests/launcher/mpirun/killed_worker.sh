# kill -9, SIGSTOP and a hang of a worker: its job restarts from its checkpoint, others do not notice.
. "$(dirname "$0")/common.sh"
printf 'a 60 50 1\nb 60 50 1\n' > fake
start 3 --cluster cluster.toml --deadline 2s fake
wait_for '"job":"a".*"step":10' runs/fake/journal.jsonl
first=$(worker_of a)
kill -9 "$first"
wait_for "a  *running again from step" log
second=$(worker_of a)
[ "$first" != "$second" ] || fail "the worker is the same"
kill -STOP "$second"
wait_for "worker_hung" runs/fake/journal.jsonl
wait "$RUN"
expect $? 0 "exit code"
kill -0 "$second" 2> /dev/null && fail "the stopped worker lives"
expect_in "a  *its worker on n.:gpu0 died (killed by signal 9" log
expect "$(grep -c '"record":"job-restarts","job":"a"' runs/fake/journal.jsonl)" 2 "restarts of a"
expect "$(grep -c '"record":"job-restarts","job":"b"' runs/fake/journal.jsonl)" 0 "restarts of b"
expect "$(grep -c '"record":"job-assigned","job":"b"' runs/fake/journal.jsonl)" 1 "starts of b"
# One that stops making progress, and ones that die at a step.
rm -rf runs; printf 'hang 10 20 1\ndie-7 12 20 1\n' > fake
timeout 50 $M -n 2 "$G" run --cluster cluster.toml --deadline 1s fake > stdout 2> log
expect $? 0 "exit code"
expect_in "hang  *its worker .* made no progress for" log
expect_in "die-7  *its worker .* restarts from step 5" log
