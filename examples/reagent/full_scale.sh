#!/bin/sh
# The path of arXiv 2601.22154: a pool of tasks -> a judge that reads episodes -> Reagent-U. See README.md.
#
#   sh full_scale.sh data                 the pool, a teacher's episodes, eight agents' episodes and their labels
#   sh full_scale.sh judge                imitation and GRPO of the judge
#   sh full_scale.sh serve                answers as the judge until it is interrupted; what follows asks it
#   sh full_scale.sh agent reagent-u      imitation of the teacher, RL with the judge, measuring; or reagent-r
#
# TEACHER_URL is an OpenAI-compatible server, or a gateway, with every model that is named here; SEARCH_URL one with
# Search-R1's /retrieve; ENGINE_URL one of `palaestra serve vllm Qwen/Qwen3-8B`; JUDGE_URL those of `serve`.
# Needs: 8 cards of 80 GB (the paper's: 8 A800), and as many for the teachers' servers.
set -eu
# sh full_scale.sh --dry WORDS looks whether all that is needed is there, and starts nothing.
case ${1:-} in --dry) shift && exec "${PYTHON:-python3}" "$(dirname "$0")/../../scripts/dry_run.py" "$0" "$@" ;; esac
PART=${1:?data, judge, serve or agent}
DATA=${DATA:-data}
RUN=${RUN:-runs/reagent}
MODEL=Qwen/Qwen3-8B # Of the agent and of the judge.
mkdir -p "$RUN/sft" "$RUN/rl"
SANDBOX='sandbox={"backend":"docker","limits":{"seconds":30}}' # The authors' 30 s for a program.
LENGTHS="--max-turn-tokens 11000 --max-episode-tokens 13560"

# The six tools of the paper. Mathematics has python alone.
tools() {
    printf "$1%s " tools=search,browse,python,file_reader,image2text,audio2text "$SANDBOX" "files=$DATA/files" \
        "search={\"backend\":\"retrieve\",\"url\":\"$SEARCH_URL\"}" \
        'browser={"backend":"text","allow":"public"}' "model={\"base_url\":\"$TEACHER_URL\",\"model\":\"gpt-4.1\"}" \
        "speech={\"base_url\":\"$TEACHER_URL\",\"model\":\"whisper-large-v3\"}"
}

case $PART in
data)
    ASKED="--base-url $TEACHER_URL --max-concurrent 64"
    TESTS="$DATA/aime24.jsonl $DATA/aime25.jsonl $DATA/math500.jsonl $DATA/gsm8k.jsonl $DATA/gaia.jsonl $DATA/hle.jsonl
        $DATA/webwalkerqa.jsonl $DATA/xbench.jsonl $DATA/hotpotqa.jsonl $DATA/2wiki.jsonl $DATA/musique.jsonl
        $DATA/bamboogle.jsonl"
    # 1. The pool without ambiguous answers, repeats, and questions of the tests: of 5,000 tasks, and of 20,000. A fifth of
    #    each file is held out for measuring, here and below.
    palaestra pool "$DATA/deepscaler.jsonl" --against $TESTS --out "$RUN/math.jsonl"
    palaestra pool "$DATA/hiersearch.jsonl" "$DATA/heysquad.jsonl" "$DATA/ocr_vqa.jsonl" --against $TESTS \
        --out "$RUN/research.jsonl"

    # 2. Right episodes of DeepSeek-V3.1, for the agent's imitation.
    palaestra collect code-math --model DeepSeek-V3.1 $ASKED --tasks 4000 --out "$RUN/teacher-math.jsonl" \
        --env-options tasks="$RUN/math.jsonl" "$SANDBOX"
    palaestra collect research --model DeepSeek-V3.1 $ASKED --tasks 16000 --out "$RUN/teacher-research.jsonl" \
        --env-options tasks="$RUN/research.jsonl" $(tools "")

    # 3. Good and bad episodes of eight agents, 3,500 of each to imitate their labels and 11,250 of each for GRPO, on
    #    different tasks: 28,000 and 90,000.
    head -n 1000 "$RUN/math.jsonl" > "$RUN/sft-math.jsonl"
    tail -n +1001 "$RUN/math.jsonl" > "$RUN/rl-math.jsonl"
    head -n 4000 "$RUN/research.jsonl" > "$RUN/sft-research.jsonl"
    tail -n +4001 "$RUN/research.jsonl" > "$RUN/rl-research.jsonl"
    for AGENT in Qwen3-8B Qwen3-14B Qwen3-8B-ARPO-DeepSearch Qwen3-14B-ARPO-DeepSearch Qwen2.5-7B-ARPO \
        Qwen2.5-WebDancer-7B WebDancer-32B DeepSeek-V3.1; do
        for SHARE in "sft 700 2800" "rl 2250 9000"; do
            set -- $SHARE
            palaestra collect code-math --model "$AGENT" $ASKED --tasks "$2" --out "$RUN/$1/$AGENT-math.jsonl" \
                --env-options tasks="$RUN/$1-math.jsonl" "$SANDBOX"
            palaestra collect research --model "$AGENT" $ASKED --tasks "$3" --out "$RUN/$1/$AGENT-research.jsonl" \
                --env-options tasks="$RUN/$1-research.jsonl" $(tools "")
        done
    done

    # 4. Labels: gpt-oss-120b judges what was played, right or wrong, and does not see the right answers.
    for SHARE in sft rl; do
        palaestra judge "$RUN/$SHARE"/*.played.jsonl --teacher "$TEACHER_URL" --teacher-model gpt-oss-120b \
            --out "$RUN/labels-$SHARE.jsonl"
    done
    ;;
judge)
    # 5. Imitation: 2 epochs, 32 rows, 1e-5. GRPO: one pass over four fifths of the labels; the agent's settings.
    palaestra sft "$RUN/labels-sft.taught.jsonl" --model $MODEL --epochs 2 --batch-rows 32 \
        --optimizer.learning-rate 1e-5 --run "$RUN/judge-sft"
    palaestra train judge --env-options tasks="$RUN/labels-rl.jsonl" --model "$RUN/judge-sft/model" \
        --recipe reagent-none --recipe.shaping.max-completion-length 1400 --play.max-turn-tokens 1400 \
        --play.max-episode-tokens 20480 --steps 1125 --eval-tasks 512 --engine.kind vllm --engine.urls $ENGINE_URL \
        --run "$RUN/judge"
    palaestra eval judge --env-options tasks="$RUN/labels-rl.jsonl" --model "$RUN/judge/model" \
        --against "$RUN/judge-sft/model" --tasks 2000 --temperature 0 --json "$RUN/judge.json"
    ;;
serve)
    palaestra serve rrm "$RUN/judge/model" --engine vllm --port "${PORT:-8100}"
    ;;
agent)
    RECIPE=${2:?reagent-u or reagent-r}
    MEASURED="--split all --temperature 0.6 --max-turn-tokens 32768 --max-episode-tokens 35328"
    # 6. Imitation: 2 epochs, 32 rows, 1e-5.
    palaestra sft "$RUN/teacher-math.jsonl" "$RUN/teacher-research.jsonl" --model $MODEL --epochs 2 --batch-rows 32 \
        --optimizer.learning-rate 1e-5 --run "$RUN/agent-sft"

    # 7. Tasks that this model solves now and then, with labels that its attempts do not dispute.
    palaestra curate code-math --model "$RUN/agent-sft/model" -k 8 $LENGTHS --env-options tasks="$RUN/math.jsonl" \
        "$SANDBOX" --tasks 4000 --out "$RUN/fit-math.json"
    palaestra curate research --model "$RUN/agent-sft/model" -k 8 $LENGTHS --tasks 16000 \
        --env-options tasks="$RUN/research.jsonl" $(tools "") --out "$RUN/fit-research.json"
    for KIND in math research; do
        palaestra pool "$RUN/$KIND.jsonl" --attempts "$RUN/fit-$KIND.played.jsonl" --curated "$RUN/fit-$KIND.json" \
            --out "$RUN/fitting-$KIND.jsonl"
    done

    # 8. RL, all of it the recipe's: 64 tasks, 8 attempts and in reagent-u 8 second ones, 5e-7, temperature .7,
    #    4 mini-batches of 16 tasks, 300 steps, lambda .3; in reagent-u responses of 11,000 tokens after prompts of 16,384
    #    and a clip of
    #    .2/.34, in reagent-r responses of 10,000 after 2,560 and .2/.28.
    palaestra train code-math=1 research=4 --model "$RUN/agent-sft/model" --recipe "$RECIPE" \
        --env-options code-math.tasks="$RUN/fitting-math.jsonl" "code-math.$SANDBOX" \
        research.tasks="$RUN/fitting-research.jsonl" $(tools research.) \
        --recipe.judge.url $JUDGE_URL --eval-tasks 128 --eval.eval-steps 20 \
        --engine.kind vllm --engine.urls $ENGINE_URL --run "$RUN/$RECIPE"

    # 9. pass@1 beside imitation alone, without a judge; of GAIA pass@3 too, and Reagent-C: the base model, untrained,
    #    reads a critique of each attempt and tries again.
    for SET in "gaia 165 3" "webwalkerqa 680 1" "hle 500 1" "xbench 100 1"; do
        set -- $SET
        palaestra eval research --model "$RUN/$RECIPE/model" --against "$RUN/agent-sft/model" $MEASURED \
            --env-options tasks="$DATA/$1.jsonl" $(tools "") --tasks "$2" --samples "$3" --json "$RUN/$RECIPE-$1.json"
        palaestra eval research --model $MODEL --critic $JUDGE_URL $MEASURED \
            --env-options tasks="$DATA/$1.jsonl" $(tools "") --tasks "$2" --json "$RUN/reagent-c-$1.json"
    done
    for SET in hotpotqa 2wiki musique bamboogle; do
        palaestra eval search-qa --model "$RUN/$RECIPE/model" --against "$RUN/agent-sft/model" $MEASURED --tasks 500 \
            --env-options tasks="$DATA/$SET.jsonl" "search={\"backend\":\"retrieve\",\"url\":\"$SEARCH_URL\"}" \
            --json "$RUN/$RECIPE-$SET.json"
    done
    for SET in aime24 aime25 math500 gsm8k; do
        palaestra eval code-math --model "$RUN/$RECIPE/model" --against "$RUN/agent-sft/model" $MEASURED --tasks 1319 \
            --env-options tasks="$DATA/$SET.jsonl" "$SANDBOX" --json "$RUN/$RECIPE-$SET.json"
    done
    ;;
*) echo "$PART is no part: data, judge, serve or agent" >&2; exit 2 ;;
esac
