"""The call format of an environment follows the agent's chat template, unless somebody has chosen it."""

import families
import pytest
from test_template import PLAIN_TURN, WRITERS, written_in

import palaestra
from palaestra import formats
from palaestra.agents.dialect import pinned, template_format, written_format
from palaestra.registry import chosen_format, reads_calls

ENVS = ("palaestra/Calculator-v0", "palaestra/Arithmetic-v0", "palaestra/solver_critic_v0")


@pytest.mark.parametrize("dialect", WRITERS)
def test_a_template_names_its_format(dialect):
    assert template_format(written_in(dialect)) == dialect


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # A thinking that the template opens, or shows in other turns; it begins with the letters of `<tool_call>`.
        (families._CHATML_END, families._CHATML_END.replace("assistant\\n'", "assistant\\n<think>\\n'")),
        (PLAIN_TURN, PLAIN_TURN.replace("'\\n' + message.content", "'\\n<think></think>' + message.content")),
        ("(c.arguments | tojson)", "c.arguments"),  # Arguments have to be JSON in a string.
        ("{%- endfor -%}", "{%- endfor -%}{{- '<function= <parameter=' if false -}}"),  # Never shown.
    ],
)
def test_what_a_template_really_writes_is_the_evidence(old, new):
    name, turn = written_format(written_in("hermes", (old, new)))
    assert (name, turn[:11]) == ("hermes", "<tool_call>")


def test_a_template_that_writes_no_calls_names_none_and_a_strange_one_is_read_by_its_marks():
    assert template_format(families.TOKENIZERS["tiny"]) is None
    assert template_format(families.TOKENIZERS["llama3"]) is None
    strange = written_in("hermes", ("<tool_call>", "<minimax:tool_call>"))
    assert template_format(strange) == "auto"
    told = pinned(ENVS[0], {}, strange)
    assert told[0] == {"format": "auto"}
    assert "not known here" in told[1]


def test_a_template_that_refuses_tools_is_known_by_its_text():
    tokenizer = written_in("qwen3_coder")
    tokenizer.chat_template = "{%- if tools -%}{{ raise_exception('none') }}{%- endif -%}" + tokenizer.chat_template
    tokenizer.chat_template += "{{ '<parameter=' if false }}"
    assert template_format(tokenizer) == "qwen3_coder"


@pytest.mark.parametrize("env_id", ENVS)
def test_an_environment_of_which_nobody_chose_is_pinned_and_the_options_say_so(env_id):
    for dialect in WRITERS:
        options, note = pinned(env_id, {"split": "eval"}, written_in(dialect))
        assert options == {"split": "eval", "format": dialect}
        assert bool(note) == (dialect != formats.DEFAULT)
    assert pinned(env_id, {}, families.TOKENIZERS["tiny"]) == ({}, "")


def test_what_somebody_chose_stays():
    tokenizer = written_in("llama3")
    assert pinned(ENVS[0], {"format": "glm"}, tokenizer) == ({"format": "glm"}, "")
    palaestra.register("test/Chosen-v0", "palaestra.envs.suite.calculator:Calculator", format="mistral")
    assert pinned("test/Chosen-v0", {}, tokenizer) == ({}, "")
    assert chosen_format("test/Chosen-v0", {}) == "mistral"
    with pytest.raises(palaestra.ConfigError, match="unknown call format"):
        pinned(ENVS[0], {"format": "lama3"}, tokenizer)


def test_environments_of_others_hear_text_and_are_not_pinned():
    assert not reads_calls("CartPole-v1")
    assert chosen_format("CartPole-v1", {}) is None
    assert pinned("CartPole-v1", {}, written_in("llama3")) == ({}, "")
