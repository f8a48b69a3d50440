#!/usr/bin/env bash
# Everything that is measured on a GPU, in at most nine minutes: prints a Markdown table, device and versions first.
#
#     benchmarks/gpu.sh [part...]      parts: training large attacks attacks-large evaluation resume stall
#     kills, and attacks-compiled and influence, which nobody has run on a GPU yet and which must be named
#
# Needs this repository and a Python with torch (PYTHON=, default python3) and the packages of pyproject.toml; those that
# are missing may lie as wheels in .whl/. The peers of the attacks want nanogcg (make .venv-peers, or its wheel).
# DEVICE=cpu makes the same with small sizes: a test of this script, no measurement.
set -u
cd "$(dirname "$0")/.."
python=${PYTHON:-python3} device=${DEVICE:-cuda}
export TOKENIZERS_PARALLELISM=true HF_HUB_OFFLINE=1 PREFECT_SERVER_ANALYTICS_ENABLED=false DO_NOT_TRACK=1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} # where the project is not installed, for the processes that it starts
if compgen -G '.whl/*.whl' >/dev/null && ! "$python" -c 'import prefect' 2>/dev/null; then
  "$python" -m pip install -q --no-index --no-deps --no-compile --target "$scratch/site" .whl/*.whl || exit 2
  export PYTHONPATH=$scratch/site:$PYTHONPATH
fi

part() { # part NAME SECONDS MODULE OPTIONS...: a row of the table for each line that the benchmark prints
  local name=$1 seconds=$2
  shift 2
  [[ " ${chosen[*]} " == *" $name "* ]] || return 0
  [[ $device == cpu || $seconds -lt $((540 - SECONDS)) ]] || seconds=$((SECONDS < 535 ? 540 - SECONDS : 5))
  echo "| | \`python -m benchmarks.${*/$scratch/FOLDER}\` | |"
  timeout -k 5 "$seconds" "$python" -m "benchmarks.$1" "${@:2}" --device "$device" 2>"$scratch/errors" |
    grep -v -e '^Namespace' -e ', torch ' | sed "s/|/;/g; s/.*/| $name | & | $SECONDS s |/"
  [[ ${PIPESTATUS[0]} == 0 ]] || echo "| $name | did not end: $(tail -n 1 "$scratch/errors" | tr '|' ';') | $SECONDS s |"
}

chosen=("$@")
[[ $# -gt 0 ]] || chosen=(training large attacks attacks-large evaluation resume stall kills)
echo "$(date -u +%F), commit $(git rev-parse --short HEAD 2>/dev/null || cat .commit 2>/dev/null || echo unknown)" \
  "$("$python" -c 'from benchmarks import language; print(language.machine())' 2>/dev/null)" \
  "$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null)"
echo
echo "| part | measured | begun after |"
echo "|---|---|---|"
ways=ours,ours-waits,ours-compiled,trainer,plain,plain-free,plain-compiled
if [[ $device == cuda ]]; then
  part training 150 trainer --size 110M --batch 64 --steps 60 --rounds 1 --precision bf16 --ways $ways
  part large 100 trainer --size 1.4B --length 2048 --batch 8 --steps 8 --rounds 1 --precision bf16 --ways ours,trainer
  part attacks 60 attacks --precision bf16 --batch 160 --seeds 2 --steps 4
  part attacks-large 100 attacks --size 1.4B --precision bf16 --batch 160 --flips 3 --seeds 1 --steps 3
  part evaluation 30 evaluation --documents 400
  part resume 60 resume --size 29M --repeats 2 --folder "$scratch"
  part stall 60 stall --size 110M --batch 64 --pairs 2 --seconds 6 --folder "$scratch"
  part kills 150 kills --kills 4 --kill-for-seconds 60
  part attacks-compiled 400 attacks --size 1.4B --precision bf16 --batch 80 --flips 3 --seeds 1 --steps 3 --compile default
  part influence 120 influence
else
  part training 300 trainer --size 2M --batch 4 --steps 4 --rounds 1 --ways $ways
  part large 200 trainer --size 2M --length 256 --batch 2 --steps 2 --rounds 1 --ways ours,trainer
  part attacks 200 attacks --seeds 1 --steps 1 --candidates 8 --flips 2
  part attacks-large 300 attacks --size 29M --seeds 1 --steps 1 --candidates 8 --flips 2 --texts 2
  part evaluation 200 evaluation --documents 40 --repeats 1
  part resume 200 resume --size 2M --repeats 1 --folder "$scratch"
  part stall 200 stall --size 2M --batch 2 --pairs 1 --seconds 2 --folder "$scratch"
  part kills 400 kills --kills 1
  part attacks-compiled 400 attacks --seeds 1 --steps 2 --candidates 20 --flips 2 --batch 16 --compile default
  part influence 200 influence
fi
