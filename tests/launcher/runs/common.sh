# Sourced by the cases: $1 is the real galley, $2 the repository; everything happens in a folder of its own.
# shellcheck shell=bash disable=SC2034
set -u
G=$(realpath "$1")
ROOT=$(realpath "$2")
command -v mpirun > /dev/null || { echo "SKIPPED: no mpirun here"; exit 77; }
if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
# A user's or a site's settings must not decide a test.
export XDG_CONFIG_HOME=/nonexistent GALLEY_SITE_CONFIG=/nonexistent
unset GALLEY_RUNS
M="mpirun --oversubscribe --bind-to none -q"
DIR=$(mktemp -d) && cd "$DIR" || exit 1
trap 'rm -rf "$DIR"' EXIT
cat > cluster.toml <<'END'
[cluster]
emulate = true
[[node]]
names = "n1"
gpus = [{ type = "large", memory = "2GiB", count = 1, threads = 1 }]
[[node]]
names = "n2"
gpus = [{ type = "small", memory = "256MiB", count = 1, threads = 1 }]
END

fail() {
  echo "FAILED: $*"
  tail -n 30 log out runs/*/logs/coordinator.log 2> /dev/null
  exit 1
}
expect() { [ "$1" = "$2" ] || fail "$3: $1, expected $2"; }
expect_in() { grep -q -- "$1" "$2" || fail "no \"$1\" in $2"; }
wait_for() {  # PATTERN FILE
  for _ in $(seq 1200); do grep -q -- "$1" "$2" 2> /dev/null && return; sleep 0.05; done
  fail "waited in vain for \"$1\" in $2"
}
# job NAME STEPS SEED [DATA]: one [[train]] on the small model of the examples.
job() {
  cat <<END
[[train]]
name = "$1"
model = "$ROOT/examples/tiny-llama"
data = "$ROOT/examples/data/${4:-cook}.jsonl"
adapter = { rank = 8, dropout = 0.05 }
optimizer = { learning_rate = 1e-3 }
batch = { global = 8, sequence = 128 }
length = { steps = $2 }
seed = $3
END
}
adapter_of() { sha256sum < "runs/$1/jobs/$2/adapter/adapter_model.safetensors"; }
worker_of() { sed -n 's/.*attempt [0-9]* on .*: worker \([0-9]*\).*/\1/p' "runs/$1/logs/$2.log" | tail -n 1; }
# Steps of a job's metrics are 1 .. N, each once.
steps_are_whole() {
  [ "$(tail -n +2 "runs/$1/jobs/$2/metrics.csv" | cut -d, -f1 | tr '\n' ' ')" = "$(seq 1 "$3" | tr '\n' ' ')" ]
}
