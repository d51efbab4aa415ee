"""A person at the keyboard plays like any other agent: turns are typed, shown text is harmless, leaving is graceful."""

import io
import os
import subprocess
import sys
from pathlib import Path

import families
import pytest

import palaestra
from palaestra import Ending, Request, Start
from palaestra.agents import Agent, HumanPolicy, play
from palaestra.formats import ParsedCall, hermes

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Look \x1b[2Jup.",
        "parameters": {"properties": {"query": {"type": "string"}, "limit": {"type": "integer"}, "deep": {}}},
    },
}


def person(typed, **options):
    """A policy whose person types this, and what it has been shown."""
    shown = io.StringIO()
    return HumanPolicy(read=io.StringIO(typed), write=shown, **options), shown


def request(row=0, seed=0, turn=0, messages=({"role": "user", "content": "Where?"},)):
    return Request(row, Start(0, seed), turn, messages, (SEARCH,), (), 64)


def turns(typed, count=1):
    """The texts of the turns that a person types."""
    policy, _ = person(typed)
    for turn in range(count):
        policy.submit(request(turn=turn))
    return [policy.poll()[0].text for _ in range(count)]


@pytest.mark.parametrize(
    ("typed", "turn"),
    [
        ("Bado\n\n", "Bado"),
        ("Bado", "Bado"),
        ("Bado\r\n\r\n", "Bado"),
        ("\n\n  \nBado\n\n", "Bado"),
        ("one\n  two\n\nthree\n\n", "one\n  two"),
        ("<think>hm</think>\n7\n\n", "<think>hm</think>\n7"),
    ],
)
def test_a_turn_ends_with_an_empty_line_or_the_end_of_input(typed, turn):
    assert turns(typed) == [turn]


def test_an_empty_line_inside_a_fence_ends_no_turn():
    program = "Here:\n```python\na = 1\n\nprint(a)\n```"
    assert turns(program + "\n\nnext\n", 2) == [program, "next"]


def test_piped_paragraphs_are_the_turns():
    assert turns("one\n\n\ntwo\nand more\n\nthree", 4) == ["one", "two\nand more", "three", None]


@pytest.mark.parametrize(
    ("typed", "call"),
    [
        ("/call search query=Bado", {"query": "Bado"}),
        ('/call search query="Bado born" limit=3', {"query": "Bado born", "limit": 3}),
        ("/call search query=7 deep=true", {"query": "7", "deep": True}),
        ("/call search query=a=b deep='[1, {\"x\": null}]'", {"query": "a=b", "deep": [1, {"x": None}]}),
        ("/call search limit=three", {"limit": "three"}),
        ("/call search", {}),
    ],
)
def test_a_call_is_written_for_the_person(typed, call):
    (turn,) = turns(typed)
    assert hermes.parse(turn).calls == (ParsedCall("search", call),)


def test_several_calls_and_words_make_one_turn():
    (turn,) = turns("Let me see.\n/call search query=a\n/call search query=b\n\n")
    parsed = hermes.parse(turn)
    assert parsed.content == "Let me see."
    assert [call.arguments["query"] for call in parsed.calls] == ["a", "b"]


@pytest.mark.parametrize("typed", ["/call", "/call search Bado", '/call search query="Bado', "/call search =x"])
def test_a_call_that_is_typed_wrongly_is_asked_for_again(typed):
    policy, shown = person(f"{typed}\n\n/call search query=Bado\n\n")
    policy.submit(request())
    assert hermes.parse(policy.poll()[0].text).calls == (ParsedCall("search", {"query": "Bado"}),)
    assert "/call" in shown.getvalue().rpartition("leaves.")[2]


def test_what_is_new_is_shown_once_and_cannot_move_the_cursor():
    policy, shown = person("one\n\ntwo\n\n")
    messages = [
        {"role": "system", "content": "Be\x07 brief."},
        {"role": "user", "content": "Where\x1b[2J is\u202e it?"},
    ]
    policy.submit(request(messages=messages))
    policy.poll()
    first = shown.getvalue()
    assert "Be\\x07 brief." in first
    assert "Where\\x1b[2J is\\u202e it?" in first
    assert "search(query: string, limit: integer, deep: any) - Look \\x1b[2Jup." in first
    more = [{"role": "assistant", "content": "one"}, {"role": "tool", "name": "se\x1barch", "content": "a\rb"}]
    policy.submit(request(turn=1, messages=messages + more))
    policy.poll()
    assert "tool (se\\x1barch): a\\rb" in shown.getvalue()[len(first) :]
    assert "brief" not in shown.getvalue()[len(first) :]
    assert "assistant" not in shown.getvalue()
    assert all(letter == "\n" or letter.isprintable() for letter in shown.getvalue())


def test_requests_are_asked_one_after_the_other_an_episode_at_a_time():
    policy, shown = person("a\n\nb\n\nc\n\n")
    first = policy.submit(request(row=1, seed=1))
    policy.submit(request(row=2, seed=2))
    dropped = policy.submit(request(row=3, seed=3))
    policy.cancel(dropped)
    policy.cancel(99)
    assert [completion.ticket for completion in policy.poll(0.0)] == [first]
    assert shown.getvalue().count("--- task") == 1
    policy.poll()
    policy.poll()
    assert policy.poll() == []
    assert shown.getvalue().count("--- task") == 2


def test_a_person_plays_an_environment():
    arena = palaestra.arena("palaestra/Calculator-v0", 1)
    question = arena_question(arena)
    policy, shown = person(f'/call calculator expression="{question}"\n\n{eval(question)}\n\n')
    (episode,) = play(Agent(policy), arena, [Start(0, 0)])
    arena.close()
    assert episode.reward == 1.0
    assert f"tool (calculator): {eval(question)}" in shown.getvalue()


def arena_question(arena):
    arena.begin(0, Start(0, 0))
    (event,) = arena.recv()
    return event.messages[-1]["content"].removeprefix("What is ").removesuffix("?")


def test_leaving_ends_every_episode_without_blame():
    arena = palaestra.arena("palaestra/Calculator-v0", 2)
    policy, _ = person("42\n")
    episodes = list(play(Agent(policy), arena, families.starts(5)))
    arena.close()
    endings = sorted(str(episode.ending) for episode in episodes)
    assert endings == [Ending.ANSWERED, *[Ending.BROKEN] * 4]
    assert {episode.fault for episode in episodes if episode.reward is None} == {
        "standard input has ended, so nobody is at the keyboard"
    }


def test_who_has_left_a_terminal_is_not_asked_again():
    """A terminal can be read again after Ctrl-D, a file cannot."""

    class Terminal(io.StringIO):
        lines = iter(["", "too late\n", "\n"])

        def readline(self):
            return next(self.lines)

    policy = HumanPolicy(read=Terminal(), write=io.StringIO())
    policy.submit(request())
    policy.submit(request())
    assert [policy.poll()[0].text for _ in range(2)] == [None, None]


def test_a_byte_that_is_no_text_costs_nothing_else():
    read = io.TextIOWrapper(io.BytesIO(b"caf\xe9 \xff\n\nBado\n\n"), encoding="utf-8")
    policy = HumanPolicy(read=read, write=io.StringIO())
    policy.submit(request())
    policy.submit(request())
    assert [policy.poll()[0].text for _ in range(2)] == ["caf\ufffd \ufffd", "Bado"]


def test_lone_surrogates_do_not_get_through():
    assert turns("a\udcffb\n\n") == ["a?b"]


def test_closing_forgets():
    policy, _ = person("x\n\n")
    policy.submit(request())
    policy.close()
    assert policy.poll() == []


def test_piped_standard_input_works():
    program = (
        "import palaestra\nfrom palaestra.agents import *\n"
        "arena = palaestra.arena('palaestra/Calculator-v0', 1)\n"
        "for e in play(Agent(HumanPolicy()), arena, [palaestra.Start(0, 0), palaestra.Start(1, 1)]):\n"
        "    print(e.ending, e.attempt.answer)\narena.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        input="12\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=Path(__file__).parents[2],
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["answered 12", "broken None"]
    assert "What is" in done.stderr
