#!/usr/bin/env bash
# Compares LiteCache and llama.cpp on this machine's CPU with the same GGUF file: prefill of 512 and 4096 tokens, decode
# at 512 tokens of context. The two programs alternate, so that both see the same state of the machine; medians of each
# and of the rounds' ratios are printed.
#
#   scripts/bench-cpu-vs-llama.sh LLAMA_BENCH GGUF [--litecache BIN] [--threads N] [--rounds N]
#
# LLAMA_BENCH is an existing llama-bench (native release build), GGUF for example one of lab/tools/random_gguf.py;
# lab/notes/cpu.md describes how to make both. This script downloads and builds nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
usage() { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[[ $# -ge 2 ]] || usage
llama=$1 gguf=$2
shift 2
litecache=build/release/litecache threads=$(nproc) rounds=3
while [[ $# -gt 0 ]]; do
  [[ $# -ge 2 ]] || usage
  case $1 in
    --litecache) litecache=$2 ;;
    --threads) threads=$2 ;;
    --rounds) rounds=$2 ;;
    *) usage ;;
  esac
  shift 2
done
for program in "$llama" "$litecache"; do
  [[ -x $program ]] || { echo "bench-cpu-vs-llama: $program is not a program" >&2; exit 1; }
done
[[ -r $gguf ]] || { echo "bench-cpu-vs-llama: cannot read $gguf" >&2; exit 1; }

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
for ((round = 1; round <= rounds; ++round)); do
  echo "round $round of $rounds, load $(cut -d' ' -f1-3 /proc/loadavg)" >&2
  "$litecache" bench --model "$gguf" --policies full --threads "$threads" --context 512,4096 \
    --only prefill --repeats 1 --json >"$results/litecache-prefill-$round"
  "$llama" -m "$gguf" -t "$threads" -p 512,4096 -n 0 -r 1 -o json >"$results/llama-prefill-$round" 2>/dev/null
  "$litecache" bench --model "$gguf" --policies full --threads "$threads" --context 512 \
    --batch 1 --only decode --steps 32 --json >"$results/litecache-decode-$round"
  "$llama" -m "$gguf" -t "$threads" -p 0 -n 32 -d 512 -r 1 -o json >"$results/llama-decode-$round" 2>/dev/null
done

python3 - "$results" "$rounds" <<'EOF'
import json, pathlib, statistics, sys

results, rounds = pathlib.Path(sys.argv[1]), int(sys.argv[2])
ours, theirs, floors, machine = {}, {}, {}, None
for r in range(1, rounds + 1):
    for kind in ("prefill", "decode"):
        mine = json.loads((results / f"litecache-{kind}-{r}").read_text())
        machine = machine or mine["machine"]
        for cell in mine[kind]:
            key = (kind, cell["context"])
            ours.setdefault(key, []).append(cell["tokens_per_s"])
            floors.setdefault(key, []).append(cell["ratio_to_floor"])
        for cell in json.loads((results / f"llama-{kind}-{r}").read_text()):
            context = cell["n_prompt"] if kind == "prefill" else cell["n_depth"]
            theirs.setdefault((kind, context), []).append(cell["avg_ts"])
            commit = cell["build_commit"]

print(f"{machine['device']}, memory {machine['gb_per_s']:.1f} GB/s, "
      f"{machine['arithmetic']} {machine['gflop_per_s']:.0f} GFLOP/s; llama.cpp {commit}; "
      f"medians of {rounds} rounds, tokens/s (lowest-highest)\n")
print("| | LiteCache | llama.cpp | ratio | LiteCache / floor |")
print("| --- | --- | --- | --- | --- |")
spread = lambda v: f"{statistics.median(v):.1f} ({min(v):.1f}-{max(v):.1f})"
for key in ours:
    ratio = statistics.median(a / b for a, b in zip(ours[key], theirs[key]))
    print(f"| {key[0]} {key[1]} | {spread(ours[key])} | {spread(theirs[key])} | {ratio:.2f}x | "
          f"{statistics.median(floors[key]):.2f} |")
EOF
