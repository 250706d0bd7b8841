# Groups under mpirun: tensor parallel on one node under two agents, a pipeline over two nodes whose bytes go through MPI;
# kill -9 and SIGSTOP of any member: the group restarts from its checkpoint, the other job does not notice, nothing is left.
. "$(dirname "$0")/common.sh"
sockets() { grep -c galley /proc/net/unix; }
shared() { ls /dev/shm | grep -v vader | sort; }
before=$(sockets); shared > shm
member_log() { [ "$2" = 0 ] && echo "runs/fake/logs/$1.log" || echo "runs/fake/logs/$1.worker-$2.log"; }
member() { sed -n 's/.*attempt [0-9]* .*: worker \([0-9]*\).*/\1/p' "$(member_log "$1" "$2")" | tail -n 1; }
count() { grep -c "\"record\":\"$1\",\"job\":\"$2\"" runs/fake/journal.jsonl; }
cat > one.toml <<'TOML'
[cluster]
emulate = true
[[node]]
names = "n1"
gpus = [{ type = "a100-40gb", count = 3 }]
TOML
cat > two.toml <<'TOML'
[cluster]
emulate = true
[[node]]
names = "n[1-2]"
gpus = [{ type = "a100-40gb", count = 2 }]
TOML
storm() {  # JOB CLUSTER
  local job=$1 victim=0 restarts=0 signal pid
  rm -rf runs; printf '%s 160 50 1\nc 160 50 1\n' "$job" > fake
  start 3 --cluster "$2" --deadline 2s fake
  wait_for "\"job\":\"$job\".*\"step\":5" runs/fake/journal.jsonl
  for signal in KILL STOP KILL STOP; do
    pid=$(member "$job" $victim)
    kill -$signal "$pid" || fail "no worker $victim of $job"
    victim=$((1 - victim)); restarts=$((restarts + 1))
    for _ in $(seq 300); do [ "$(count job-restarts "$job")" -ge $restarts ] && break; sleep 0.05; done
    [ "$(count job-restarts "$job")" = $restarts ] || fail "$signal of a worker of $job was not noticed in 15 s"
    kill -0 "$pid" 2> /dev/null && fail "worker $pid of $job lives on"
    for _ in $(seq 200); do
      [ "$(grep -c "$job  *running again from step" log)" -ge $restarts ] && break; sleep 0.05
    done
    sleep 0.5
  done
  wait "$RUN"
  expect $? 0 "exit code of $job"
  [ -f "runs/fake/jobs/$job/adapter/done" ] || fail "no adapter of $job"
  expect "$(count job-assigned c)" 1 "starts of the other job"
  expect "$(grep -c "its worker . on .* died (killed by signal 9" log)" 2 "deaths told"
  expect "$(grep -c "its worker . on .* gave no sign of life" log)" 2 "stops told"
  for _ in $(seq 40); do [ "$(sockets)" -le "$before" ] && break; sleep 0.05; done
  [ "$(sockets)" -le "$before" ] || fail "sockets are left"
  shared | cmp -s shm - || fail "something is left in /dev/shm"
}
storm tp2-a one.toml
expect_in "tp2-a  *starts on n1:gpu0-1 a100-40gb (tp 2)" log
expect "$(grep -l 'attempt 1 (. of 2)' runs/fake/logs/rank-*.log | wc -l)" 2 "agents of the group"
storm pp2-b two.toml
expect_in "pp2-b  *starts on n1:gpu0 + n2:gpu0 a100-40gb (pp 2)" log
# pain_P017: the timeout is one option, said in the run's first line.
expect_in "worker timeout 2" log
