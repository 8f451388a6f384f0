#!/bin/sh
# Data, then training, on a machine with a GPU: run.sh GENERATOR TOKENIZER_DIR WORK_DIR [train.py's options]
# Preparation continues in parallel with the training; both write their logs to WORK_DIR.
set -e
generator=$1 tokenizer=$2 work=$3
shift 3
here=$(cd "$(dirname "$0")" && pwd)
recipe=${RECIPE:-first}
mkdir -p "$work"
python3 "$here/sources.py" --output "$work/data" >"$work/sources.log" 2>&1
python3 "$here/prepare.py" --data "$work/data" --tokenizer "$tokenizer/tokenizer.json" --generator "$generator" \
  --output "$work/prepared" --recipe "$recipe" --seed "${SEED:-1000000}" --prompts "${PROMPTS:-50}" >"$work/prepare.log" 2>&1 &
python3 "$here/train.py" --prepared "$work/prepared" --tokenizer "$tokenizer" --output "$work/run" \
  --recipe "$recipe" "$@" >"$work/train.log" 2>&1
wait
