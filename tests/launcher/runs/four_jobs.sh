# Four jobs on two emulated GPU types: packed, queued, all finished, with five ranks and with two; the
# adapters are bit-equal, measured peaks lie within the error bars, a second start does nothing again.
. "$(dirname "$0")/common.sh"
{ job a 40 1; job b 40 2 units; job c 30 3; job d 30 4 units; } > four.toml
timeout 200 $M -n 5 "$G" run four.toml --cluster cluster.toml > out 2> log
expect $? 0 "exit code with 5 ranks"
for name in a b c d; do
  expect_in "$name  *finished" out
  [ -s "runs/four/jobs/$name/adapter/adapter_config.json" ] || fail "no adapter of $name"
done
for gpu in n1:gpu0 n2:gpu0; do
  [ "$(grep -c "starts on $gpu" log)" -ge 1 ] || fail "nothing ran on $gpu"
done
expect "$(grep -c 'starts on' log)" 4 "starts"
cp -r runs first
rm -rf runs
timeout 200 $M -n 2 "$G" run four.toml --cluster cluster.toml > out 2> log
expect $? 0 "exit code with 2 ranks"
for name in a b c d; do
  cmp -s "first/four/jobs/$name/adapter/adapter_model.safetensors" \
    "runs/four/jobs/$name/adapter/adapter_model.safetensors" || fail "the adapters of $name differ"
  steps_are_whole four "$name" "$(tail -n +2 "first/four/jobs/$name/metrics.csv" | wc -l)" || fail "steps of $name"
done
# Columns: predicted_low_bytes, predicted_high_bytes, measured_peak_bytes, by name.
awk -F, 'NR == 1 { for (i = 1; i <= NF; ++i) at[$i] = i; next }
         { low = $at["predicted_low_bytes"]; high = $at["predicted_high_bytes"]; peak = $at["measured_peak_bytes"]
           printf "%s: predicted %.1f to %.1f MiB, measured %.1f MiB\n", $at["job"], low / 2^20, high / 2^20, peak / 2^20
           if (peak < low || peak > high) bad = 1 }
         END { exit bad }' runs/four/jobs.csv || fail "a measured peak lies outside its error bar"
timeout 60 $M -n 2 "$G" run four.toml --cluster cluster.toml > out 2> log
expect $? 0 "exit code of the same command again"
expect "$(grep -c 'starts on' log)" 0 "starts of finished jobs"
# A new job joins the run; an edited one is refused with the keys that differ.
{ cat four.toml; job e 5 5 units; } > more.toml
timeout 60 $M -n 2 "$G" run more.toml --run four --cluster cluster.toml > out 2> log
expect $? 0 "exit code with an added job"
expect "$(grep -c 'starts on' log)" 1 "starts with an added job"
sed 's/rank = 8/rank = 4/' four.toml > edited.toml
timeout 60 $M -n 2 "$G" run edited.toml --run four --cluster cluster.toml > out 2> log
expect $? 78 "exit code of an edited job"
expect_in "different: adapter.rank" log
expect_in "start anew with --run NAME" log
echo "ok"
