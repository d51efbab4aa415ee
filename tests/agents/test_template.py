"""The verdict over a chat template: it says what play will do, and names what breaks."""

import families
import pytest
from tokenizers import normalizers

from palaestra import formats
from palaestra.agents import Chat, Conversation
from palaestra.agents.policies.tiny import tiny_tokenizer
from palaestra.agents.template import PROBE_TOOL, examine, spoken_formats

FAMILIES = sorted(families.TOKENIZERS)
TURNS = {
    "tool turns without thinking": ("tool", False),
    "tool turns after thinking": ("tool", True),
    "user turns without thinking": ("user", False),
    "user turns after thinking": ("user", True),
}
PLAIN_TURN = "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}"
WRITERS = {
    "hermes": '\'<tool_call>\\n{"name": "\''
    " + c.name + '\", \"arguments\": ' + (c.arguments | tojson) + '}\\n</tool_call>'",
    "qwen3_coder": "'<tool_call>\\n<function=' + c.name + '>\\n<parameter=probe_argument>\\n'"
    " + c.arguments.probe_argument + '\\n</parameter>\\n</function>\\n</tool_call>'",
    "llama3": "'{\"name\": \"' + c.name + '\", \"parameters\": ' + (c.arguments | tojson) + '}'",
    "mistral": "'[TOOL_CALLS][{\"name\": \"' + c.name + '\", \"arguments\": ' + (c.arguments | tojson) + '}]'",
    "glm": "'<tool_call>' + c.name + '\\n<arg_key>probe_argument</arg_key>\\n<arg_value>'"
    " + c.arguments.probe_argument + '</arg_value>\\n</tool_call>'",
}
"""How templates of these families write the call `c`, in our words."""


def remarks(tokenizer, **more):
    return {remark.about: remark for remark in examine(tokenizer, **more)}


def written_in(dialect):
    """A tokenizer whose template writes calls in that dialect."""
    calls = (
        "{%- if message.tool_calls -%}{%- for call in message.tool_calls -%}{%- set c = call.function -%}"
        f"{{{{- '<|im_start|>assistant\\n' + {WRITERS[dialect]} + '<|im_end|>\\n' -}}}}"
        "{%- endfor -%}{%- else -%}" + PLAIN_TURN + "{%- endif -%}"
    )
    assert PLAIN_TURN in families.QWEN25
    return with_template(families.QWEN25.replace(PLAIN_TURN, calls))


def with_template(template):
    return families._tokenizer(template, families._CHATML_TOKENS, families._CHATML_WORDS, "<|im_end|>")


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_said_to_be_appended_is_one_row_in_play_and_what_is_not_is_two(family):
    found = remarks(families.TOKENIZERS[family])
    for about, (kind, thinking) in TURNS.items():
        chat = families.chat(family)
        talk = Conversation(chat, [{"role": "user", "content": "question"}], (PROBE_TOOL,))
        thought = "<think>\nmusing\n</think>\n\n" if thinking or chat.opened_thinking else ""
        talk.add_text(thought + "word")
        assert talk.hear([{"role": kind, "name": "probe_tool", "content": "reply"}], (PROBE_TOOL,), room=10_000)
        assert (found[about].state == "ok") is (len(talk.rows()) == 1), about
        assert found[about].state in ("ok", "warning")


def test_a_template_that_rewrites_only_where_there_are_tools_is_found_out():
    changes = (
        "{% if tools and not loop.last and m.role == 'assistant' %}<|assistant|>old {{ m.content }}<|end|>{% else %}"
    )
    tokenizer = compact()
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{% for m in messages %}", "{% for m in messages %}" + changes
    )
    tokenizer.chat_template = tokenizer.chat_template.replace("{% endfor %}", "{% endif %}{% endfor %}")
    assert remarks(tokenizer)["user turns without thinking"].state == "warning"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sound_template_has_nothing_broken(family):
    found = remarks(families.TOKENIZERS[family], words=len(families.TOKENIZERS[family]))
    assert [remark for remark in found.values() if remark.state == "broken"] == []
    for about in ("seams", "system text", "tool results", "end of turn", "control tokens", "odd characters"):
        assert found[about].state == "ok", about


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("qwen2.5", "the agent may open it; earlier thinking is kept"),
        ("qwen3", "the agent may open it; earlier thinking is dropped at the next user message"),
        ("qwen3-thinking", "the template opens it itself; earlier thinking is dropped at the next user message"),
        ("qwen3-training", "the agent may open it; earlier thinking is kept"),
    ],
)
def test_it_is_told_who_opens_the_thinking_and_what_becomes_of_it(family, said):
    assert remarks(families.TOKENIZERS[family])["thinking"].text == said


def test_where_results_and_schemas_are_shown_is_told():
    found = remarks(families.TOKENIZERS["qwen2.5"])
    assert "as they are" in found["tool results"].text
    assert "<tool_response>" in found["tool results"].text
    assert "before the question" in found["tool schemas"].text
    assert "in another form" in remarks(families.TOKENIZERS["llama3"])["tool results"].text
    assert remarks(families.TOKENIZERS["tiny"])["tool schemas"].state == "warning"
    late = families.QWEN25.replace(families._TOOL_LIST, "").replace(
        families._CHATML_END, families._TOOL_LIST + families._CHATML_END
    )
    assert "after the question" in remarks(with_template(late))["tool schemas"].text


@pytest.mark.parametrize("reads", formats.FORMATS)
@pytest.mark.parametrize("dialect", WRITERS)
def test_a_template_and_an_environment_of_different_dialects_do_not_go_together(dialect, reads):
    verdict = remarks(written_in(dialect), reads=reads)["call format"]
    assert verdict.state == ("ok" if reads in (dialect, "auto") else "broken")
    if verdict.state == "broken":
        assert f"format = {dialect!r}" in verdict.remedy


def test_calls_are_recognised_behind_a_thinking_that_the_template_opens():
    """`<think>` and `<tool_call>` begin with the same two letters."""
    tokenizer = written_in("hermes")
    tokenizer.chat_template = tokenizer.chat_template.replace(
        families._CHATML_END, families._CHATML_END.replace("assistant\\n'", "assistant\\n<think>\\n'")
    )
    assert "hermes" in spoken_formats(tokenizer)[0]


def test_arguments_may_have_to_be_json_in_a_string():
    tokenizer = written_in("hermes")
    tokenizer.chat_template = tokenizer.chat_template.replace("(c.arguments | tojson)", "c.arguments")
    assert "hermes" in spoken_formats(tokenizer)[0]


def test_a_dialect_that_nobody_reads_is_named():
    tokenizer = written_in("hermes")
    tokenizer.chat_template = tokenizer.chat_template.replace("<tool_call>", "<minimax:tool_call>")
    verdict = remarks(tokenizer)["call format"]
    assert (verdict.state, "minimax" in verdict.text) == ("broken", True)


def test_a_template_that_writes_no_calls_is_a_warning():
    assert remarks(families.TOKENIZERS["qwen2.5"])["call format"].state == "warning"


def compact(tool="<|tool|>{{ m.content }}<|end|>", end="<|end|>", start="<|assistant|>", head=""):
    tokenizer = tiny_tokenizer(["question word reply"])
    tokenizer.chat_template = (
        head + "{% for m in messages %}{% if m.role == 'tool' %}" + tool + "{% else %}"
        "<|{{ m.role }}|>{{ m.content }}" + end + "{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}" + start + "{% endif %}"
    )
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "about", "said"),
    [
        (compact(tool="{{ raise_exception('no tools here') }}"), "tool turns without thinking", "cannot show tool"),
        (compact(tool="{# dropped #}"), "tool turns after thinking", "cannot show tool"),
        (compact(tool="{% if loop.last %}{{ m.content }}<|end|>{% endif %}"), "tool results", "not all are shown"),
        (compact(end=""), "chat template", "end of a turn"),
        (compact(end=" ."), "end of turn", "ordinary text"),
        (compact(head="{{ raise_exception('no') }}"), "chat template", "TemplateError: no"),
        (compact(head="{{ messages.nothing.at_all }}"), "chat template", "UndefinedError"),
        (compact(head="{% for %}"), "chat template", "TemplateSyntaxError"),
        (compact(head="{{ 1 / 0 }}"), "chat template", "ZeroDivisionError"),
        (compact(head="{% if tools %}{{ raise_exception('no tools') }}{% endif %}"), "chat template", "no tools"),
    ],
    ids=["refuses", "drops", "shows one", "no end", "end is text", "raises", "undefined", "syntax", "zero", "no tools"],
)
def test_a_broken_template_is_told_with_what_breaks(tokenizer, about, said):
    found = examine(tokenizer)
    assert any(r.about == about and r.state == "broken" and said in r.text for r in found), found


def test_no_template_at_all_is_told_with_the_remedy():
    tokenizer = compact()
    tokenizer.chat_template = None
    (only,) = examine(tokenizer)
    assert (only.state, "chat_template.jinja" in only.remedy) == ("broken", True)


def test_a_template_that_hides_the_system_text_is_a_warning():
    found = remarks(compact(head="{% set messages = messages | rejectattr('role', 'equalto', 'system') | list %}"))
    assert found["system text"].state == "warning"


def test_tokens_across_a_seam_are_told():
    """After "assistant: " a sampled "word" is encoded alone; in the whole text the space belongs to the word."""
    template = families.QWEN25.replace("'<|im_start|>assistant\\n'", "'<|im_start|>assistant: '").replace(
        "message.role + '\\n'", "message.role + ': '"
    )
    assert remarks(with_template(template))["seams"].state == "warning"


def test_a_shield_that_leaks_would_be_seen(monkeypatch):
    monkeypatch.setattr(Chat, "_shield", lambda self, messages: (messages, ""))
    verdict = remarks(families.TOKENIZERS["qwen2.5"])["control tokens"]
    assert (verdict.state, "tool or user" in verdict.text) == ("broken", True)


def test_a_tokenizer_that_changes_text_is_told_with_what_it_changes():
    tokenizer = compact()
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    verdict = remarks(tokenizer)["odd characters"]
    assert verdict.state == "warning"
    assert "combining accents" in verdict.text
    assert "emoji" not in verdict.text


def test_a_tokenizer_with_more_words_than_the_model_is_refused():
    tokenizer = families.TOKENIZERS["tiny"]
    assert "vocabulary" not in remarks(tokenizer, words=len(tokenizer))
    assert remarks(tokenizer, words=len(tokenizer) - 1)["vocabulary"].state == "broken"


def test_the_stops_that_the_model_brings_are_named():
    tokenizer = families.TOKENIZERS["qwen2.5"]
    other = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    assert "<|endoftext|>" not in remarks(tokenizer)["end of turn"].text
    assert "<|endoftext|>" in remarks(tokenizer, ends=[other])["end of turn"].text


@pytest.mark.parametrize("dialect", WRITERS)
def test_environments_that_have_not_chosen_read_what_the_template_writes(dialect):
    verdict = remarks(written_in(dialect))["call format"]
    assert (verdict.state, verdict.text) == (
        "ok",
        f"the template writes {dialect}, and environments are opened to read that",
    )
