# A control group that pays for fewer processors than there are: fewer threads, bound to no core, and told.
. "$(dirname "$0")/common.sh"
[ "$(nproc)" -ge 2 ] || { echo "SKIPPED: one core"; exit 77; }
GROUP=/sys/fs/cgroup/cpu/galley-test-$$
mkdir "$GROUP" 2> /dev/null || { echo "SKIPPED: no control group of my own"; exit 77; }
trap 'sleep 0.2; rmdir "$GROUP"; rm -rf "$DIR"' EXIT
{ echo 100000 > "$GROUP/cpu.cfs_period_us" && echo 90000 > "$GROUP/cpu.cfs_quota_us"; } 2> /dev/null ||
  { echo "SKIPPED: quotas cannot be set"; exit 77; }
printf 'a 10 20 1\n' > fake
bash -c "echo \$\$ > $GROUP/cgroup.procs; exec timeout 60 $M -n 2 $G run fake" > stdout 2> log
expect $? 0 "exit code"
expect_in "leaves the time of 0.9 of its $(nproc) cores: workers there have 1 threads in all" log
