#!/usr/bin/env bash
# Exchanges, calibrations and whole-program cases on 2, 4 and 8 GPUs of one host; no network.
#
#     bash benchmarks/many_gpus.sh [GPUS] [FOLDER]
#
# GPUS: as many as the driver lists unless given. FOLDER: `many_gpus` unless given. In ten minutes at
# most it leaves, for each number of ranks, a profile (YAML and CSV), the cases measured and tables of
# both (`*.exchanges.log`, `*.compared.log`), with the production kernels and then with ours; the most
# ranks come first. What a step has measured is not measured again: a second call goes on from there, and
# where there is no GPU it makes the tables alone. PYTHON and LIMIT_S change the interpreter and the
# seconds for all of it.
set -u
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
GPUS=${1:-$(nvidia-smi --list-gpus | wc -l)}
FOLDER=${2:-many_gpus}
LIMIT_S=${LIMIT_S:-590}
CASES=(benchmarks/validation_many.yaml)
SIGNALS=(benchmarks/validation_signals.yaml)
export CUDA_DEVICE_MAX_CONNECTIONS=32 NVSHMEM_REMOTE_TRANSPORT=none OMP_NUM_THREADS=4
export DG_JIT_CACHE_DIR=${DG_JIT_CACHE_DIR:-${TMPDIR:-/tmp}/dg_cache}
mkdir -p "$FOLDER/records" "$DG_JIT_CACHE_DIR"

# step SECONDS NAME COMMAND...: with what is left of all the time, at most SECONDS; its output in a log.
step() {
    local most=$1 name=$2 left=$((LIMIT_S - SECONDS))
    shift 2
    if ((left < 20)); then
        echo "[$SECONDS s] $name: no time left"
        return
    fi
    ((left < most)) && most=$left
    timeout --kill-after 5 "$most" "$@" >>"$FOLDER/$name.log" 2>&1
    local status=$?
    echo "[$SECONDS s] $name: exit $status, $(tail -n 1 "$FOLDER/$name.log" | cut -c -120)"
}

# calibrate RANKS KERNELS NAME SECONDS
calibrate() {
    local minutes
    minutes=$(awk "BEGIN {print $4 / 60}")
    step $(($4 + 25)) "$3" "$PYTHON" -m moe_overlap calibrate --quick --gpus "$1" --kernels "$2" \
        --minutes "$minutes" -o "$FOLDER/$3.yaml" --records "$FOLDER/records/$3.jsonl"
}

# measure RANKS KERNELS NAME SECONDS FILES...
measure() {
    local ranks=$1 kernels=$2 name=$3 most=$4 minutes
    shift 4
    minutes=$(awk "BEGIN {print $most / 60}")
    step $((most + 25)) "$name" "$PYTHON" -m torch.distributed.run --nproc-per-node "$ranks" \
        -m benchmarks.validation_run --kernels "$kernels" --cases "$@" --out "$FOLDER/$name.jsonl" \
        --minutes "$minutes" --trace-minutes 0
}

# tables NAME_OF_PROFILE NAME_OF_CASES FILES...: predictions need no GPU.
tables() {
    local profile=$FOLDER/$1.yaml cases=$FOLDER/$2.jsonl
    [ -s "$profile" ] || return
    step 20 "$1.exchanges" "$PYTHON" -m benchmarks.exchange_tables "$profile"
    [ -s "$cases" ] || return
    step 60 "$2.compared" "$PYTHON" -m benchmarks.validation_others "$cases" --profile "$profile" \
        --cases "${@:3}"
}

RANKS=()
for ranks in 8 4 2; do
    ((ranks <= GPUS)) && RANKS+=("$ranks")
done
((${#RANKS[@]})) || { echo "two GPUs at least are needed; there are $GPUS"; exit 3; }

name_of() { # RANKS KERNELS: production has no name of its own
    [ "$2" = triton ] && echo "$1-triton" || echo "$1"
}

files_of() { # KERNELS: ours signal, too
    echo "${CASES[@]}"
    [ "$1" = triton ] && echo "${SIGNALS[@]}"
}

declare -A CALIBRATION=([production]=105 [triton]=60)
for kernels in production triton; do
    for ranks in "${RANKS[@]}"; do
        calibrate "$ranks" "$kernels" "$(name_of "h200-${ranks}x-nvlink" $kernels)-measured" \
            "${CALIBRATION[$kernels]}"
        # Two ranks have cases of their own elsewhere.
        if ((ranks > 2 || GPUS == 2)); then
            measure "$ranks" "$kernels" "$(name_of "cases-ep$ranks" $kernels)" 40 $(files_of $kernels)
        fi
    done
done
for kernels in production triton; do
    for ranks in "${RANKS[@]}"; do
        tables "$(name_of "h200-${ranks}x-nvlink" $kernels)-measured" \
            "$(name_of "cases-ep$ranks" $kernels)" $(files_of $kernels)
    done
done
ls -l "$FOLDER"
