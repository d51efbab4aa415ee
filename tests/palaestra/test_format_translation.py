"""A turn in another format: the same calls, the same words, and nothing changed that was no call."""

import itertools

import pytest
from format_helpers import schema

from palaestra import formats
from palaestra.errors import ConfigError, UsageError
from palaestra.formats import ParsedCall

TOOLS = (schema("search", ["query"], query={"type": "string"}, count={"type": "integer"}),)
CALLS = (
    ParsedCall("search", {"query": "Bado born", "count": 2}),
    ParsedCall("search", {"query": 'a "b"\nc', "count": 0}),
)
WRITTEN = [name for name in formats.FORMATS if name not in ("auto", "tags", "fence", "openai")]
PAIRS = list(itertools.permutations(WRITTEN, 2))


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("thought", ["", "<think>\nI <b>wonder</b>.\n</think>\n\n"])
def test_the_calls_and_the_words_are_the_same_in_every_format(source, target, thought):
    turn = thought + formats.get(source).render(CALLS, "Let me look.")
    new = formats.translate(turn, target, TOOLS, source)
    parsed = formats.get(target).parse(new, TOOLS)
    assert parsed.calls == CALLS
    assert not any(call.lenient for call in parsed.calls)
    assert parsed.content == formats.get(source).parse(turn, TOOLS).content
    assert thought.strip() in new
    assert formats.translate(new, target, TOOLS, source) == new


@pytest.mark.parametrize("target", WRITTEN)
@pytest.mark.parametrize("turn", ["Answer: 4", "", "<think>no", "<tool_call>{", '<tool_call>{"name": 1}</tool_call>'])
def test_an_answer_and_a_fault_stay_what_they_are(turn, target):
    assert formats.translate(turn, target, TOOLS) == turn


def test_a_turn_that_is_read_already_stays_letter_by_letter():
    turn = 'So:\n<tool_call>\n{"name": "search","arguments":{"query":"x"}}\n</tool_call>'
    assert formats.translate(turn, "auto", TOOLS) == turn


def test_what_the_other_format_cannot_write_is_refused_and_a_thought_that_ends_inside_a_call_is_not_cut():
    turn = formats.get("hermes").render(CALLS)
    with pytest.raises(UsageError, match="fence"):
        formats.translate(turn, "fence", TOOLS)
    with pytest.raises(ConfigError, match="'hermes'"):
        formats.translate(turn, "hermez", TOOLS)
    turn = formats.get("hermes").render([ParsedCall("search", {"query": "<think>x</think> y"})])
    with pytest.raises(UsageError, match="cannot be written"):
        formats.translate(turn, "llama3", TOOLS)
