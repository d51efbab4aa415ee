"""Show tools, and a system text of the user, in the system message of a chat template.

Some templates show no tools, so a model would play without knowing them. `show_tools` puts a few lines of Jinja before
such a template: they write the tools' schemas, and one call as an example, into the system message. `set_system` does
the same for a text of the user. The lines are a part of the template, so every rendering has them, also those of
models that were saved, and of other programs. Left out: templates that show no system message either.
"""

import re
from typing import Any

from palaestra import formats
from palaestra.agents.policies.dialogue import TOOL_TEXT
from palaestra.agents.policies.tiny import TEMPLATE as TINY_TEMPLATE

_ARGUMENTS = {"probe_argument": {"type": "string", "description": "What to probe."}}
_PARAMETERS = {"type": "object", "properties": _ARGUMENTS, "required": ["probe_argument"]}
PROBE_TOOL = {
    "type": "function",
    "function": {"name": "probe_tool", "description": "Probes.", "parameters": _PARAMETERS},
}
_PREFIX = re.compile(
    r'\{#- palaestra (\S*) #\}\{%- set palaestra_system = "(.*?)" -%\}.*?\{#- end of palaestra #\}\n', re.DOTALL
)
_NAME, _KEY, _VALUE = "palaestra_name", "palaestra_key", "value"
_OBJECT = f'{{"{_KEY}": "{_VALUE}"}}'
_HOLES = {
    _OBJECT: "palaestra.arguments | tojson",
    _NAME: "tools[0]['function']['name']",
    _KEY: "palaestra.arguments | first | default('argument')",
}
"""Parts of a rendered example call, and the expressions that the template puts there."""
_LINES = """\
{%- set palaestra = namespace(arguments={}, tools="") -%}\
{%- if tools and CALLS -%}\
{%- set palaestra_parameters = tools[0]['function'].get('parameters') or {} -%}\
{%- for key in palaestra_parameters.get('required') or palaestra_parameters.get('properties') or [] -%}\
{%- set palaestra.arguments = dict(palaestra.arguments, **{key: 'value'}) -%}\
{%- endfor -%}\
{%- set palaestra_schemas = tools | map(attribute='function') | map('tojson') | join('\\n') -%}\
{%- set palaestra.tools = TEXT -%}\
{%- set tools = none -%}\
{%- endif -%}\
{%- if palaestra_system or palaestra.tools -%}\
{%- set palaestra_has = messages and messages[0]['role'] == 'system' -%}\
{%- set palaestra_texts = [palaestra_system, messages[0]['content'] if palaestra_has, palaestra.tools] -%}\
{%- set palaestra_text = palaestra_texts | select | join('\\n\\n') -%}\
{%- set messages = [{'role': 'system', 'content': palaestra_text}] + messages[1 if palaestra_has else 0:] -%}\
{%- endif -%}\
{#- end of palaestra #}
"""


def show_tools(tokenizer: Any, format: str) -> str:
    """Write the tools into the system message, with calls in this format, unless the template shows them itself.

    Return a note for the user: "" if the template shows them. The template of the tiny agent, which learns its tools
    from demonstrations, stays as it is.
    """
    if not lacks_tools(tokenizer):
        return ""
    _, system, template = _parts(tokenizer)
    _set(tokenizer, format, system, template)
    if _probe_is_shown(tokenizer):
        return f"the chat template shows no tools: they stand in the system message, with an example call in {format}"
    _set(tokenizer, "", system, template)
    return "the chat template shows neither tools nor a system message: the model is not told its tools"


def set_system(tokenizer: Any, text: str) -> None:
    """Put a text before the system text of every dialogue; an empty text removes the one that was set before."""
    format, _, template = _parts(tokenizer)
    _set(tokenizer, format, text, template)


def shown_format(tokenizer: Any) -> str | None:
    """Return the format of the example call that `show_tools` put into the template; None if it put none there."""
    return _parts(tokenizer)[0] or None


def lacks_tools(tokenizer: Any) -> bool:
    """Return whether the model's own template shows no tools although the model needs them: not for the tiny agent."""
    format, system, template = _parts(tokenizer)
    _set(tokenizer, "", system, template)
    try:
        return template != TINY_TEMPLATE and not _probe_is_shown(tokenizer)
    finally:
        _set(tokenizer, format, system, template)


def _parts(tokenizer: Any) -> tuple[str, str, str]:
    """Return the format ("" for none), the system text, and the model's own template."""
    template = tokenizer.chat_template
    if not isinstance(template, str):  # Several templates by name: one of them is for tools.
        template = tokenizer.get_chat_template(tools=[PROBE_TOOL])
    if (prefix := _PREFIX.match(template)) is None:
        return "", "", template
    return prefix[1], prefix[2].encode("ascii").decode("unicode_escape"), template[prefix.end() :]


def _set(tokenizer: Any, format: str, system: str, template: str) -> None:
    """Set the template, with the lines for a format and a system text before it if there are any."""
    if format or system:
        pieces = {"example": _example(format), "schemas": "palaestra_schemas"} if format else {}
        words = [pieces.get(piece) or _literal(piece) for piece in re.split(r"\{(\w+)\}", TOOL_TEXT)]
        lines = _LINES.replace("CALLS", "true" if format else "false").replace("TEXT", " ~ ".join(words))
        head = f"{{#- palaestra {format} #}}{{%- set palaestra_system = {_literal(system)} -%}}"
        template = head + lines + template
    tokenizer.chat_template = template


def _example(format: str) -> str:
    """Return a Jinja expression for a call of the first tool."""
    form = formats.get(format)
    if format == "fence":  # It calls one tool alone, whatever its name.
        return _literal(form.render([formats.ParsedCall("python", {"code": "print(1 + 1)"})]))
    text, holes = form.render([formats.ParsedCall(_NAME, {_KEY: _VALUE})]), dict(_HOLES)
    if format == "tags":  # These two take bare text.
        holes[_OBJECT] = f"'{_VALUE}' if {holes[_NAME]} in ('search', 'python') else {holes[_OBJECT]}"
    pattern = "|".join(map(re.escape, holes))
    pieces = (holes.get(piece) or _literal(piece) for piece in re.split(f"({pattern})", text) if piece)
    return " ~ ".join(f"({piece})" for piece in pieces)


def _literal(text: str) -> str:
    """Return a text as a string of Jinja, without characters that could end the string or begin a tag."""
    escaped = text.encode("unicode_escape").decode("ascii")
    return '"' + re.sub(r'["{}#%]', lambda match: f"\\x{ord(match[0]):02x}", escaped) + '"'


def _probe_is_shown(tokenizer: Any) -> bool:
    """Return whether the prompt of a question shows a tool's arguments. A template that raises an error shows none."""
    try:
        messages = [{"role": "user", "content": "question"}]
        prompt = tokenizer.apply_chat_template(messages, tools=[PROBE_TOOL], add_generation_prompt=True, tokenize=False)
    except Exception:  # A template is third-party code; it may raise anything for tools or for a system message.
        return False
    return "probe_argument" in prompt
