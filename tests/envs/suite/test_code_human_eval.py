"""HumanEval: its split is for evaluation; tests/prove/test_human_eval.py judges all of its problems."""

import gymnasium
import pytest

from palaestra.envs.suite import human_eval, program_problems

ID = "palaestra/HumanEval-v0"
pytestmark = pytest.mark.usefixtures("bare")


def answered(env, index, program):
    env.reset(seed=0, options={"task": index})
    return env.step(f"```python\n{program}\n```")[4]["parts"]


def test_the_benchmark_is_the_eval_split_and_the_default_and_training_is_on_other_problems():
    env = gymnasium.make(ID).unwrapped
    assert (env.author.split, len(env.tasks)) == ("eval", 164)
    train = gymnasium.make(ID, split="train").unwrapped
    prompts = {task.prompt for task in env.tasks}
    assert not prompts & {train.tasks[at].prompt for at in range(200)}
    assert all("canonical" not in str(task.data.keys()) for task in env.tasks)


def test_a_function_is_judged_by_assertions_in_both_splits():
    env = gymnasium.make(ID).unwrapped
    assert answered(env, 2, "def truncate_number(x):\n    return x % 1.0") == {"success": 1.0, "compiles": 1.0}
    assert answered(env, 2, "def truncate_number(x):\n    return x") == {"success": 0.0, "compiles": 1.0}
    assert answered(env, 2, "def truncate_number(x) return") == {"success": 0.0, "compiles": 0.0}
    env = gymnasium.make(ID, split="train").unwrapped
    solution, _ = program_problems.solution_for(env.tasks[0].prompt, as_program=False)
    assert answered(env, 0, solution)["success"] == 1.0
    assert answered(env, 0, "pass")["success"] == 0.0


def test_self_contained_play_has_no_tools():
    env = gymnasium.make(ID, mode="self-contained").unwrapped
    assert env.reset(seed=0)[1]["tools"] == "[]"
    assert human_eval.HumanEval(mode="agentic").system != env.author.system
