#!/usr/bin/env bash
# Trains the chain model from nothing and writes it to OUT (default: executor/assets/chain-model).
# Under 2.5 hours on two CPU cores. SCALE=0.01 runs every stage with one step in a hundred, to see that all of them work.
# WORK keeps checkpoints; a stage whose mark is there is not run again, so an interrupted run continues.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=${WORK:-$(mktemp -d)}
out=${OUT:-$root/executor/assets/chain-model}
python=${PYTHON:-python3}
scale=${SCALE:-1}
mkdir -p "$work"

# A copy, so that later builds do not change it.
generator=$work/chain_dump
if [ ! -e "$generator" ]; then
    cargo build --release --manifest-path "$root/Cargo.toml" -p kvlab-executor --example chain_dump
    cp "${CARGO_TARGET_DIR:-$root/target}/release/examples/chain_dump" "$generator"
fi

# Freed blocks stay in the process: without this, page faults cost more than the arithmetic.
export MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=8589934592 MALLOC_TOP_PAD_=268435456
export OMP_NUM_THREADS=2
scaled() { awk -v n="$1" -v s="$scale" 'BEGIN { v = int(n * s); print (v < 4 ? 4 : v) }'; }
# stage NAME SCRIPT ARGUMENTS…
stage() {
    if [ -e "$work/$1.done" ]; then return; fi
    echo "== $(date -u +%H:%M:%S) stage $1"
    nice -n "${NICE:-19}" "$python" "$here/$2" --generator "$generator" "${@:3}"
    touch "$work/$1.done"
    echo "== $(date -u +%H:%M:%S) done $1"
}
common=(--seed 1 --compile 1 --tokens 4096 --low 5 --high 25 --long 8 --long-max 70 --save-minutes 4)

# 1. Solve: six layers, from the lookup start.
stage solve train.py "${common[@]}" --out "$work/solve" --recall 6 --judge 16 --check 0 \
    --name-first 0.6 --steps "$(scaled 1700)"
# 2. A judge will compare each token with what was predicted: both are to be found before the last layer.
stage carry train.py "${common[@]}" --out "$work/carry" --resume "$work/solve/checkpoint.pt" --recall 0 --judge 20 --check 20 \
    --carry 0.3 --name-first 0.6 --lr 0.014 --adam-lr 0.002 --steps "$(scaled 250)"
# 3. Two more layers, one of them fitted to compare what was predicted with what stands there.
stage grow grow.py --checkpoint "$work/carry/checkpoint.pt" --out "$work/grown"
# 4. Learn to see single flaws.
stage check train.py "${common[@]}" --out "$work/check" --resume "$work/grown/checkpoint.pt" --recall 0 --judge 16 --check 25 \
    --lr 0.008 --adam-lr 0.0012 --steps "$(scaled 350)"
# 5. A head that gathers them for the verdict.
stage gather gather.py --checkpoint "$work/check/checkpoint.pt" --out "$work/gathered"
# 6. Solutions in the model's own words, right and wrong ones, for the verdict.
stage own own.py --checkpoint "$work/gathered/checkpoint.pt" --out "$work/own.records" --count "$(scaled 150)"
# 7. Everything but `check`, whose targets (this token only) contradict the verdict so far.
stage all train.py "${common[@]}" --out "$work/all" --resume "$work/gathered/checkpoint.pt" --recall 0 --judge 30 --check 0 \
    --gathered 1 --extra "$work/own.records" --name-first 0.6 --lr 0.003 --adam-lr 0.0004 --decay-steps "$(scaled 950)" --steps "$(scaled 422)"
# 8. The same, with more of the wordings in which the expression comes before the name; twice, learning rate to zero.
stage last train.py "${common[@]}" --out "$work/last" --resume "$work/all/checkpoint.pt" --recall 0 --judge 26 --check 0 \
    --gathered 1 --extra "$work/own.records" --name-first 0.35 --lr 0.005 --adam-lr 0.0006 --decay-steps "$(scaled 900)"
stage final train.py "${common[@]}" --out "$work/final" --resume "$work/last/checkpoint.pt" --recall 0 --judge 26 --check 0 \
    --gathered 1 --extra "$work/own.records" --name-first 0.3 --lr 0.007 --adam-lr 0.0009 --decay-steps "$(scaled 800)"
stage export export.py --checkpoint "$work/final/checkpoint.pt" --out "$out" --check 1
stage evaluate evaluate.py --checkpoint "$work/final/checkpoint.pt" --levels easy,light,default,hard,extreme,marathon \
    --count "$(scaled 200)" --own 1
