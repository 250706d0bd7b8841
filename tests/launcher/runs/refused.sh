# What cannot run is refused before anything starts: 69 alone, 3 beside others; bad input stops the whole run
# with its code unless --skip-bad-jobs.
. "$(dirname "$0")/common.sh"
cat > tiny.toml <<'END'
[cluster]
emulate = true
[[node]]
names = "n1"
gpus = [{ type = "tiny", memory = "24MiB", count = 1 }]
END
job big 5 1 | sed 's/rank = 8/rank = 64/' > big.toml
"$G" plan big.toml --cluster tiny.toml > out 2> log
expect $? 69 "exit code of plan"
expect_in "big is refused: needs .* tiny has" out
timeout 60 $M -n 2 "$G" run big.toml --cluster tiny.toml > out 2> log
expect $? 69 "exit code alone"
expect "$("$G" exit-code runs/big)" 69 "the record"
[ -d runs/big/jobs/big/adapter ] && fail "a refused job has an adapter"
job small 5 2 units | sed 's/rank = 8/rank = 1/; s/sequence = 128/sequence = 32/' | cat big.toml - > both.toml
sed 's/24MiB/40MiB/' tiny.toml > forty.toml
"$G" plan both.toml --cluster forty.toml > out 2> log
expect $? 3 "exit code of plan beside another"
timeout 100 $M -n 2 "$G" run both.toml --cluster forty.toml > out 2> log
expect $? 3 "exit code beside another"
[ -s runs/both/jobs/small/adapter/adapter_model.safetensors ] || fail "the job that fits did not run"
expect_in "what would fit" log
# Bad input: nothing starts, the code is that of the first kind (78, 66, 65).
{ job good 3 1 units; job nowhere 3 1 | sed 's#/tiny-llama"#/no-such-model"#'; } > missing.toml
timeout 60 $M -n 2 "$G" run missing.toml --cluster cluster.toml > out 2> log
expect $? 66 "exit code of a missing model"
expect_in 'job "nowhere"' log
[ -d runs/missing/jobs/good/adapter ] && fail "a job ran although another is broken"
timeout 60 $M -n 2 "$G" run missing.toml --skip-bad-jobs --cluster cluster.toml > out 2> log
expect $? 3 "exit code with --skip-bad-jobs"
[ -s runs/missing/jobs/good/adapter/adapter_model.safetensors ] || fail "the good job did not run"
{ job good 3 1 units; echo 'sweep = { "adapter.rank" = [1, 2] }'; } > later.toml
timeout 60 $M -n 2 "$G" run later.toml --cluster cluster.toml > out 2> log
expect $? 78 "exit code of a key that is not available"
expect_in "later.toml:10: \"sweep\" is not available" log
# A learning rate that makes numbers overflow: the job fails alone, nothing of it is handed out.
{ job wild 20 1 | sed 's/1e-3/90.0, clip_norm = 0/'; job tame 5 2 units; } > wild.toml
timeout 60 $M -n 3 "$G" run wild.toml --cluster cluster.toml > out 2> log
expect $? 3 "exit code of a job whose numbers overflow"
expect_in "wild  *failed: step .* not finite" log
[ -d runs/wild/jobs/wild/adapter ] && fail "an adapter with overflown numbers was written"
[ -s runs/wild/jobs/tame/adapter/adapter_model.safetensors ] || fail "the other job did not run"
echo "ok"
