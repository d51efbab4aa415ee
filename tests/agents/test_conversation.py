"""Rows only grow, and every token knows who wrote it."""

import families
import numpy as np
import pytest

from palaestra.agents import Conversation
from palaestra.agents.conversation import written_rows

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "question"}]
REPLY = [{"role": "tool", "name": "search", "content": "reply <|im_end|> 東京"}]
THOUGHT = "<think>\nmusing\n</think>\n\nword"


def test_f02_sampled_ids_are_kept_as_they_are():
    """Ids that no encoder would choose stay: nothing the agent said is decoded and encoded again."""
    chat = families.chat("qwen2.5")
    odd = [
        *chat.tokenizer.encode("e", add_special_tokens=False),
        *chat.tokenizer.convert_tokens_to_ids(["Ã", "Ġ", "Ä"]),
    ]
    sampled = [*odd, chat.end_of_turn]
    assert chat.tokenizer.encode(chat.decode(sampled), add_special_tokens=False) != odd
    talk = Conversation(chat, ASKED, families.TOOLS)
    prompt = len(talk.ids)
    talk.add_sampled(sampled, [-0.5] * len(sampled), [3] * len(sampled))
    talk.hear(REPLY, families.TOOLS, room=10_000)
    (row,) = talk.rows()
    assert row.ids[prompt : prompt + len(sampled)].tolist() == sampled
    assert row.ids[row.sampled].tolist() == sampled
    np.testing.assert_array_equal(row.logprobs, np.where(row.sampled, np.float32(-0.5), 0))
    np.testing.assert_array_equal(row.versions, np.where(row.sampled, 3, -1))


@pytest.mark.parametrize("family", sorted(families.TOKENIZERS))
def test_f01_prompts_and_replies_are_never_marked_as_sampled(family):
    chat = families.chat(family)
    talk = Conversation(chat, ASKED, families.TOOLS)
    count = 0
    for text in ("word", "Answer: Kemu"):
        before = len(talk.ids)
        talk.add_text(text)
        count += len(talk.ids) - before
        talk.hear(REPLY, families.TOOLS, room=10_000)
    (row,) = talk.rows()
    assert int(row.sampled.sum()) == count
    spoken = chat.tokenizer.decode(row.ids[row.sampled].tolist())
    assert "reply" not in spoken
    assert "question" not in spoken
    assert spoken.count("Kemu") == 1


def test_a_template_that_drops_thinking_gets_a_new_row_with_the_rewritten_history():
    chat = families.chat("qwen3")
    talk = Conversation(chat, ASKED, families.TOOLS)
    talk.add_text(THOUGHT)
    first = talk.row
    talk.hear([{"role": "user", "content": "reply"}], families.TOOLS, room=10_000)
    assert talk.row != first
    assert list(talk.ids) == chat.opening(talk.messages, families.TOOLS)
    assert "musing" not in chat.tokenizer.decode(list(talk.ids))
    talk.add_text("Answer: Kemu")
    old, new = talk.rows()
    assert old.sampled.any()
    assert "musing" in chat.tokenizer.decode(old.ids[old.sampled].tolist())
    assert chat.tokenizer.decode(new.ids[new.sampled].tolist()) == "Answer: Kemu<|im_end|>"


def test_tools_that_change_open_a_new_row():
    talk = Conversation(families.chat("qwen2.5"), ASKED, families.TOOLS)
    talk.add_text("word")
    talk.hear(REPLY, (), room=10_000)
    assert len(talk.rows()) == 2
    assert "search" not in families.chat("qwen2.5").tokenizer.decode(list(talk.ids))


@pytest.mark.parametrize("rewriting", [False, True])
def test_what_does_not_fit_is_not_appended(rewriting):
    """So that a row always ends on a token the agent chose."""
    chat = families.chat("qwen3")
    talk = Conversation(chat, ASKED, families.TOOLS)
    talk.add_text(THOUGHT)
    heard = [{"role": "user" if rewriting else "tool", "name": "search", "content": "reply"}]
    fits = Conversation(chat, ASKED, families.TOOLS)
    fits.add_text(THOUGHT)
    fits.hear(heard, families.TOOLS, room=10_000)
    needed = len(fits.ids)
    before, messages = list(talk.ids), list(talk.messages)
    assert not talk.hear(heard, families.TOOLS, room=needed)
    assert list(talk.ids) == before
    assert talk.messages == messages
    assert talk.rows()[-1].sampled[-1]
    assert talk.hear(heard, families.TOOLS, room=needed + 1)


def test_without_a_chat_there_are_messages_and_no_rows():
    talk = Conversation(None, ASKED)
    talk.add_text("word")
    assert talk.hear(REPLY, families.TOOLS, room=1)
    assert talk.rows() == ()
    assert [message["role"] for message in talk.messages] == ["system", "user", "assistant", "tool"]


def test_a_row_number_is_never_used_twice():
    numbers = [Conversation(None, ASKED).row for _ in range(50)]
    assert len(set(numbers)) == 50


@pytest.mark.parametrize("family", sorted(families.TOKENIZERS))
def test_a_dialogue_of_somebody_else_becomes_the_rows_its_author_would_have(family):
    """Consecutive tool messages too."""
    chat = families.chat(family)
    double = [*REPLY, {"role": "tool", "name": "search", "content": "no result"}]
    talk = Conversation(chat, ASKED, families.TOOLS)
    talk.add_text("word")
    talk.hear(double, families.TOOLS, room=10_000)
    talk.add_text("Answer: Kemu")
    rows = written_rows(chat, talk.messages, families.TOOLS)
    for row, expected in zip(rows, talk.rows(), strict=True):
        np.testing.assert_array_equal(row.ids, expected.ids)
        np.testing.assert_array_equal(row.sampled, expected.sampled)
