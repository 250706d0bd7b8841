# pain_P003_ranks_ignore_slurm_variables: SLURM_NODEID=0 and SLURM_PROCID=0 exported to every rank change nothing: ranks
# come from MPI, and the contradiction is told.
. "$(dirname "$0")/common.sh"
printf 'a 5 10 1\nb 5 10 1\n' > fake
timeout 50 $M -n 4 -x SLURM_NODEID=0 -x SLURM_PROCID=0 "$G" run --cluster cluster.toml fake > stdout 2> log
expect $? 0 "exit code"
expect_in "SLURM_PROCID is not the rank on rank 1, 2, 3: it was typed or exported in a script" log
expect "$(ls runs/fake/logs | grep -c '^rank-')" 3 "ranks beside the coordinator"
