# pain_P193_no_process_vm_readv: where the system refuses one process to read another's memory (containers,
# seccomp), messages of any size arrive whole and runs finish: galley asks for no single-copy transfers.
. "$(dirname "$0")/common.sh"
TOOLS=$(dirname "$G")
"$TOOLS/deny_cma" true || { echo "SKIPPED: no seccomp here"; exit 77; }
timeout 60 "$TOOLS/deny_cma" $M -n 3 "$TOOLS/mpi_echo" --denied > stdout 2> log
expect $? 0 "exit code of messages up to 4 MiB"
grep -q "Read -1" log && fail "MPI tried to read another process"
printf 'a 10 20 1\n' > fake
timeout 60 "$TOOLS/deny_cma" $M -n 3 "$G" run --cluster cluster.toml fake > stdout 2> log
expect $? 0 "exit code of the run"
grep -q "Read -1" log && fail "MPI tried to read another process"
# What a user sets stays: with the transfers forced, MPI complains or copes, but galley does not overrule it.
timeout 60 $M --mca btl_vader_single_copy_mechanism cma -n 2 "$TOOLS/mpi_echo" > stdout 2> log
expect $? 0 "exit code with cma where it is allowed"
