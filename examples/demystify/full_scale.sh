#!/bin/sh
# The path of arXiv 2510.11701: real episodes -> SFT -> curation -> diverse mix -> GRPO-TCR -> avg@32. See README.md.
#
#   sh full_scale.sh qwen3-4b       DemyAgent's model
#   sh full_scale.sh qwen2.5-7b     after qwen3-4b, whose histogram of difficulty is its target
#
# TEACHER_URL is an OpenAI-compatible server of the teacher, ENGINE_URL one of `palaestra serve vllm MODEL` for RL.
set -eu
NAME=${1:?qwen3-4b or qwen2.5-7b}
DATA=${DATA:-data}
RUN=${RUN:-runs/demystify}/$NAME
case $NAME in
    qwen3-4b) MODEL=Qwen/Qwen3-4B-Instruct-2507 TARGET="" ;;
    qwen2.5-7b) MODEL=Qwen/Qwen2.5-7B-Instruct TARGET=${RUN%/*}/qwen3-4b ;;
    *) echo "no model is called $NAME here: qwen3-4b or qwen2.5-7b" >&2; exit 2 ;;
esac
mkdir -p "$RUN"

# 1. Real episodes of a teacher with Python, right ones alone: s1-1k whole, the best thousand of the other two sources.
TEACHER="--model Qwen/Qwen3-Coder-30B-A3B-Instruct --base-url $TEACHER_URL --max-concurrent 64"
palaestra collect code-math $TEACHER --env-options tasks="$DATA/s1k.jsonl" sandbox=docker --tasks 1000 --out "$RUN/s1k.jsonl"
palaestra collect code-contest $TEACHER --env-options tasks="$DATA/leetcode.jsonl" sandbox=docker --tasks 3000 --top-k 1000 --out "$RUN/leetcode.jsonl"
palaestra collect code-math $TEACHER --env-options tasks="$DATA/retool.jsonl" sandbox=docker --tasks 2000 --top-k 1000 --out "$RUN/retool.jsonl"

# 2. Imitation: 5 epochs of 32 rows, 5e-5, at most 32,768 tokens: the defaults are the authors'.
palaestra sft "$RUN/s1k.jsonl" "$RUN/leetcode.jsonl" "$RUN/retool.jsonl" --model "$MODEL" --run "$RUN/sft"

# 3. Curation by that model: 8 attempts a task, what it never or always solves is dropped. 21,902 + 3,586 + 3,000 tasks.
cat "$DATA/dapo-math-17k.jsonl" "$DATA/skywork-math.jsonl" > "$RUN/math.jsonl"
curate() {
    palaestra curate "$1" --model "$RUN/sft/model" -k 8 --env-options tasks="$3" sandbox=docker --tasks "$4" \
        --out "$RUN/curated-$2.json" ${TARGET:+--target "$TARGET/curated-$2.json"}
}
curate code-math math "$RUN/math.jsonl" 21902
curate code-contest code "$DATA/skywork-code.jsonl" 3586
palaestra curate science --model "$RUN/sft/model" -k 8 --env-options tasks="$DATA/megascience.jsonl" --tasks 3000 \
    --out "$RUN/curated-science.json" ${TARGET:+--target "$TARGET/curated-science.json"}

# 4. RL on the mix, 64 tasks of 16 a step, 450 steps: the recipe's defaults. epsilon_high is .315, as DemyAgent's.
palaestra train code-math=219 code-contest=36 science=30 --model "$RUN/sft/model" --recipe demyagent --run "$RUN/rl" \
    --env-options code-math.tasks="$RUN/math.jsonl" code-contest.tasks="$DATA/skywork-code.jsonl" \
    science.tasks="$DATA/megascience.jsonl" code-math.sandbox=docker code-contest.sandbox=docker \
    --curated "$RUN/curated-math.json" "$RUN/curated-code.json" "$RUN/curated-science.json" \
    --engine.kind vllm --engine.urls "$ENGINE_URL" --eval-tasks 128 --eval.eval-steps 10

# 5. avg@32, pass@32, maj@32, and beside them what imitation alone had reached.
for YEAR in 24 25; do
    palaestra eval code-math --model "$RUN/rl/model" --against "$RUN/sft/model" --split all --tasks 30 --samples 32 \
        --env-options tasks="$DATA/aime$YEAR.jsonl" sandbox=docker --json "$RUN/aime$YEAR.json"
done
palaestra eval science --model "$RUN/rl/model" --split all --tasks 198 --samples 32 \
    --env-options tasks="$DATA/gpqa_diamond.jsonl" --json "$RUN/gpqa.json"
palaestra eval code-contest --model "$RUN/rl/model" --split all --tasks 200 --samples 32 \
    --env-options tasks="$DATA/livecodebench-v6.jsonl" sandbox=docker --json "$RUN/livecodebench.json"
