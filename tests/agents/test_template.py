"""The verdict over a chat template: it says what play will do, and names what breaks."""

import itertools

import families
import pytest
from tokenizers import normalizers

from palaestra.agents import Chat, Conversation
from palaestra.agents.dialect import PROBE_TOOL
from palaestra.agents.policies.tiny import tiny_tokenizer
from palaestra.agents.template import examine

FAMILIES = sorted(families.TOKENIZERS)
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


def with_template(template):
    return families._tokenizer(template, families._CHATML_TOKENS, families._CHATML_WORDS, "<|im_end|>")


def changed(template, *swaps):
    """The template with something else in some places."""
    for old, new in swaps:
        assert old in template
        template = template.replace(old, new)
    return template


def written_in(dialect, *swaps):
    """A tokenizer whose template writes calls in that dialect."""
    calls = (
        "{%- if message.tool_calls -%}{%- for call in message.tool_calls -%}{%- set c = call.function -%}"
        f"{{{{- '<|im_start|>assistant\\n' + {WRITERS[dialect]} + '<|im_end|>\\n' -}}}}"
        "{%- endfor -%}{%- else -%}" + PLAIN_TURN + "{%- endif -%}"
    )
    return with_template(changed(families.QWEN25, (PLAIN_TURN, calls), *swaps))


def compact(*swaps, tool="<|tool|>{{ m.content }}<|end|>", end="<|end|>", head=""):
    tokenizer = tiny_tokenizer(["question word reply"])
    template = (
        head + "{% for m in messages %}{% if m.role == 'tool' %}" + tool + "{% else %}"
        "<|{{ m.role }}|>{{ m.content }}" + end + "{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    tokenizer.chat_template = changed(template, *swaps)
    return tokenizer


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_said_to_be_appended_is_one_row_in_play_and_what_is_not_is_two(family):
    found = remarks(families.TOKENIZERS[family])
    assert [remark for remark in found.values() if remark.state == "broken"] == []
    for about in ("seams", "system text", "tool results", "end of turn", "control tokens", "odd characters"):
        assert found[about].state == "ok", about
    for kind, thinking in itertools.product(("tool", "user"), (False, True)):
        said = found[f"{kind} turns {'after' if thinking else 'without'} thinking"]
        chat = families.chat(family)
        talk = Conversation(chat, [{"role": "user", "content": "question"}], (PROBE_TOOL,))
        thought = "<think>\nmusing\n</think>\n\n" if thinking or chat.opened_thinking else ""
        talk.add_text(thought + "word")
        assert talk.hear([{"role": kind, "name": "probe_tool", "content": "reply"}], (PROBE_TOOL,), room=10_000)
        assert said.state == ("ok" if len(talk.rows()) == 1 else "warning"), said


@pytest.mark.parametrize(
    ("family", "about", "said"),
    [
        ("qwen2.5", "thinking", "the agent may open it; earlier thinking is kept"),
        ("qwen3", "thinking", "the agent may open it; earlier thinking is dropped at the next user message"),
        ("qwen3-thinking", "thinking", "the template opens it itself; earlier thinking is dropped at the next user"),
        ("qwen3-training", "thinking", "the agent may open it; earlier thinking is kept"),
        ("qwen2.5", "tool results", "are shown as they are, after '\\n<|im_start|>user\\n<tool_response>"),
        ("llama3", "tool results", "are shown in another form"),
        ("qwen2.5", "tool schemas", "are shown before the question"),
    ],
)
def test_it_is_told_what_the_template_does(family, about, said):
    found = remarks(families.TOKENIZERS[family])[about]
    assert (found.state, found.text[: len(said)]) == ("ok", said)


def test_schemas_behind_the_question_are_told():
    end = families._CHATML_END
    late = changed(families.QWEN25, (families._TOOL_LIST, ""), (end, families._TOOL_LIST + end))
    assert remarks(with_template(late))["tool schemas"].text == "are shown after the question"


def test_it_is_told_which_calls_environments_are_opened_to_read():
    verdict = remarks(written_in("glm"))["call format"]
    assert (verdict.state, "writes glm, and environments" in verdict.text) == ("ok", True)


ONLY_THE_LAST = "{% if loop.last %}{{ m.content }}<|end|>{% endif %}"
LOOP, END = "{% for m in messages %}", "{% endfor %}"
OLD = "{% if tools and not loop.last and m.role == 'assistant' %}<|assistant|>old {{ m.content }}<|end|>{% else %}"
HIDES = "{% set messages = messages | rejectattr('role', 'equalto', 'system') | list %}"
SPACED = ("'<|im_start|>assistant\\n'", "'<|im_start|>assistant: '"), ("message.role + '\\n'", "message.role + ': '")


@pytest.mark.parametrize(
    ("tokenizer", "about", "state", "said"),
    [
        (compact(tool="{{ raise_exception('no') }}"), "tool turns without thinking", "broken", "cannot show tool"),
        (compact(tool="{# dropped #}"), "tool turns after thinking", "broken", "cannot show tool"),
        (
            compact((LOOP, LOOP + OLD), (END, "{% endif %}" + END)),
            "user turns without thinking",
            "warning",
            "changes earlier",
        ),
        (compact(tool=ONLY_THE_LAST), "tool results", "broken", "not all are shown"),
        (compact(head=HIDES), "system text", "warning", "does not show"),
        (compact(head=HIDES), "tool schemas", "warning", "neither tools nor a system message"),
        (compact(), "call format", "warning", "writes none of its own"),
        (written_in("hermes", ("<tool_call>", "<minimax:tool_call>")), "call format", "broken", "'<minimax:tool_call>"),
        # After "assistant: " a sampled "word" is encoded alone; in the whole text the space belongs to the word.
        (with_template(changed(families.QWEN25, *SPACED)), "seams", "warning", "has other tokens"),
        (compact(end=" ."), "end of turn", "broken", "ordinary text"),
        (compact(end=""), "chat template", "broken", "end of a turn"),
        (compact(head="{{ raise_exception('no') }}"), "chat template", "broken", "TemplateError: no"),
        (compact(head="{% for %}"), "chat template", "broken", "TemplateSyntaxError"),
        (compact(head="{{ 1 / 0 }}"), "chat template", "broken", "ZeroDivisionError"),
        (
            compact(head="{% if tools %}{{ raise_exception('no tools') }}{% endif %}"),
            "chat template",
            "broken",
            "tools",
        ),
    ],
)
def test_a_template_that_gets_in_the_way_is_told_with_what_it_does(tokenizer, about, state, said):
    found = {remark.about: remark for remark in examine(tokenizer)}
    assert (found[about].state, said in found[about].text) == (state, True), found
    assert found[about].remedy


def test_no_template_at_all_is_told_with_the_remedy():
    tokenizer = compact()
    tokenizer.chat_template = None
    (only,) = examine(tokenizer)
    assert (only.state, "chat_template.jinja" in only.remedy) == ("broken", True)


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


def test_the_stops_that_the_model_brings_are_named():
    tokenizer = families.TOKENIZERS["qwen2.5"]
    other = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    assert "<|endoftext|>" not in remarks(tokenizer)["end of turn"].text
    assert "<|endoftext|>" in remarks(tokenizer, ends=[other])["end of turn"].text
