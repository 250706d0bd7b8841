# A full disk ends the run with 74 and loses nothing: with space again the same command finishes, with the
# adapter of an undisturbed run.
. "$(dirname "$0")/common.sh"
[ "$(id -u)" = 0 ] || { echo "SKIPPED: only root can mount a small file system"; exit 77; }
{ echo 'run = { checkpoint = { every = "200ms", keep = 2 } }'; job a 40 1; } > jobs.toml
timeout 200 $M -n 2 "$G" run jobs.toml --run quiet --cluster cluster.toml > out 2> log
expect $? 0 "exit code of the undisturbed run"
mkdir small
mount -t tmpfs -o size=2M tmpfs small || { echo "SKIPPED: no mounts here"; exit 77; }
trap 'cd /; umount "$DIR/small"; rm -rf "$DIR"' EXIT
export GALLEY_RUNS=$DIR/small
timeout 200 $M -n 2 "$G" run jobs.toml --cluster cluster.toml > out 2> log
expect $? 74 "exit code on the full disk"
[ -e small/jobs/jobs/a/adapter ] && fail "an adapter on a full disk"
mount -o remount,size=64M small || fail "the file system does not grow"
timeout 200 $M -n 2 "$G" run jobs.toml --cluster cluster.toml > out 2> log
expect $? 0 "exit code with space again"
cmp -s small/jobs/jobs/a/adapter/adapter_model.safetensors runs/quiet/jobs/a/adapter/adapter_model.safetensors ||
  fail "the adapters differ"
echo "ok"
