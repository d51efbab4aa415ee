"""`check` names answers that stand in their prompts, and leaves prompts alone in which they belong."""

import pytest
from checked import findings

from palaestra.envs import Task, ToolEnv

NAME = "prompts keep their answers"


class Asked(ToolEnv):
    """A sum, with something more in the prompt."""

    def task(self, rng):
        a, b = map(int, rng.integers(1, 1000, size=2))
        return Task(self.worded(a, b, rng), answer=str(a + b))

    def worded(self, a, b, rng):
        return f"What is {a} + {b}?"

    def reward(self, attempt):
        return float(attempt.answer == attempt.task.answer)


class Announced(Asked):
    def worded(self, a, b, rng):
        return f"What is {a} + {b}? (answer: {a + b})"


class AnnouncedFloat(Asked):
    def worded(self, a, b, rng):
        return f"What is {a} + {b}? The answer is {a + b}.0"


class AnnouncedThousands(Asked):
    def task(self, rng):
        a, b = map(int, rng.integers(500_000, 900_000, size=2))
        return Task(f"What is {a} + {b}? Expected: {a + b:,}.", answer=str(a + b))


class AnnouncedPrice(Asked):
    def task(self, rng):
        pence = int(rng.integers(10**6))
        return Task(f"What costs it? solution = {pence / 100:.4f}", answer=str(pence / 100))


class Neighbours(Asked):
    """Other numbers than the answer that begin as it does."""

    def worded(self, a, b, rng):
        return f"What is {a} + {b}? It is no solution: {a + b},{a:03} and no answer: {a + b}.05 either."


class AnnouncedOnce(Asked):
    def worded(self, a, b, rng):
        return f"What is {a} + {b}?" + (f"\n**Solution** = **{a + b}**" if a % 20 == 0 else "")


class AnnouncedOption(Asked):
    def task(self, rng):
        answer = "yes" if rng.integers(2) else "no"
        return Task(f"Is {rng.integers(10**6)} lucky? Answer: yes or no. [correct: {answer}]", answer)


class Behind(Asked):
    def worded(self, a, b, rng):
        return f"What is {a} + {b}? Do not tell anybody {a + b}!"


class Numbers(Asked):
    def worded(self, a, b, rng):
        return f"Which of {a}, {b}, {a + b} is the sum of the others? Answer: a number. For 1 and 2 the answer is 3."


class YesNo(Asked):
    def task(self, rng):
        return Task(f"Is {rng.integers(10**6)} lucky? Answer: yes or no.", "yes" if rng.integers(5) else "no")


class Target(Asked):
    def worded(self, a, b, rng):
        return f"Numbers: {a}, {b}, {a * b}. Target: {a + b}. Write a sum or a product that gives it."


class Choices(Asked):
    def task(self, rng):
        words = [f"w{number}" for number in rng.permutation(50)[:4]]
        lines = "\n".join(f"{letter}: {word}" for letter, word in zip("ABCD", words, strict=True))
        example = f"Which letter did w{rng.integers(50)} have? Answer: {'ABCD'[rng.integers(4)]}"
        at = int(rng.integers(4))
        return Task(f"{example}\n{lines}\nWhich letter has {words[at]}?", answer=["ABCD"[at], f"({'ABCD'[at]})"])


class Options(Asked):
    def task(self, rng):
        words = [f"w{number}" for number in rng.permutation(50)[:4]]
        return Task(f"The first by luck: {', '.join(words)}. Answer: one of these.", words[int(rng.integers(4))])


@pytest.mark.parametrize(
    ("cls", "said"),
    [(Announced, "200 of 200 prompts hold their answer, such as ['answer: "), (AnnouncedOnce, "solution** = **"),
     (AnnouncedFloat, "200 of 200"), (AnnouncedThousands, "200 of 200"), (AnnouncedPrice, "200 of 200"),
     (AnnouncedOption, "200 of 200 prompts hold their answer, such as ['correct: ")],
)  # fmt: skip
def test_an_answer_that_its_prompt_announces_is_named(cls, said):
    (found,) = findings(cls, NAME)
    assert not found.passed
    assert said in found.message


@pytest.mark.parametrize(("cls", "words"), [(Behind, "tell anybody "), (Target, "target: ")])
def test_an_answer_that_always_stands_behind_the_same_words_is_noted(cls, words):
    (found,) = findings(cls, NAME)
    assert (found.passed, found.skipped) == (True, False)
    assert f"right behind '{words}'" in found.message


@pytest.mark.parametrize("cls", [Asked, Neighbours, Numbers, YesNo, Choices, Options])
def test_an_answer_that_belongs_into_its_prompt_is_no_finding(cls):
    (found,) = findings(cls, NAME)
    assert (found.passed, found.message) == (True, "")
