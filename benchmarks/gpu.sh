#!/usr/bin/env bash
# Everything to measure on a GPU, in under ten minutes: bash benchmarks/gpu.sh [OUT [PYTHON_OF_THE_PEERS]]
#
# Writes OUT/results.jsonl: training speed of base and big in bfloat16 on packed-size rows of 256 tokens, two
# batch sizes each, with the fused attention kernel and without; decoding of base, greedily and by beam; and,
# where a Python with PyTorch (and transformers) is named, the same training there. Before that, the test that
# the kernel agrees with equation 1.
# A run that fails, for want of memory say, leaves its error in OUT and the others go on.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-gpu_results}
peers=${2:-}
python=${PYTHON:-.venv/bin/python}
mkdir -p "$out"
export XLA_PYTHON_CLIENT_MEM_FRACTION=${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.9}

measure() {  # measure NAME COMMAND...: its JSON line goes to the results, its errors to a file of their own
  local name=$1
  shift
  if timeout 90 "$@" 2>"$out/$name.err" | tee -a "$out/results.jsonl"; then rm -f "$out/$name.err"; fi
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv | tee "$out/device.csv"
"$python" -m pytest -q tests/test_attention.py 2>&1 | tee "$out/attention_test.txt" | tail -3

work() {  # work ROWS SIZE: of both sides
  echo "--size=$2 --rows=$1 --length=256 --steps=20 --dtype=bfloat16"
}

for case in "128 base" "512 base" "64 big" "256 big"; do
  read -r rows size <<<"$case"
  for attention in "" cudnn; do
    measure "tfm-$size-$rows-$attention" "$python" -m benchmarks.train $(work $case) --loss_chunk_size=4096 \
      --attention=$attention
  done
done
for case in "1 4" "32 4" "32 1"; do
  read -r batch beam <<<"$case"
  measure "tfm-decode-$batch-$beam" "$python" -m benchmarks.decode --size=base --dtype=bfloat16 --batch=$batch \
    --beam=$beam
done
[[ -n $peers ]] || exit 0
for case in "512 base" "256 big"; do
  read -r rows size <<<"$case"
  for peer in torch marian; do
    measure "$peer-$size-$rows" "$peers" benchmarks/peers.py --peer=$peer --compile $(work $case)
  done
done
