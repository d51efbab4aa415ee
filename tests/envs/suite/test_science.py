"""Science: every question has one right option, which its numbers lead to; files are read, or refused with a reason."""

import csv
import json
import math
from collections import Counter

import numpy as np
import pytest
import worlds

from palaestra.envs import TextEnv
from palaestra.envs.data.science_files import GPQA
from palaestra.envs.suite.demonstrations import filled, pattern_of
from palaestra.envs.suite.science import PROMPTS, Science, lettered
from palaestra.envs.suite.science_families import FAMILIES, LEAST_APART, OPTIONS
from palaestra.episode import Attempt, Task
from palaestra.errors import TaskFileError, UsageError


def judged(env, task, text):
    return worlds.judged(env, Attempt(task, (), text, (), 1))[0]


def tasks_of(*given, **options):
    return TextEnv(Science(*given, **options)).tasks


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.question[:40])
def test_a_familys_questions_lead_to_their_right_option_whose_size_says_nothing(family):
    rng = np.random.default_rng(0)
    seen, ranks = set(), Counter()
    for at in range(120):
        question, options = family.draw(rng)
        values = [float(option.split()[0]) for option in options]
        ranks[sorted(values).index(values[0])] += 1
        if at >= 60:
            continue
        seen.add(question)
        patterns = [(family, pattern_of(family.question, r"[\d.]+").fullmatch(question)) for family in FAMILIES]
        ((family, fields),) = [(family, match.groupdict()) for family, match in patterns if match]
        assert values[0] == pytest.approx(eval(filled(family.right, fields), vars(math).copy()), rel=0.01)
        assert len(set(options)) == OPTIONS
        assert all(abs(value - values[0]) > LEAST_APART / 2 * values[0] for value in values[1:])
    assert len(seen) > 30
    assert max(ranks.values()) < 55  # About 30 each; as many as 55 once in a million.


def test_every_letter_is_right_equally_often():
    letters = Counter(tasks_of()[index].answer for index in range(400))
    assert set(letters) == set("ABCD")
    assert min(letters.values()) > 70


def test_a_question_has_the_same_options_always_and_stands_in_one_split():
    questions = []
    for split in ("train", "eval"):
        asked: dict[str, str] = {}
        for task in tasks_of(split)[:200]:
            question, _, options = task.prompt.partition("\n\n")
            assert asked.setdefault(question, options) == options
        questions.append(set(asked))
    assert not questions[0] & questions[1]


def test_one_letter_in_a_box_is_the_answer():
    env = Science()
    task = lettered("Which?", ("right", "wrong", "false", "off"))
    others = [letter for letter in "ABCD" if letter != task.answer]
    for text in (rf"So \boxed{{{task.answer}}}.", rf"\boxed{{\text{{({task.answer})}}}}", f"Answer: {task.answer}"):
        assert judged(env, task, text) == 1.0
    for text in (rf"\boxed{{{others[0]}}}", r"\boxed{A} \boxed{B} \boxed{C} \boxed{D}", "ABCD", "", None, task.prompt):
        assert judged(env, task, text) == 0.0


def test_without_the_tool_the_agent_is_told_of_none():
    for prompt, tools in (("agentic", ["code_interpreter"]), ("self-contained", [])):
        env = TextEnv(Science(prompt=prompt))
        env.reset(seed=0)
        assert [schema["function"]["name"] for schema in env.schemas] == tools
        assert env.author.system == PROMPTS[prompt]
        env.close()
    with pytest.raises(UsageError, match="self-contained"):
        Science(prompt="both")


def rows_of(count):
    return [{**{column: f"{column} {at}" for column in GPQA}, "Record ID": f"rec{at}"} for at in range(count)]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_f27_gpqa_is_a_test_set_with_options_in_a_lasting_order(tmp_path, suffix):
    path = tmp_path / f"gpqa.{suffix}"
    rows = rows_of(30)
    rows[3]["Question"] = 'Two lines\nand "quotes", commas'
    with open(path, "w", newline="") as file:
        if suffix == "csv":
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        else:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    first, second = (tasks_of("eval", questions=str(path)) for _ in range(2))
    assert first == second
    assert [task.id for task in first] == [f"rec{at}" for at in range(30)]
    assert len({task.answer for task in first}) == 4
    for task, row in zip(first, rows, strict=True):
        assert f"{task.answer}) {row['Correct Answer']}" in task.prompt.splitlines()
        assert task.prompt.startswith(row["Question"])
    with pytest.raises(UsageError, match="test set"):
        _ = tasks_of("train", questions=str(path))


def test_megascience_asks_for_short_answers_and_shares_none_between_splits(tmp_path):
    path = tmp_path / "mega.jsonl"
    rows = [{"question": f"What is {n} J in kJ?", "reference_answer": f"{n / 1000} kJ", "subject": "physics"}
            for n in range(1, 60)]  # fmt: skip
    rows.append({"question": "Which gas do leaves take in?", "reference_answer": "Carbon dioxide"})
    path.write_text("\n".join(map(json.dumps, rows)))
    sets = [tasks_of(split, questions=str(path)) for split in ("train", "eval")]
    assert sum(map(len, sets)) == 60
    assert not {task.prompt for task in sets[0]} & {task.prompt for task in sets[1]}
    env = Science(questions=str(path))
    gas = next(task for tasks in sets for task in tasks if "leaves" in task.prompt)
    assert judged(env, gas, r"It is \boxed{the carbon dioxide}") == 1.0
    for text in (r"\boxed{oxygen}", "carbon dioxide", "", None):
        assert judged(env, gas, text) == 0.0
    half = type(gas)(prompt="?", answer="1/2", id="x", data={"kind": "short"})
    assert judged(env, half, r"\boxed{0.5}") == 1.0


LISTED = "Which?\nA. foo\nB. bar\nC. baz"


@pytest.mark.parametrize("reference", ["B", "(B)", "B.", "B. bar"])
def test_a_letter_of_options_that_the_question_lists_is_a_choice(saved, reference):
    env = Science(questions=saved({"question": LISTED, "reference_answer": reference}))
    (task,) = TextEnv(env).tasks
    for text in (r"\boxed{B) bar}", r"\boxed{B}", "Answer: B", r"\boxed{\text{(B)}}"):
        assert judged(env, task, text) == 1.0, text
    for text in (r"\boxed{A. foo}", r"\boxed{A} \boxed{B}", r"\boxed{D}", "A, B", None):
        assert judged(env, task, text) == 0.0, text


def test_letters_are_those_of_the_listed_options_and_words_stay_words(saved):
    listed = "\n".join(f"({letter}) {letter.lower()}oo" for letter in "ABCDEF")
    env = Science(questions=saved({"question": f"Which?\n{listed}", "reference_answer": "F"}))
    assert judged(env, TextEnv(env).tasks[0], r"\boxed{F}") == 1.0
    with pytest.raises(TaskFileError, match="'E', but options A to C"):
        _ = TextEnv(Science(questions=saved({"question": LISTED, "reference_answer": "E"}))).tasks
    env = Science(questions=saved({"question": LISTED, "reference_answer": "bar"}))
    for text, reward in ((r"\boxed{bar}", 1.0), (r"\boxed{B}", 0.0)):
        assert judged(env, TextEnv(env).tasks[0], text) == reward


SHORT = [
    ("5", ("5", "5.0", "x=5"), ("-5", "0.5")),
    ("15", ("15",), ("1.5", "1 5/1")),
    ("23", ("23",), ("2/3", "2.3")),
    ("105", ("105",), ("10^5", "10.5")),
    ("40 C", ("40 C", "40C"), ("-40 C", "4.0 C")),
    ("a < b", ("a<b",), ("a > b",)),
    ("-", ("-",), ("+", "")),
    ("x", ("x",), ("-x", "x+")),
    ("620 nm", ("620 nm", "620", r"620~\text{nm}", r"6.2\times10^2"), ("620 m", "62", "620 x")),
    ("$3.2\\times10^{-5}$ kg", ("0.000032", "3.2e-5 kg", "3.2e-5"), ("3.2e-4 kg", "3.2")),
    ("-5 °C", (r"-5^\circ\text{C}", "-5", "-5 °C"), ("5 °C",)),
    ("9.8 m/s^2", (r"9.8~\mathrm{m/s^2}", "9.8"), ("98",)),
    ("H2O", ("H_2O", r"\text{H}_2\text{O}", r"\ce{H2O}"), ("H_2O_2", "2HO", "HO2", "H20")),
    ("Ca(OH)2", (r"\text{Ca(OH)}_2", "Ca(OH)_{2}"), ("CaOH2",)),
    ("3 xy", ("3xy",), ("3",)),
    ("X-ray", ("x-ray", r"\text{X-ray}"), ("ray",)),
]


def test_signs_and_decimal_points_count_where_mathematics_is_expected():
    env = Science()
    for expected, right, wrong in SHORT:
        task = Task("?", expected, data={"kind": "short"})
        for text in (*right, *wrong):
            assert judged(env, task, rf"\boxed{{{text}}}") == (text in right), text


@pytest.mark.parametrize(("rows", "said"), [
    ([{"Question": "Q?"}], "'Correct Answer'"), ([dict.fromkeys(GPQA, "same")], "the same"),
    ([{"prompt": "Q?"}], "'prompt'"), ([{"question": "Q?", "reference_answer": None}], "'reference_answer'"),
    ([], "no question"),
])  # fmt: skip
def test_a_wrong_file_is_refused_by_its_rows(saved, rows, said):
    with pytest.raises(TaskFileError, match=said):
        _ = tasks_of(questions=saved(*rows))


def test_f27_an_absent_file_is_said_at_once():
    with pytest.raises(UsageError, match=r"gpqa_diamond\.csv"):
        Science("eval", questions="gpqa_diamond.csv")
