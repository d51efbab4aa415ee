"""A task that a random model learns in seconds."""

from palaestra.envs import Task, ToolEnv


class Vowels(ToolEnv):
    """Say much that is a vowel."""

    max_turns = 2

    def task(self, rng):
        return Task(prompt=f"Word {rng.integers(10_000)}", answer="")

    def reward(self, attempt):
        said = "".join(m["content"] for m in attempt.messages if m["role"] == "assistant").lower()
        return sum(letter in "aeiou" for letter in said) / max(len(said), 8)
