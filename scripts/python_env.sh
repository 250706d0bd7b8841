# Sourced by scripts that need Python packages.

# need_python SCRIPT MODULES FOLDER PACKAGE...: sets `python` to an interpreter that imports MODULES ("torch, peft").
# Given in `python`, it must have them and nothing is installed. Otherwise a virtual environment is made in FOLDER and
# the packages are installed there, once; with `torch_index` the first one comes from that package index. Says what is
# wrong and exits with 2.
need_python() {
  script=$1 modules=$2 folder=$3; shift 3
  if [ -n "$python" ]; then
    has_modules || python_fail "$python cannot import $modules"
    return
  fi
  python=$folder/bin/python
  if [ -x "$python" ] && has_modules; then return; fi
  echo "making $folder with $*" >&2
  python3 -m venv "$folder" || python_fail "install python3-venv, or give --python PATH"
  [ -z "${torch_index:-}" ] || pip_install --index-url "$torch_index" "$1"
  pip_install "$@"
}

has_modules() { "$python" -c "import $modules" 2>/dev/null; }
pip_install() {
  "$python" -m pip install --quiet --disable-pip-version-check "$@" \
    || python_fail "pip failed; is there a network? Or give --python PATH"
}
python_fail() { echo "$script: $*" >&2; exit 2; }
