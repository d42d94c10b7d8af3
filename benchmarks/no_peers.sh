#!/usr/bin/env bash
# The Triton set where ranks share no memory, on two GPUs of one host (150 s):
#
#     bash benchmarks/no_peers.sh [FOLDER]
#
# Each rank is started as on a host of its own, which is what LOCAL_WORLD_SIZE says to it. Prefill goes
# through NCCL with a warning, and its layers are checked against plain ones; single-batch overlap, whose
# signals need the peers' memory, ends with status 3. Logs go to FOLDER. PYTHON changes the interpreter.
set -u
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
FOLDER=${1:-no_peers}
export MASTER_ADDR=127.0.0.1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 LOCAL_RANK=0 OMP_NUM_THREADS=4
mkdir -p "$FOLDER"

# ranks NAME PORT ARGUMENTS...: one process for each GPU; their exit statuses.
ranks() {
    local name=$1 port=$2 started=() statuses=()
    shift 2
    for rank in 0 1; do
        CUDA_VISIBLE_DEVICES=$rank RANK=$rank MASTER_PORT=$port OUT=$FOLDER \
            timeout --kill-after 5 120 "$PYTHON" -m "$@" >"$FOLDER/$name.$rank.log" 2>&1 &
        started+=($!)
    done
    for process in "${started[@]}"; do
        wait "$process"
        statuses+=($?)
    done
    echo "== $name: exit ${statuses[*]}"
    grep -h -E "share no memory|\"check\"|us a layer|µs|error" "$FOLDER/$name.0.log" | cut -c -200 | sort -u
}

ranks layers 29541 benchmarks.triton_layers --phase prefill
for schedule in sequential tbo; do
    ranks "$schedule" 29542 moe_overlap run deepseek-v3-h200-ep2-prefill --kernels triton \
        --schedule "$schedule" --set phase.prefill.tokens_per_rank=2048
done
ranks signals 29543 moe_overlap run deepseek-v3-h200-ep2-decode --kernels triton --schedule sbo.v2 \
    --allow-refused
