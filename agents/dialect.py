"""Make an environment read tool calls in the format that the agent's chat template writes.

An environment of this package has the option `format`. If neither the caller nor the environment's author has set it,
`pinned` sets it to the agent's format, and every record holds it with the other options. If the template shows no
tools, `prepared` puts them and a call in the environment's format into the system message. Left out: agents without a
chat (scripts, human players, servers), which write calls in the environment's format.
"""

from collections.abc import Mapping
from typing import Any

from palaestra import formats
from palaestra.agents.chat import rendered
from palaestra.agents.tool_prompt import PROBE_TOOL, lacks_tools, show_tools, shown_format
from palaestra.episode import Message
from palaestra.mixture import environments, read_mixture
from palaestra.options import FORMAT
from palaestra.registry import chosen_format, format_read, reads_calls

AUTO = "auto"
_CALL = formats.ParsedCall("probe_tool", {"probe_argument": "some words"})
_QUESTION: Message = {"role": "user", "content": "question"}
_STUB: Message = {"role": "assistant", "content": "\ue000"}


def template_format(tokenizer: Any) -> str | None:
    """Return the format in which a tokenizer's chat template writes calls.

    `auto` means that the template writes calls in a format that this package does not know. None means that it writes
    no calls: the agent must learn a format, from its system message or from demonstrations.
    """
    if (template_format := shown_format(tokenizer)) is not None:
        return template_format
    try:
        name, turn = written_format(tokenizer)
    except Exception:  # A template is third-party code; it may raise anything for tools.
        return formats.detect(str(tokenizer.chat_template))
    return name or (AUTO if turn else None)


def written_format(tokenizer: Any) -> tuple[str | None, str]:
    """Return the format that reads this template's calls, or None, and a turn with a call, or "" without calls."""
    detected = formats.detect(str(tokenizer.chat_template))
    turn = _written_call(tokenizer)
    readers = [name for name in formats.FORMATS if name != AUTO and _reads(name, turn)]
    # The rendered call is better evidence than the text of the template.
    return detected if detected in readers or not readers else readers[0], turn


def _reads(name: str, turn: str) -> bool:
    """Return whether this format reads the template's call strictly: leniency is only for the errors of a model."""
    calls = formats.get(name).parse(turn, (PROBE_TOOL,)).calls
    return calls == (_CALL,) and not any(isinstance(call, formats.CallParseError) or call.lenient for call in calls)


def _written_call(tokenizer: Any) -> str:
    """Return the template's rendering of an assistant's call; empty if it shows none."""
    head = rendered(tokenizer, [_QUESTION, _STUB], [PROBE_TOOL], prompt=False).partition(_STUB["content"])[0]
    # Some templates want the arguments as an object, some as JSON in a string, most an id of nine letters.
    for arguments in (_CALL.arguments, '{"probe_argument": "some words"}'):
        call = {"id": "call00001", "type": "function", "function": {"name": _CALL.name, "arguments": arguments}}
        turn = {"role": "assistant", "content": "", "tool_calls": [call]}
        try:
            whole = rendered(tokenizer, [_QUESTION, turn], [PROBE_TOOL], prompt=False)
        except Exception:  # Whatever the template raises: it does not take calls in this form.
            continue
        while not whole.startswith(head):  # Shorten by whole tags: `<think>` and `<tool_call>` begin alike.
            head = head[: max(head.rfind("<"), head.rfind("["), 0)]
        turn_text = whole.removeprefix(head)
        if _CALL.name in turn_text:
            return turn_text.partition(tokenizer.eos_token)[0] if tokenizer.eos_token else turn_text
    return ""


def prepared(
    env_id: str, options: Mapping[str, Any], tokenizer: Any, trained: str | None = None
) -> tuple[dict[str, Any], str]:
    """Return what `pinned` returns. If the chat template shows no tools, they are written into the system message, in
    the format that the environment reads; that format is then among the options, and the note tells it.
    """
    new_options, note = pinned(env_id, options, tokenizer, trained)
    if not lacks_tools(tokenizer):
        return new_options, note
    prompt_note = show_tools(tokenizer, format_read(env_id, new_options))
    return pinned(env_id, new_options, tokenizer)[0], "; ".join(filter(None, (note, prompt_note)))


def pinned(
    env_id: str, options: Mapping[str, Any], tokenizer: Any, trained: str | None = None
) -> tuple[dict[str, Any], str]:
    """Return the options with the format that this tokenizer's agent writes, and a note for the user, which may be "".

    The options stay unchanged if they choose a format, or if the environment is a third-party one, which parses calls
    itself. `trained` is the format that the agent was trained in; it has priority over the template's format.
    """
    new_options = dict(options)
    if read_mixture(env_id) is not None:
        notes: dict[str, None] = {}
        for env, (part_id, part_options) in environments(env_id, options).items():
            chosen, note = pinned(part_id, part_options, tokenizer, trained)
            new_options |= {f"{env}.{FORMAT}": chosen[FORMAT]} if chosen != part_options else {}
            notes |= {note: None} if note else {}
        return new_options, "; ".join(notes)
    if not reads_calls(env_id) or chosen_format(env_id, options) is not None:
        return new_options, ""
    if trained is not None:
        return {**new_options, "format": trained}, ""
    name = template_format(tokenizer)
    if name is None:
        return new_options, ""
    if name == AUTO:
        return {**new_options, "format": AUTO}, (
            "the chat template writes calls in a format that is not known here; whatever known form a turn shows is "
            "read (format=auto), and a call in another form is an answer"
        )
    notice = f"calls are read as {name}, as the model's chat template writes them" if name != formats.DEFAULT else ""
    return {**new_options, "format": name}, notice
