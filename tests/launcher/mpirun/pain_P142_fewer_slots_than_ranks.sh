# pain_P142_fewer_slots_than_ranks: mpirun's refusal is explained where users look, galley launch avoids it, and
# nothing ever asks MPI for more processes.
. "$(dirname "$0")/common.sh"
DOCS=$(dirname "$0")/../../..  # ctest gives the whole path
printf 'a 5 10 1\n' > fake
timeout 60 mpirun --bind-to none -n $(($(nproc) + 2)) "$G" run --cluster cluster.toml fake > stdout 2> log
[ $? -ne 0 ] || fail "mpirun started more ranks than slots"
expect_in "There are not enough slots" log
for text in INSTALL.md README.md; do expect_in "not enough slots" "$DOCS/$text"; done
expect_in "--oversubscribe" "$DOCS/INSTALL.md"
timeout 60 mpirun --oversubscribe --bind-to none -n $(($(nproc) + 2)) "$G" run --cluster cluster.toml fake \
  > stdout 2> log
expect $? 0 "exit code with --oversubscribe"
rm -rf runs
timeout 60 "$G" launch -n $(($(nproc) + 2)) --cluster cluster.toml fake > stdout 2> log
expect $? 0 "exit code of launch"
for file in "$G" "$(dirname "$G")"/../lib/libgalley_mpi.so; do
  grep -q "MPI_Comm_spawn" "$file" && fail "$file knows MPI_Comm_spawn"
done
true
