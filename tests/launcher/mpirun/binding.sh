# Who bound the ranks is noticed and told, and workers get the cores that there are.
. "$(dirname "$0")/common.sh"
[ "$(nproc)" -ge 2 ] || { echo "SKIPPED: one core"; exit 77; }
allowed_of() { awk '/Cpus_allowed_list/ {print $2}' "/proc/$1/status"; }
all=$(allowed_of self)
# run_bound COMMAND...: the worker's cores in CPUS, the warnings in log.
run_bound() {
  rm -rf runs; printf 'a 10 200 1\n' > fake
  timeout 60 "$@" "$G" run fake > stdout 2> log &
  RUN=$!
  wait_for "attempt 1 on .*: worker" runs/fake/logs/a.log
  sleep 0.7  # it binds itself when its assignment comes
  CPUS=$(allowed_of "$(worker_of a)")
  wait "$RUN"
  expect $? 0 "exit code of $*"
}
# mpirun's default for two ranks: a core each.
run_bound mpirun -n 2
expect "$CPUS" "$all" "cores of the worker under mpirun's default binding"
expect_in "as it does when told nothing; galley uses all cores" log
run_bound mpirun --bind-to none -n 2
expect "$CPUS" "$all" "cores of the worker without binding"
grep -q "core only\|single cores" log && fail "a warning without a reason"
# A wish is honoured: both ranks on one core is one core.
run_bound mpirun --oversubscribe --bind-to core --cpu-list "$(nproc --all | awk '{print $1 - 1}')" -n 2
grep -q "may use one core only (an option of mpirun); add --bind-to none" log ||
  fail "ranks on one core were not told of"
one=${all%%[-,]*}
run_bound taskset -c "$one" mpirun --oversubscribe --bind-to none -n 2
expect "$CPUS" "$one" "cores of the worker under taskset"
expect_in "may use one core only (taskset" log
# More ranks than cores, and OpenMP's variables: nothing changes.
export OMP_NUM_THREADS=7 OMP_PROC_BIND=close OMP_PLACES=cores GOMP_CPU_AFFINITY=0 MKL_NUM_THREADS=1
run_bound mpirun --oversubscribe --bind-to none -n $(($(nproc) + 3))
expect "$CPUS" "$all" "cores of the worker beside OpenMP's variables"
unset OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES GOMP_CPU_AFFINITY MKL_NUM_THREADS
