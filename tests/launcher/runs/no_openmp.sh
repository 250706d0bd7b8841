# No OpenMP runtime is in the program, and its variables change neither threads nor bits.
. "$(dirname "$0")/common.sh"
for file in "$G" "$(dirname "$G")"/lib/*.so; do
  [ -e "$file" ] || continue
  case $file in *cuda*) continue ;; esac
  ldd "$file" 2> /dev/null | grep -Ei 'libgomp|libiomp|libomp\.|openblas|mkl' && fail "$file links them"
done
{ job one 12 3; echo 'plan = { kernels = "portable" }'; } > jobs.toml  # measured choices may differ between two runs
run() {  # NAME
  timeout 120 $M -n 2 "$G" run --run "$1" jobs.toml > out 2> log
  expect $? 0 "exit code of $1"
  THREADS=$(grep -o '"threads": *[0-9]*' "runs/$1/plan.json" | head -n 1)
  [ -n "$THREADS" ] || fail "the plan of $1 names no threads"
}
run plain
plain=$THREADS
export OMP_NUM_THREADS=7 OMP_PROC_BIND=close OMP_PLACES=cores GOMP_CPU_AFFINITY=0 KMP_AFFINITY=compact \
  MKL_NUM_THREADS=5 OPENBLAS_NUM_THREADS=5
run openmp
expect "$THREADS" "$plain" "threads of the worker beside OpenMP's variables"
expect "$(adapter_of openmp one)" "$(adapter_of plain one)" "adapter beside OpenMP's variables"
