#!/bin/sh
# The path of arXiv 2510.11701: real episodes -> SFT -> curation -> diverse mix -> GRPO-TCR -> avg@32. See README.md.
#
#   sh full_scale.sh qwen3-4b       DemyAgent's model
#   sh full_scale.sh qwen2.5-7b     after qwen3-4b, whose histogram of difficulty is its target
#
# TEACHER_URL is an OpenAI-compatible server of the teacher, ENGINE_URL one of `palaestra serve vllm MODEL` for RL.
# Needs: 8 cards of 80 GB (the paper's: 8 A100).
set -eu
# sh full_scale.sh --dry WORDS looks whether all that is needed is there, and starts nothing.
case ${1:-} in --dry) shift && exec "${PYTHON:-python3}" "$(dirname "$0")/../../scripts/dry_run.py" "$0" "$@" ;; esac
NAME=${1:?qwen3-4b or qwen2.5-7b}
DATA=${DATA:-data}
RUN=${RUN:-runs/demystify}/$NAME
case $NAME in
    qwen3-4b) MODEL=Qwen/Qwen3-4B-Instruct-2507 TARGET="" RECIPE=demyagent ;; # epsilon_high .315
    qwen2.5-7b) MODEL=Qwen/Qwen2.5-7B-Instruct TARGET=${RUN%/*}/qwen3-4b RECIPE=grpo-tcr ;; # .28
    *) echo "no model is called $NAME here: qwen3-4b or qwen2.5-7b" >&2; exit 2 ;;
esac
mkdir -p "$RUN"
SANDBOX='sandbox={"backend":"docker","limits":{"seconds":30,"memory_bytes":2147483648}}' # The paper's: 30 s, 2,048 MB.
LENGTHS="--max-turn-tokens 20480 --max-episode-tokens 23040" # A turn may be as long as a response.

# 1. Right episodes of a teacher with Python: all of s1-1k, and the best thousand of each of the other two sources.
TEACHER="--model Qwen/Qwen3-Coder-30B-A3B-Instruct --base-url $TEACHER_URL --max-concurrent 64 --split all
    --max-turn-tokens 32768 --max-episode-tokens 32768"
palaestra collect code-math $TEACHER --env-options tasks="$DATA/s1k.jsonl" "$SANDBOX" --tasks 1000 --out "$RUN/s1k.jsonl"
palaestra collect code-contest $TEACHER --env-options tasks="$DATA/leetcode.jsonl" "$SANDBOX" --tasks 3000 --top-k 1000 --out "$RUN/leetcode.jsonl"
palaestra collect code-math $TEACHER --env-options tasks="$DATA/retool.jsonl" "$SANDBOX" --tasks 2000 --top-k 1000 --out "$RUN/retool.jsonl"

# 2. Imitation: 5 epochs of 32 rows, 5e-5, at most 32,768 tokens: the defaults are the authors'.
palaestra sft "$RUN/s1k.jsonl" "$RUN/leetcode.jsonl" "$RUN/retool.jsonl" --model "$MODEL" --run "$RUN/sft"

# 3. Curation by that model: 8 attempts a task, what it never or always solves is dropped. Of the 21,902 + 3,586 + 3,000
#    tasks a fifth is held out for measuring, so about 22,800 are played; --tasks is only a bound.
cat "$DATA/dapo-math-17k.jsonl" "$DATA/skywork-math.jsonl" > "$RUN/math.jsonl"
curate() {
    palaestra curate "$1" --model "$RUN/sft/model" -k 8 $LENGTHS --env-options tasks="$3" "$SANDBOX" --tasks "$4" \
        --out "$RUN/curated-$2.json" ${TARGET:+--target "$TARGET/curated-$2.json"}
}
curate code-math math "$RUN/math.jsonl" 21902
curate code-contest code "$DATA/skywork-code.jsonl" 3586
curate science science "$DATA/megascience.jsonl" 3000

# 4. RL on the mix: 450 steps of 64 tasks, 16 episodes each, rate 1e-6, the recipe's. The paper's 28,800 groups are one
#    pass over its 28,488 tasks; here they are 1.3 passes over what is not held out, and more over what curation keeps.
palaestra train code-math=219 code-contest=36 science=30 --model "$RUN/sft/model" --recipe $RECIPE --run "$RUN/rl" \
    --env-options code-math.tasks="$RUN/math.jsonl" code-contest.tasks="$DATA/skywork-code.jsonl" \
    science.tasks="$DATA/megascience.jsonl" "code-math.$SANDBOX" "code-contest.$SANDBOX" "science.$SANDBOX" \
    --curated "$RUN/curated-math.json" "$RUN/curated-code.json" "$RUN/curated-science.json" \
    --engine.kind vllm --engine.urls "$ENGINE_URL" --eval-tasks 128 --eval.eval-steps 10

# 5. avg@32, pass@32, maj@32; of AIME beside what imitation alone had reached. Lengths are the run's.
for YEAR in 24 25; do
    palaestra eval code-math --model "$RUN/rl/model" --against "$RUN/sft/model" --split all --tasks 30 --samples 32 \
        --env-options tasks="$DATA/aime$YEAR.jsonl" "$SANDBOX" --json "$RUN/aime$YEAR.json"
done
palaestra eval science --model "$RUN/rl/model" --split all --tasks 198 --samples 32 \
    --env-options tasks="$DATA/gpqa_diamond.jsonl" "$SANDBOX" --json "$RUN/gpqa.json"
palaestra eval code-contest --model "$RUN/rl/model" --split all --tasks 200 --samples 32 \
    --env-options tasks="$DATA/livecodebench-v6.jsonl" "$SANDBOX" --json "$RUN/livecodebench.json"
