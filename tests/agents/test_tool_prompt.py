"""A chat template that shows no tools gets them in the system message; a user's system text stands before all."""

import families
import pytest

from palaestra import formats
from palaestra.agents import Chat
from palaestra.agents.chat import rendered
from palaestra.agents.conversation import written_rows
from palaestra.agents.dialect import pinned, prepared, template_format
from palaestra.agents.policies.tiny import TEMPLATE as TINY
from palaestra.agents.tool_prompt import PROBE_TOOL, lacks_tools, set_system, show_tools
from palaestra.formats import ParsedCall

SMOLLM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nDEFAULT<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The template of SmolLM2-Instruct, which puts a text of its own where there is no system message."""
QUESTION = {"role": "user", "content": "What is 6 * 7?"}
ENV_TEXT = {"role": "system", "content": "Be exact."}


@pytest.fixture
def tokenizer(tmp_path):
    made = families.TOKENIZERS["qwen2.5"]
    made.save_pretrained(tmp_path)
    copy = type(made).from_pretrained(tmp_path)
    copy.chat_template = SMOLLM
    return copy


def system_of(text):
    assert text.startswith("<|im_start|>system\n")
    return text.removeprefix("<|im_start|>system\n").partition("<|im_end|>")[0]


@pytest.mark.parametrize("format", [name for name in formats.FORMATS if name != "fence"])
@pytest.mark.parametrize("messages", [[QUESTION], [ENV_TEXT, QUESTION]])
def test_the_system_message_has_the_schemas_and_a_call_that_the_environment_reads(tokenizer, format, messages):
    options, note = prepared("palaestra/Calculator-v0", {"format": format}, tokenizer)
    assert (options["format"], format in note) == (format, True)
    system = system_of(rendered(tokenizer, messages, [PROBE_TOOL]))
    before, _, after = system.partition("You can use tools.")
    assert before == ("Be exact.\n\n" if len(messages) > 1 else "")
    example = after.partition("arguments:\n")[2].partition("\nSeveral")[0]
    assert formats.get(format).parse(example, [PROBE_TOOL]).calls == (
        ParsedCall("probe_tool", {"probe_argument": "value"}),
    )
    assert '"description": "What to probe."' in after.partition("The tools:")[2]
    assert template_format(tokenizer) == format


def test_without_tools_the_template_renders_what_it_rendered_before(tokenizer):
    show_tools(tokenizer, "hermes")
    dialogue = [QUESTION, {"role": "assistant", "content": "42"}]
    prefixed = rendered(tokenizer, dialogue)
    tokenizer.chat_template = SMOLLM
    assert prefixed == rendered(tokenizer, dialogue)


def test_the_prompt_of_a_saved_tokenizer_and_of_imitated_rows_is_the_prompt_of_play(tokenizer, tmp_path):
    set_system(tokenizer, "Think first.")
    prepared("palaestra/Calculator-v0", {}, tokenizer)
    prompt = Chat(tokenizer).opening([ENV_TEXT, QUESTION], [PROBE_TOOL])
    tokenizer.save_pretrained(tmp_path / "saved")
    saved = type(tokenizer).from_pretrained(tmp_path / "saved")
    assert prepared("palaestra/Calculator-v0", {}, saved)[0] == {"format": "hermes"}, "the format is recorded"
    row = written_rows(Chat(saved), [ENV_TEXT, QUESTION, {"role": "assistant", "content": "42"}], [PROBE_TOOL])[0]
    assert row.ids.tolist()[: len(prompt)] == prompt


@pytest.mark.parametrize(
    "text", ['say "42" \\n {{ 1 }} {% if %} {#- end of palaestra #}', "naïve 🙂\nnew line", "'" * 3]
)
def test_a_system_text_is_shown_as_it_is_before_the_environments_and_can_be_replaced(tokenizer, text):
    for format in ("tags", "hermes"):
        set_system(tokenizer, "to be replaced")
        show_tools(tokenizer, format)
        set_system(tokenizer, text)
        prompt = rendered(tokenizer, [ENV_TEXT, QUESTION], [PROBE_TOOL])
        assert (prompt.count("<|im_start|>system"), prompt.count("Be exact.")) == (1, 1)
        system = system_of(prompt)
        assert system.startswith(f"{text}\n\nBe exact.\n\nYou can use tools.")
    assert system_of(rendered(tokenizer, [QUESTION])) == text
    set_system(tokenizer, "")
    assert system_of(rendered(tokenizer, [QUESTION])) == "DEFAULT"


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3"])
def test_a_template_that_shows_tools_and_the_tiny_agents_stay_as_they_are(tokenizer, family):
    for template in (families.TOKENIZERS[family].chat_template, TINY):
        tokenizer.chat_template = template
        same = pinned("palaestra/Calculator-v0", {}, tokenizer)
        assert prepared("palaestra/Calculator-v0", {}, tokenizer) == same
        assert tokenizer.chat_template == template


def test_a_template_that_refuses_tools_gets_them_in_the_system_message(tokenizer):
    tokenizer.chat_template = "{% if tools %}{{ raise_exception('no tools') }}{% endif %}" + SMOLLM
    assert lacks_tools(tokenizer)
    assert "example call in hermes" in show_tools(tokenizer, "hermes")
    assert "probe_argument" in rendered(tokenizer, [QUESTION], [PROBE_TOOL])


def test_a_template_without_tools_and_system_message_is_told(tokenizer):
    tokenizer.chat_template = "{% for m in messages if m['role'] != 'system' %}{{ m['content'] }}<|im_end|>{% endfor %}"
    own = tokenizer.chat_template
    assert "neither" in show_tools(tokenizer, "hermes")
    assert tokenizer.chat_template == own
