"""Check whether an agent can be trained with a tokenizer and its chat template, and report what fails.

Every check renders dialogues as `Chat` does during play, and reads the result; the model's name has no influence. Left
out: the model's weights and architecture, which can be checked without a dialogue.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from palaestra import formats
from palaestra.agents.chat import Chat, rendered
from palaestra.agents.conversation import Conversation
from palaestra.agents.dialect import written_format
from palaestra.agents.tool_prompt import PROBE_TOOL, lacks_tools, show_tools
from palaestra.episode import Message
from palaestra.errors import UsageError

_OTHER_TEMPLATE = "put another chat_template.jinja into the model folder"
_QUESTION: Message = {"role": "user", "content": "QUESTION"}
_ODD_TEXTS = {
    "combining accents": "naïve e\u0301 A\u030a",
    "other scripts": "東京 漢字 שלום عربى",
    "emoji of several parts": "🙂 \U0001f468\u200d\U0001f469\u200d\U0001f467 🇫🇷",
    "invisible characters": "a\ufeffb a\u200bb",
    "runs of spaces": "a  b   c    d",
    "tabs and line ends": "a\tb\r\nc\n\n\nd",
    "spaces at both ends": "  a ",
    "spaces before marks": "a , b . it 's n't",
    "control characters": "a\x00b\x07c\x1bd a\u2028b\u0085c",
    "compatibility forms": "ﬁ ² Å",
}
"""Texts that tokenizers are known to change."""
TemplateSeverity = Literal["ok", "warning", "broken"]


@dataclass(frozen=True, slots=True)
class TemplateFinding:
    """The result of one check, with a remedy if there is a problem."""

    about: str
    text: str
    state: TemplateSeverity = "ok"
    remedy: str = ""


def examine(tokenizer: Any, ends: Iterable[int] = ()) -> list[TemplateFinding]:
    """Return the findings of all checks of a tokenizer and its template. `ends` are the model's own stop tokens."""
    try:
        chat = Chat(tokenizer)
    except UsageError as error:
        what, _, remedy = str(error).partition("; ")
        return [TemplateFinding("chat template", what, "broken", remedy)]
    except Exception as error:
        return [_exception_finding("cannot show a user's question", error)]
    chat.stops |= set(ends)
    checks = [_turns, _thinking, _system_text, _schemas, _calls, _stops, _shield, _odd_texts]
    if chat.probe("tool", False) is not None:
        checks += [_seams, _tool_results]
    remarks: list[TemplateFinding] = []
    for check in checks:
        try:
            remarks += check(chat)
        except Exception as error:  # The other checks may still find something.
            remarks.append(_exception_finding("fails", error))
    return list(dict.fromkeys(remarks))


def _exception_finding(what: str, error: Exception) -> TemplateFinding:
    """Return a finding about an exception that the template raised: it is third-party code and may raise any error."""
    reason = (str(error).strip().splitlines() or [""])[0]
    return TemplateFinding("chat template", f"{what}: {type(error).__name__}: {reason}", "broken", _OTHER_TEMPLATE)


def _finding(
    about: str, fine: bool, text: str, wrong: str, remedy: str, state: TemplateSeverity = "warning"
) -> TemplateFinding:
    """Return one finding: it says `text` if `fine` is True, otherwise `wrong` with the remedy."""
    return TemplateFinding(about, text) if fine else TemplateFinding(about, wrong, state, remedy)


def _turns(chat: Chat) -> Iterator[TemplateFinding]:
    """Check whether messages of each kind can be appended to a row, with and without thinking and tools."""
    for kind, thinking in (("tool", False), ("tool", True), ("user", False), ("user", True)):
        about = f"{kind} turns {'after' if thinking else 'without'} thinking"
        verdicts = {chat.probe(kind, thinking, tools) for tools in ((), (PROBE_TOOL,))}
        if None in verdicts:
            # Few environments speak as a user in mid-episode, and `play` raises an error when one does.
            state: TemplateSeverity = "broken" if kind == "tool" else "warning"
            text = f"the template cannot show {kind} messages after an assistant's"
            yield TemplateFinding(about, text, state, _OTHER_TEMPLATE)
            continue
        wrong = "the template changes earlier messages, so each begins a new row; `rows` counts them"
        remedy = "costs memory and time only; a template that keeps thinking avoids it"
        yield _finding(about, verdicts == {True}, "are appended: one row, token for token", wrong, remedy)


def _seams(chat: Chat) -> Iterator[TemplateFinding]:
    """Check whether a row that was encoded turn by turn has the same tokens as its whole text encoded at once."""
    talk = Conversation(chat, [_QUESTION], (PROBE_TOOL,))
    talk.add_text(f"{chat.opened_thinking}musing\n</think>\n\nword" if chat.opened_thinking else "word")
    talk.hear([{"role": "tool", "name": "probe_tool", "content": "reply"}], (PROBE_TOOL,), room=1 << 30)
    row = talk.rows()[-1].ids.tolist()
    same = chat.tokenizer.encode(chat.tokenizer.decode(row), add_special_tokens=False) == row
    wrong = "a text that is encoded at once has other tokens where one turn ends and the next begins"
    remedy = "the agent is trained on its sampled tokens; the model may have learned the other ones"
    yield _finding("seams", same, "no token spans the end of a turn", wrong, remedy)


def _thinking(chat: Chat) -> Iterator[TemplateFinding]:
    """Report whether the template or the agent writes the opening `<think>`, and whether earlier thinking is kept."""
    opener = "the template opens it itself" if chat.opened_thinking else "the agent may open it"
    dropped = " or ".join(kind for kind in ("tool", "user") if chat.probe(kind, True) is False)
    fate = f"dropped at the next {dropped} message" if dropped else "kept"
    has_switch = "enable_thinking" in str(chat.tokenizer.chat_template)
    switch = "; it has a switch enable_thinking, which is left as it is" * has_switch
    yield TemplateFinding("thinking", f"{opener}; earlier thinking is {fate}{switch}")


def _system_text(chat: Chat) -> Iterator[TemplateFinding]:
    try:
        prompt = rendered(chat.tokenizer, [{"role": "system", "content": "be brief"}, _QUESTION])
    except Exception:  # Templates refuse roles with errors of their own.
        prompt = ""
    wrong, remedy = "the template does not show a system message", "play environments whose `system` is empty"
    yield _finding("system text", "be brief" in prompt, "is shown", wrong, remedy)


def _tool_results(chat: Chat) -> Iterator[TemplateFinding]:
    """Check whether the template shows all results if a turn has several calls, and in which form."""
    first, second = 'first "quoted"\nreply', "second reply"
    new: list[Message] = [{"role": "tool", "name": "probe_tool", "content": text} for text in (first, second)]
    delta = str(chat.tokenizer.decode(chat.delta(new, (PROBE_TOOL,), chat.end_of_turn)))
    form = "as they are" if first in delta else "in another form (as JSON, say)"
    text = f"are shown {form}, after {delta.partition('first')[0][-60:]!r}"
    wrong = "of several results to one turn, not all are shown"
    yield _finding("tool results", second in delta and "quoted" in delta, text, wrong, _OTHER_TEMPLATE, "broken")


def _schemas(chat: Chat) -> Iterator[TemplateFinding]:
    """Check whether the prompt shows the tools' schemas, and in which part."""
    own_template = chat.tokenizer.chat_template
    lacking = lacks_tools(chat.tokenizer)
    note = show_tools(chat.tokenizer, formats.DEFAULT)
    prompt = rendered(chat.tokenizer, [_QUESTION], [PROBE_TOOL])
    chat.tokenizer.chat_template = own_template
    if lacking and "probe_argument" in prompt:
        yield TemplateFinding("tool schemas", note)
        return
    position = "before" if prompt.find("probe_tool") < prompt.find("QUESTION") else "after"
    wrong = note or "the template does not show them: the agent must learn its tools from demonstrations"
    remedy = "choose a template for tools, unless the agent learns them from demonstrations"
    yield _finding("tool schemas", "probe_argument" in prompt, f"are shown {position} the question", wrong, remedy)


def _calls(chat: Chat) -> Iterator[TemplateFinding]:
    """Check whether environments can read the calls that the template writes."""
    name, turn = written_format(chat.tokenizer)
    text = f"the template writes {name}, and environments are opened to read that"
    if turn:
        wrong = f"the template writes calls in a form that is not read here: {turn[:60]!r}"
        remedy = f"choose a model of another family; formats read here: {', '.join(sorted(formats.FORMATS))}"
        state: TemplateSeverity = "broken"
    else:
        wrong = f"the template writes none of its own; the agent must learn {formats.DEFAULT} or what `format` names"
        remedy, state = "let it imitate: --cold-start.demonstrations 96 --env-options format=tags", "warning"
    yield _finding("call format", name is not None, text, wrong, remedy, state)


def _stops(chat: Chat) -> Iterator[TemplateFinding]:
    """Check whether a special token ends a turn; report all stop tokens."""
    token_texts = {token: repr(chat.tokenizer.decode([token])) for token in sorted({chat.end_of_turn, *chat.stops})}
    end = f"{token_texts[chat.end_of_turn]} (id {chat.end_of_turn})"
    special = chat.end_of_turn in chat.tokenizer.added_tokens_decoder
    text = f"{end}; sampling stops at {', '.join(token_texts.values())}"
    wrong = f"{end} is ordinary text: a turn is cut wherever the agent writes it"
    remedy = "choose a model whose template closes turns with a token"
    yield _finding("end of turn", special, text, wrong, remedy, "broken")


def _shield(chat: Chat) -> Iterator[TemplateFinding]:
    """Check whether control tokens in tool results and questions are encoded as plain text."""
    added = chat.tokenizer.added_tokens_decoder
    spelled = "".join(str(token) for token in added.values() if len(str(token)) > 1)

    def control(role: str, text: str) -> list[int]:
        message: Message = {"role": role, "name": "probe_tool", "content": text}
        ids = chat.delta([message], (), chat.end_of_turn) if role == "tool" else chat.opening([message], ())
        return [token for token in ids if token in added]

    roles = ["user"] if chat.probe("tool", False) is None else ["tool", "user"]
    leaking = " or ".join(role for role in roles if control(role, f"a {spelled} b") != control(role, "a b"))
    text = f"{len(added)}; none can be forged by a tool result or a question"
    wrong = f"a {leaking} message that spells one out is read as if it held the real token"
    remedy = "do not train with this tokenizer on untrusted tools"
    yield _finding("control tokens", not leaking, text, wrong, remedy, "broken")


def _odd_texts(chat: Chat) -> Iterator[TemplateFinding]:
    """Check whether unusual texts are the same after they were encoded and decoded."""
    texts = {name: chat.opened_thinking + text for name, text in _ODD_TEXTS.items()}
    changed = ", ".join(name for name, text in texts.items() if chat.decode(chat.encode_turn(text)) != text)
    remedy = "an answer with such text may be judged wrongly"
    wrong = f"changed by the tokenizer: {changed}"
    yield _finding("odd characters", not changed, "survive encoding and decoding", wrong, remedy)
