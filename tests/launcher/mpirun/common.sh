# Sourced by the cases: G is the program, everything happens in a folder of its own.
set -u
G=$1
command -v mpirun > /dev/null || { echo "SKIPPED: no mpirun here"; exit 77; }
if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
M="mpirun --oversubscribe --bind-to none"
DIR=$(mktemp -d) && cd "$DIR" || exit 1
trap 'rm -rf "$DIR"' EXIT
cat > cluster.toml <<'END'
[cluster]
emulate = true
[[node]]
names = "n1"
gpus = [{ type = "a100-40gb", count = 1 }]
[[node]]
names = "n2"
gpus = [{ type = "rtx6000-24gb", count = 1 }]
END

fail() {
  echo "FAILED: $*"
  tail -n 40 log stdout runs/fake/logs/coordinator.log 2> /dev/null
  exit 1
}
expect() { [ "$1" = "$2" ] || fail "$3: $1, expected $2"; }
expect_in() { grep -q -- "$1" "$2" || fail "no \"$1\" in $2"; }
# start N ARGUMENTS...: galley run under mpirun in the background, its pid in RUN.
start() {
  local ranks=$1; shift
  rm -f stdout log  # or the wait for a line would find the last run's
  timeout 60 $M -n "$ranks" "$G" run "$@" > stdout 2> log &
  RUN=$!
}
# The pid of mpirun under timeout.
mpirun_pid() { pgrep -P "$RUN" | head -n 1; }
wait_for() {  # PATTERN FILE
  for _ in $(seq 400); do grep -q -- "$1" "$2" 2> /dev/null && return; sleep 0.05; done
  fail "waited in vain for \"$1\" in $2"
}
# The pids of the ranks (children of mpirun), rank 0 first.
ranks() { pgrep -P "$(mpirun_pid)" -f 'fake_galley run' | sort -n; }
worker_of() { sed -n 's/.*attempt [0-9]* on .*: worker \([0-9]*\).*/\1/p' "runs/fake/logs/$1.log" | tail -n 1; }
