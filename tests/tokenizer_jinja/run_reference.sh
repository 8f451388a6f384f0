#!/usr/bin/env bash
# Runs the comparisons of PROGRAM with the reference renderer. Exits with 77 (skipped) without the reference's Python
# environment.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${LITECACHE_TEST_PYTHON:-$here/../../build/test-python/bin/python}
if [ ! -x "$python" ]; then
  echo "no reference Python at $python: run scripts/setup-test-python" >&2
  exit 77
fi
export PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore
"$python" "$here/make_golden.py" --check "$1"
"$python" "$here/compare_with_reference.py" "$1" --count 3000
