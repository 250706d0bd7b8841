# Every rank returns the code of the run, and the record says the same.
. "$(dirname "$0")/common.sh"
run() {  # EXPECTED CODE, then the job file's lines on stdin
  rm -rf runs; cat > fake
  timeout 50 $M -n 3 "$G" run --cluster cluster.toml fake > stdout 2> log
  expect $? "$1" "exit code of: $(tr '\n' ';' < fake)"
  expect "$("$G" exit-code runs/fake; echo $?)" "$1" "record of: $(tr '\n' ';' < fake)"
}
run 0 <<< 'a 2 1 1'
run 3 <<< $'a 2 1 1\nbig 2 1 99'
run 69 <<< 'big 2 1 99'
run 3 <<< $'a 2 1 1\nbad 2 1 1'
run 74 <<< $'a 2 1 1\nfull 2 1 1'
run 78 <<< 'a 0 1 1'
run 3 <<< $'die-always 3 1 1\na 2 1 1'
expect_in "given up after 3 restarts without a new step" log
expect_in "killed by signal 9" log
# Not under mpirun; under srun without PMIx.
timeout 10 "$G" run fake > stdout 2> log
expect $? 2 "alone"
expect_in "mpirun -n 2 galley run" log
SLURM_STEP_ID=0 timeout 10 "$G" run fake > stdout 2> log
expect $? 2 "srun without PMIx"
expect_in "srun --mpi=pmix" log
# A run directory in use.
rm -rf runs; echo 'a 100 50 1' > fake
start 2 --cluster cluster.toml fake
wait_for "ready" log
timeout 50 $M -n 2 "$G" run --cluster cluster.toml fake > stdout2 2> log2
expect $? 73 "second coordinator"
expect_in "in use by process" log2
kill -USR1 "$(mpirun_pid)"; wait "$RUN"
expect $? 75 "first coordinator"
