# pain_P140_idle_ranks_sleep: an idle rank takes below one percent of a core: all but the agent whose worker runs.
. "$(dirname "$0")/common.sh"
printf 'a 100 200 30\n' > fake
start 5 --cluster cluster.toml fake
wait_for "a  *running" log
ticks() { awk '{print $14 + $15}' "/proc/$1/stat"; }
busy=$(ps -o ppid= -p "$(worker_of a)" | tr -d " ")
pids=$(ranks | grep -v "^$busy$")
before=$(for pid in $pids; do ticks "$pid"; done)
sleep 10
for pid in $pids; do
  first=$(echo "$before" | head -n 1); before=$(echo "$before" | tail -n +2)
  used=$(( $(ticks "$pid") - first ))  # hundredths of a second in ten seconds: a tenth of a percent each
  echo "rank with pid $pid: $used ticks in 10 s"
  [ $used -le 10 ] || fail "an idle rank took $used hundredths of a second in 10 s"
done
kill -USR1 "$(mpirun_pid)"
wait "$RUN"
expect $? 75 "exit code"
