#!/usr/bin/env bash
# Everything to measure on one GPU: bash benchmarks/gpu.sh [OUT [PYTHON_OF_THE_PEERS]]
#
# Writes text only: OUT/results.jsonl, OUT/status.txt with the seconds and the exit code of each job, and a log of
# each job. Each job has a limit of its own, a failed job stops no other, and one process runs at a time.
#
#   tests    attention, layers, models and search; the contract compares cuDNN's kernel with equation 1
#   train    a bare step of base and big in bfloat16, 256 tokens a row: equation 1 and what auto chooses
#   peers    the same work by PyTorch, if a Python with PyTorch (and transformers) is named; model and loss compiled
#   decode   greedy search and beam search of base
#
# JAX_COMPILATION_CACHE_DIR is kept, because a program takes 20 to 90 seconds to compile on a GPU. The limits add up
# to an hour; on one H200, compilation took most of the time of a job. DRY=1 tries the script on a CPU with the
# small model and without compiling PyTorch. JOBS="train peers" selects jobs.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-gpu_results}")
peers=${2:-}
python=${PYTHON:-.venv/bin/python}
jobs=${JOBS:-"train peers decode tests"}
mkdir -p "$out"
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$out/compiled}
export XLA_PYTHON_CLIENT_MEM_FRACTION=${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.9} PYTHONUNBUFFERED=1
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$out/inductor}

if [[ ${DRY:-} ]]; then
  cases=("4 small") work="--length=32 --steps=2 --dtype=float32" decode="--size=small --calls=1"
  batches=("1 4") tests="tests/test_attention_kernels.py -k auto_chooses"
  compile=""
  export JAX_PLATFORMS=cpu
else
  cases=("64 base" "256 base" "64 big" "256 big")
  work="--length=256 --steps=20 --dtype=bfloat16" decode="--size=base --dtype=bfloat16"
  batches=("1 4" "64 4" "64 1")
  tests="tests/test_attention.py tests/test_attention_kernels.py tests/layers tests/models tests/search"
  compile=--compile
  export JAX_PLATFORMS=cuda
fi

run() {  # run NAME SECONDS COMMAND...: its JSON lines go to the results, the rest to a log of its own
  local name=$1 limit=$2 began code
  shift 2
  began=$(date +%s)
  timeout -k 15 "$limit" "$@" >"$out/$name.log" 2>&1
  code=$?
  grep -h '^{' "$out/$name.log" | tee -a "$out/results.jsonl"
  echo "$name: exit code $code after $(($(date +%s) - began)) s" | tee -a "$out/status.txt"
}

{
  git rev-parse HEAD
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  "$python" -c "import jax, sys; print('Python', sys.version.split()[0], 'JAX', jax.__version__)"
  [[ -z $peers ]] || "$peers" -c "import torch; print('PyTorch', torch.__version__)"
} 2>&1 | tee "$out/versions.txt"

for job in $jobs; do
  case $job in
    tests) run tests 600 "$python" -m pytest -q -n 4 -m "not long" $tests ;;
    train)
      for case in "${cases[@]}"; do
        read -r rows size <<<"$case"
        for attention in None auto; do
          run "tfm-$size-$rows-$attention" 150 "$python" -m benchmarks.train --size="$size" --rows="$rows" $work \
            --loss_chunk_size=4096 --attention=$attention
        done
      done
      ;;
    peers)
      [[ -n $peers ]] || continue
      for case in "${cases[@]}"; do
        read -r rows size <<<"$case"
        for peer in torch marian; do
          run "$peer-$size-$rows" 180 "$peers" benchmarks/peers.py --peer=$peer $compile --size="$size" \
            --rows="$rows" $work
        done
      done
      ;;
    decode)
      for case in "${batches[@]}"; do
        read -r batch beam <<<"$case"
        run "decode-$batch-$beam" 120 "$python" -m benchmarks.decode $decode --batch="$batch" --beam="$beam"
      done
      ;;
  esac
done
