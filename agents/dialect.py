"""In which format an environment reads an agent's calls: the one that the agent's chat template writes.

An environment of ours has the option `format`. Where nobody has chosen it, neither who opens the environment nor its
author, it is pinned to the agent at hand; what was pinned stands in the options, and so in every record. Left out:
agents without a chat (scripts, people, servers), who write whatever is read.
"""

from collections.abc import Mapping
from typing import Any

from palaestra import formats
from palaestra.agents.chat import rendered
from palaestra.episode import Message
from palaestra.mixture import environments, read_mixture
from palaestra.options import FORMAT
from palaestra.registry import chosen_format, reads_calls

AUTO = "auto"
_ARGUMENTS = {"probe_argument": {"type": "string", "description": "What to probe."}}
_PARAMETERS = {"type": "object", "properties": _ARGUMENTS, "required": ["probe_argument"]}
PROBE_TOOL = {
    "type": "function",
    "function": {"name": "probe_tool", "description": "Probes.", "parameters": _PARAMETERS},
}
_CALL = formats.ParsedCall("probe_tool", {"probe_argument": "some words"})
_QUESTION: Message = {"role": "user", "content": "question"}
_STUB: Message = {"role": "assistant", "content": "\ue000"}


def template_format(tokenizer: Any) -> str | None:
    """The format that a tokenizer's chat template writes calls in.

    `auto` for one that nobody here reads by name, and None for a template that writes no calls at all: such an agent
    learns them from demonstrations.
    """
    try:
        name, turn = written_format(tokenizer)
    except Exception:  # A template is a program of a stranger; it may refuse tools in any way.
        return formats.detect(str(tokenizer.chat_template))
    return name or (AUTO if turn else None)


def written_format(tokenizer: Any) -> tuple[str | None, str]:
    """The format that a call of this template reads back in, and the turn that holds it; empty where there is none."""
    named = formats.detect(str(tokenizer.chat_template))
    turn = _written_call(tokenizer)
    readers = [name for name in formats.FORMATS if name != AUTO and _reads(name, turn)]
    # What is really written is better evidence than the template's text.
    return named if named in readers or not readers else readers[0], turn


def _reads(name: str, turn: str) -> bool:
    """Whether this format reads the call; leniency is for a model's slips, a template's own form must need none."""
    calls = formats.get(name).parse(turn, (PROBE_TOOL,)).calls
    return calls == (_CALL,) and not any(isinstance(call, formats.Fault) or call.lenient for call in calls)


def _written_call(tokenizer: Any) -> str:
    """What the template makes of an assistant's call; empty where it shows none."""
    head = rendered(tokenizer, [_QUESTION, _STUB], [PROBE_TOOL], prompt=False).partition(_STUB["content"])[0]
    # Some templates want the arguments as an object, some as JSON in a string, most an id of nine letters.
    for arguments in (_CALL.arguments, '{"probe_argument": "some words"}'):
        call = {"id": "call00001", "type": "function", "function": {"name": _CALL.name, "arguments": arguments}}
        turn = {"role": "assistant", "content": "", "tool_calls": [call]}
        try:
            whole = rendered(tokenizer, [_QUESTION, turn], [PROBE_TOOL], prompt=False)
        except Exception:  # Whatever the template raises: it does not take calls in this form.
            continue
        while not whole.startswith(head):  # Back by whole marks, for `<think>` and `<tool_call>` begin alike.
            head = head[: max(head.rfind("<"), head.rfind("["), 0)]
        said = whole.removeprefix(head)
        if _CALL.name in said:
            return said.partition(tokenizer.eos_token)[0] if tokenizer.eos_token else said
    return ""


def pinned(
    env_id: str, options: Mapping[str, Any], tokenizer: Any, trained: str | None = None
) -> tuple[dict[str, Any], str]:
    """The options with the format that this tokenizer's agent writes, and what should be said of it, if anything.

    They come back as they are where the format was chosen, and for environments of others, who parse by themselves.
    An agent that was `trained` in another format than its template's writes that.
    """
    kept = dict(options)
    if read_mixture(env_id) is not None:
        notes: dict[str, None] = {}
        for env, (one, own) in environments(env_id, options).items():
            chosen, note = pinned(one, own, tokenizer, trained)
            kept |= {f"{env}.{FORMAT}": chosen[FORMAT]} if chosen != own else {}
            notes |= {note: None} if note else {}
        return kept, "; ".join(notes)
    if not reads_calls(env_id) or chosen_format(env_id, options) is not None:
        return kept, ""
    if trained is not None:
        return {**kept, "format": trained}, ""
    name = template_format(tokenizer)
    if name is None:
        return kept, ""
    if name == AUTO:
        return {**kept, "format": AUTO}, (
            "the chat template writes calls in a format that is not known here; whatever known form a turn shows is "
            "read (format=auto), and a call in another form is an answer"
        )
    said = f"calls are read as {name}, as the model's chat template writes them" if name != formats.DEFAULT else ""
    return {**kept, "format": name}, said
