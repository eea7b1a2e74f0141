#!/usr/bin/env bash
# Trains the chain model from nothing and writes it to OUT (default: executor/assets/chain-model).
# About 2.5 hours of two free CPU cores at most; idle priority, so other work goes first.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=${WORK:-$(mktemp -d)}
out=${OUT:-$root/executor/assets/chain-model}
python=${PYTHON:-python3}

cargo build --release --manifest-path "$root/Cargo.toml" -p kvlab-executor --example chain_dump
generator=${CARGO_TARGET_DIR:-$root/target}/release/examples/chain_dump

# Freed blocks stay in the process: without this, page faults cost more than the arithmetic.
export MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=8589934592 MALLOC_TOP_PAD_=268435456
export OMP_NUM_THREADS=2
run() { nice -n 19 "$python" "$here/$1" --generator "$generator" "${@:2}"; }
common=(--seed 1 --compile 1 --tokens 4096 --low 5 --save-minutes 4)

# 1. Solve: six layers, from the lookup start.
run train.py "${common[@]}" --out "$work/solve" --high 24 --recall 6 --judge 16 --check 0 --claim 0 --steps 1300 \
    --config '{"num_hidden_layers":6,"intermediate_size":320}'
# 2. Two more layers, one of them fitted to compare what was predicted with what stands there.
run grow.py --checkpoint "$work/solve/checkpoint.pt" --out "$work/grown"
# 3. Learn to see single flaws.
run train.py "${common[@]}" --out "$work/check" --resume "$work/grown/checkpoint.pt" --high 25 --recall 0 --judge 16 \
    --check 20 --claim 12 --lr 0.018 --adam-lr 0.0026 --steps 500
# 4. A head that gathers them for the verdict.
run gather.py --checkpoint "$work/check/checkpoint.pt" --out "$work/gathered"
# 5. Everything but `check`, whose targets (this token only) contradict the verdict so far; learning rate to zero.
run train.py "${common[@]}" --out "$work/all" --resume "$work/gathered/checkpoint.pt" --high 25 --recall 0 --judge 32 \
    --check 0 --claim 6 --gathered 1 --lr 0.008 --adam-lr 0.001 --decay-steps "${DECAY_STEPS:-1000}"
run export.py --checkpoint "$work/all/checkpoint.pt" --out "$out" --check 1
run evaluate.py --checkpoint "$work/all/checkpoint.pt" --levels easy,light,default,hard,extreme --count 500 --claim 1
