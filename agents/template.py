"""The verdict over a tokenizer and its chat template: can an agent be trained with them, and what breaks if not?

Every answer comes from rendering dialogues and reading what came out, the way `Chat` does it in play; names of models
decide nothing. Left out: the model's weights and architecture, which need no dialogue to be looked at.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from palaestra import formats
from palaestra.agents.chat import Chat, rendered
from palaestra.agents.conversation import Conversation
from palaestra.episode import Message
from palaestra.errors import UsageError

PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "Probes.",
        "parameters": {
            "type": "object",
            "properties": {"probe_argument": {"type": "string", "description": "What to probe."}},
            "required": ["probe_argument"],
        },
    },
}
_CALL = formats.ParsedCall("probe_tool", {"probe_argument": "some words"})
_OTHER_TEMPLATE = "put another chat_template.jinja into the model folder"
_QUESTION: Message = {"role": "user", "content": "question"}
_ODD_TEXTS = {
    "accents": "naïve ünïcode",
    "combining accents": "e\u0301 A\u030a",
    "Chinese": "東京 漢字",
    "right to left": "שלום عربى",
    "emoji of several parts": "🙂 \U0001f468\u200d\U0001f469\u200d\U0001f467 🇫🇷",
    "byte order mark": "a\ufeffb",
    "zero width space": "a\u200bb",
    "runs of spaces": "a  b   c    d",
    "tabs and line ends": "a\tb\r\nc\n\n\nd",
    "spaces at both ends": "  a ",
    "spaces before marks": "a , b . it 's n't",
    "control characters": "a\x00b\x07c\x1bd",
    "line separators": "a\u2028b\u0085c",
    "compatibility forms": "ﬁ ² Å",
}
"""Texts that tokenizers are known to change."""
_FOREIGN = {
    "kimi": ("<|tool_calls_section_begin|>",),
    "minimax": ("<minimax:tool_call>",),
    "gemma": ("<start_function_call>", "<|tool_call>"),
    "cohere": ("<|START_ACTION|>",),
    "granite": ("<|tool_call|>",),
    "python": ("[probe_tool(",),
}
"""Call formats that nobody here reads, by what tells them apart in a rendering."""


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing that was looked at, and what to do about it where something must be done."""

    about: str
    text: str
    state: Literal["ok", "warning", "broken"] = "ok"
    remedy: str = ""


def examine(
    tokenizer: Any, *, reads: str | None = None, ends: Iterable[int] = (), words: int | None = None
) -> list[Remark]:
    """Everything there is to say of a tokenizer and its template.

    `reads` is the format of an environment that has chosen one, `ends` the stops that the model brings, `words` the
    size of its vocabulary.
    """
    try:
        chat = Chat(tokenizer)
    except UsageError as error:
        what, _, remedy = str(error).partition("; ")
        return [Remark("chat template", what, "broken", remedy)]
    except Exception as error:
        return [_raised("cannot show a user's question", error, _OTHER_TEMPLATE)]
    chat.stops |= set(ends)
    checks: tuple[Callable[[], Collection[Remark]], ...] = (
        lambda: _turns(chat),
        lambda: [_thinking(chat)],
        lambda: _roles(chat),
        lambda: [_schemas(chat)],
        lambda: [_calls(chat, reads)],
        lambda: _stops(chat, words),
        lambda: [_shield(chat)],
        lambda: [_round_trip(chat)],
    )
    remarks: list[Remark] = []
    for check in checks:
        try:
            remarks += check()
        except Exception as error:  # The other checks may still find something.
            remarks.append(_raised("fails", error))
    return remarks


def _raised(what: str, error: Exception, remedy: str = "") -> Remark:
    """A template is a program of a stranger: it may raise anything."""
    reason = (str(error).strip().splitlines() or [""])[0]
    return Remark("chat template", f"{what}: {type(error).__name__}: {reason}", "broken", remedy)


def spoken_formats(tokenizer: Any) -> tuple[list[str], str]:
    """Formats that read back a call as the template writes it, and the name of its family (empty: it writes none)."""
    text = _written_call(tokenizer)
    readers = []
    for name in formats.FORMATS:
        calls = formats.get(name).parse(text, (PROBE_TOOL,)).calls
        # Leniency is for a model's slips; a template's own form must need none.
        if calls == (_CALL,) and not any(isinstance(call, formats.Fault) or call.lenient for call in calls):
            readers.append(name)
    shown = text + rendered(tokenizer, [_QUESTION], [PROBE_TOOL])
    family = formats.detect(str(tokenizer.chat_template)) or next(
        (name for name, marks in _FOREIGN.items() if any(mark in shown for mark in marks)), ""
    )
    return readers, family or ("a format unknown here" if "probe_argument" in text else "")


def _written_call(tokenizer: Any) -> str:
    """What the template makes of an assistant's call; empty where it shows none."""
    prompt = rendered(tokenizer, [_QUESTION], [PROBE_TOOL])
    # Some templates want the arguments as an object, some as JSON in a string, most an id of nine letters.
    for arguments in (_CALL.arguments, '{"probe_argument": "some words"}'):
        function = {"name": _CALL.name, "arguments": arguments}
        turn = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call00001", "type": "function", "function": function}],
        }
        try:
            whole = rendered(tokenizer, [_QUESTION, turn], [PROBE_TOOL], prompt=False)
        except Exception:  # Whatever the template raises: it does not take calls in this form.
            continue
        said = whole[_parting(prompt, whole) :]
        end = tokenizer.eos_token
        if _CALL.name in said:
            return said.partition(end)[0] if end else said
    return ""


def _parting(prompt: str, whole: str) -> int:
    """Where the turn begins to differ from what opens one; never within a mark, as in `<think>` and `<tool_call>`."""
    place = next((i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(prompt))
    for opening, closing in ("<>", "[]"):
        begin = whole.rfind(opening, 0, place)
        if begin >= 0 and whole.find(closing, begin, place) < 0:
            place = begin
    return place


def _turns(chat: Chat) -> list[Remark]:
    """Whether rows may be appended to: after each kind of message, with and without thinking and tools."""
    remarks = []
    for kind in ("tool", "user"):
        for thinking in (False, True):
            verdicts = {chat.probe(kind, thinking, tools) for tools in ((), (PROBE_TOOL,))}
            about = f"{kind} turns {'after' if thinking else 'without'} thinking"
            if None in verdicts:
                text = f"the template cannot show {kind} messages after an assistant's"
                # Few environments speak as a user in mid-episode, and `play` raises an error when one does.
                state: Literal["warning", "broken"] = "broken" if kind == "tool" else "warning"
                remarks.append(Remark(about, text, state, _OTHER_TEMPLATE))
            elif verdicts == {True}:
                remarks.append(Remark(about, "are appended: one row, token for token"))
            else:
                text = "the template rewrites what was said: each opens a new row, which is counted"
                remedy = "costs memory and time only; a template that keeps thinking avoids it"
                remarks.append(Remark(about, text, "warning", remedy))
    return [*remarks, _merges(chat)]


def _merges(chat: Chat) -> Remark:
    """Whether tokens at the seams of a row are those of a text that is encoded whole."""
    talk = Conversation(chat, [_QUESTION], (PROBE_TOOL,))
    talk.add_text(f"{chat.opened_thinking}musing\n</think>\n\nword" if chat.opened_thinking else "word")
    if chat.probe("tool", False) is None:
        return Remark("seams", "not looked at, for tool messages cannot be shown")
    talk.hear([{"role": "tool", "name": "probe_tool", "content": "reply"}], (PROBE_TOOL,), room=1 << 30)
    row = [token for one in talk.rows()[-1:] for token in one.ids.tolist()]
    whole = chat.tokenizer.encode(chat.tokenizer.decode(row), add_special_tokens=False)
    if whole == row:
        return Remark("seams", "no token spans the end of a turn")
    text = "tokens that span the end of a turn come out otherwise in a text that is encoded whole"
    return Remark("seams", text, "warning", "the agent trains on what it sampled; the model may know the other form")


def _thinking(chat: Chat) -> Remark:
    """Who opens the thinking, and what becomes of it."""
    has_switch = "enable_thinking" in str(chat.tokenizer.chat_template)
    switch = "; it has a switch enable_thinking, which is left as it is" * has_switch
    dropped = [kind for kind in ("tool", "user") if chat.probe(kind, True) is False]
    kept = f"dropped at the next {' or '.join(dropped)} message" if dropped else "kept"
    opener = "the template opens it itself" if chat.opened_thinking else "the agent may open it"
    return Remark("thinking", f"{opener}; earlier thinking is {kept}{switch}")


def _roles(chat: Chat) -> list[Remark]:
    """How the template shows a system text and tool results."""
    try:
        shown = rendered(chat.tokenizer, [{"role": "system", "content": "be brief"}, _QUESTION])
    except Exception:  # Templates refuse roles with errors of their own.
        shown = ""
    if "be brief" in shown:
        remarks = [Remark("system text", "is shown")]
    else:
        text = "the template does not show a system message"
        remarks = [Remark("system text", text, "warning", "play environments whose `system` is empty")]
    if chat.probe("tool", False) is None:
        return remarks
    first, second = 'first "quoted"\nreply', "second reply"
    new: list[Message] = [{"role": "tool", "name": "probe_tool", "content": text} for text in (first, second)]
    ids = chat.delta(new, (PROBE_TOOL,), chat.end_of_turn)
    delta = str(chat.tokenizer.decode(ids))
    if second not in delta or "quoted" not in delta:
        text = "of several results to one turn, not all are shown"
        return [*remarks, Remark("tool results", text, "broken", _OTHER_TEMPLATE)]
    before = delta.partition("first")[0]
    form = "as they are" if first in delta else "in another form (as JSON, say)"
    return [*remarks, Remark("tool results", f"are shown {form}, after {before[-60:]!r}")]


def _schemas(chat: Chat) -> Remark:
    """Whether the prompt shows the tools, and where."""
    shown = rendered(chat.tokenizer, [{"role": "user", "content": "QUESTION"}], [PROBE_TOOL])
    name, question = shown.find("probe_tool"), shown.find("QUESTION")
    if name < 0:
        text = "the template does not show them: the agent must learn its tools from demonstrations or a system text"
        return Remark(
            "tool schemas", text, "warning", "choose a template for tools, unless the agent is raised on them"
        )
    place = "before" if name < question else "after"
    if "probe_argument" not in shown:
        return Remark("tool schemas", f"are shown {place} the question, without their arguments", "warning")
    return Remark("tool schemas", f"are shown {place} the question")


def _calls(chat: Chat, reads: str | None) -> Remark:
    """Whether the environment reads the calls that this template's model has learned to write.

    Without `reads` it is one that has not chosen: training, evaluation and collection then pin it to the template.
    """
    readers, family = spoken_formats(chat.tokenizer)
    spoken = [name for name in readers if name != "auto"] or [family] * (family in formats.FORMATS)
    if reads is None and spoken:
        return Remark("call format", f"the template writes {spoken[0]}, and environments are opened to read that")
    reads = reads or ("auto" if family else formats.DEFAULT)
    if reads in (*readers, *spoken) or (reads == "auto" and spoken):
        shown = "" if reads in spoken else f" as {reads}"
        return Remark("call format", f"the template writes {spoken[0]}, which the environment reads{shown}")
    if spoken:
        text = f"the template writes {' or '.join(spoken)}, the environment reads {reads}: calls go unread"
        remedy = f"set format = {spoken[0]!r} in the environment, or --env-options format={spoken[0]}"
        return Remark("call format", text, "broken", remedy)
    if family:
        text = f"the template writes {family}, the environment reads {reads}: calls go unread"
        known = ", ".join(sorted(formats.FORMATS))
        return Remark("call format", text, "broken", f"choose a model of another family; formats read here: {known}")
    text = f"the template writes none of its own; the agent must learn {reads} from demonstrations or a system text"
    return Remark("call format", text, "warning", "raise it on demonstrations, or say the format in `system`")


def _stops(chat: Chat, words: int | None) -> list[Remark]:
    """What ends a turn, and whether the model can write it."""
    end = str(chat.tokenizer.decode([chat.end_of_turn]))
    stops = ", ".join(repr(str(chat.tokenizer.decode([token]))) for token in sorted(chat.stops))
    remarks = [Remark("end of turn", f"{end!r} (id {chat.end_of_turn}); sampling stops at {stops}")]
    if chat.end_of_turn not in chat.tokenizer.added_tokens_decoder:
        text = f"{end!r} (id {chat.end_of_turn}) is ordinary text: a turn is cut wherever the agent writes it"
        remarks = [Remark("end of turn", text, "broken", "choose a model whose template closes turns with a token")]
    if words is not None and (largest := max(chat.tokenizer.get_vocab().values(), default=0)) >= words:
        text = f"the tokenizer has ids up to {largest}, the model knows {words}"
        remarks.append(Remark("vocabulary", text, "broken", "take tokenizer and model from the same place"))
    return remarks


def _shield(chat: Chat) -> Remark:
    """Whether control tokens in tool results and questions stay text."""
    added = chat.tokenizer.added_tokens_decoder
    spelled = "".join(str(token) for token in added.values() if len(str(token)) > 1)

    def control(role: str, text: str) -> list[int]:
        message: Message = {"role": role, "name": "probe_tool", "content": text}
        ids = chat.delta([message], (), chat.end_of_turn) if role == "tool" else chat.opening([message], ())
        return [token for token in ids if token in added]

    roles = [role for role in ("tool", "user") if role == "user" or chat.probe("tool", False) is not None]
    leaking = [role for role in roles if control(role, f"a {spelled} b") != control(role, "a b")]
    if leaking:
        text = f"those that a {' or '.join(leaking)} message spells are taken for real"
        return Remark("control tokens", text, "broken", "do not train with this tokenizer on untrusted tools")
    return Remark("control tokens", f"{len(added)}; none can be forged by a tool result or a question")


def _round_trip(chat: Chat) -> Remark:
    """Whether text survives being encoded and decoded."""
    changed = [
        name
        for name, text in _ODD_TEXTS.items()
        if chat.decode(chat.encode_turn(chat.opened_thinking + text)) != chat.opened_thinking + text
    ]
    if not changed:
        return Remark("odd characters", "survive encoding and decoding")
    text = f"changed by the tokenizer: {', '.join(changed)}"
    return Remark("odd characters", text, "warning", "answers with such text may be judged as other than they were")
