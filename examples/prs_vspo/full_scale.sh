#!/bin/sh
# The path of arXiv 2512.07478: progressive rewards and VSPO, short answers and long ones. See README.md.
#
#   sh full_scale.sh qwen2.5-7b short      the paper's model for short answers
#   sh full_scale.sh qwen3-4b long         in place of its Qwen3-14B
#
# SEARCH_URL is a server with Search-R1's /retrieve, TEACHER_URL an OpenAI-compatible server of the teacher, JUDGE_URL one
# of the judge, ENGINE_URL one of `palaestra serve vllm MODEL`.
# Needs: 8 cards of 80 GB (the paper's: 8 H100).
set -eu
# sh full_scale.sh --dry WORDS looks whether all that is needed is there, and starts nothing.
case ${1:-} in --dry) shift && exec "${PYTHON:-python3}" "$(dirname "$0")/../../scripts/dry_run.py" "$0" "$@" ;; esac
NAME=${1:?qwen2.5-7b or qwen3-4b}
KIND=${2:?short or long}
DATA=${DATA:-data}
RUN=${RUN:-runs/prs_vspo}/$NAME-$KIND
case $NAME in
    qwen2.5-7b) MODEL=Qwen/Qwen2.5-7B-Instruct ;;
    qwen3-4b) MODEL=Qwen/Qwen3-4B-Instruct-2507 ;;
    *) echo "no model is called $NAME here: qwen2.5-7b or qwen3-4b" >&2; exit 2 ;;
esac
mkdir -p "$RUN"

# The recipe has 5 episodes a task, rate 1e-6, clip .2, KL .001, temperature 1. Batch and lengths are not known: 64 tasks,
# 8,192 tokens.
learn() {
    ENV=$1; shift
    palaestra train "$ENV" --recipe vspo-prs --play.max-episode-tokens 10752 \
        --recipe.shaping.max-completion-length 8192 --eval-tasks 128 --eval.eval-steps 25 \
        --engine.kind vllm --engine.urls "$ENGINE_URL" --run "$RUN/rl" "$@"
}

case $KIND in
short)
    SEARCH="search={\"backend\": \"retrieve\", \"url\": \"$SEARCH_URL\"}"
    # The training parts of NQ and HotpotQA, in proportion.
    cat "$DATA/nq_train.jsonl" "$DATA/hotpotqa_train.jsonl" > "$RUN/questions.jsonl"
    learn search-qa --model "$MODEL" --env-options tasks="$RUN/questions.jsonl" "$SEARCH"
    for SET in nq triviaqa popqa hotpotqa 2wiki musique bamboogle; do
        palaestra eval search-qa --model "$RUN/rl/model" --against "$MODEL" --split all --tasks 500 --samples 1 \
            --env-options tasks="$DATA/$SET.jsonl" "$SEARCH" --json "$RUN/$SET.json"
    done
    ;;
long)
    JUDGE="judge={\"base_url\": \"$JUDGE_URL\", \"model\": \"Qwen/Qwen3-235B-A22B-Instruct-2507\"}"
    palaestra collect long-qa --model Qwen/Qwen3-235B-A22B-Instruct-2507 --base-url "$TEACHER_URL" --max-concurrent 64 \
        --env-options "$JUDGE" --tasks 4000 --out "$RUN/teacher.jsonl"
    palaestra sft "$RUN/teacher.jsonl" --model "$MODEL" --run "$RUN/sft"
    palaestra curate long-qa --model "$RUN/sft/model" -k 8 --tasks 4000 --env-options "$JUDGE" --out "$RUN/curated.json"
    learn long-qa --model "$RUN/sft/model" --env-options "$JUDGE" --curated "$RUN/curated.json"
    palaestra eval long-qa --model "$RUN/rl/model" --against "$RUN/sft/model" --tasks 200 --samples 32 \
        --env-options "$JUDGE" --json "$RUN/long.json"
    ;;
*) echo "$KIND is no kind of answers: short or long" >&2; exit 2 ;;
esac
