"""Render messages as token ids with a tokenizer's chat template, and test whether new ids can be appended to a row.

The prompt of an episode is rendered once. Later messages are rendered after a stub assistant message; the text that the
template puts after the stub is encoded and appended to the row. When a chat is created, `probe` tests for which kinds
of message the row then equals a full rendering. For other kinds (if a template strips earlier thinking, say) a
`Conversation` begins a new row.

The text of a user or a tool can contain a control token, such as `<|im_end|>`. The text is then split inside the token
before it is encoded, so that it does not become the control token.

Left out: images, and templates whose system text changes during a dialogue.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from palaestra.episode import Message
from palaestra.errors import UsageError

_STUB = "\ue000stub\ue000"
_REMEMBERED = 256
"""Maximum number of encoded texts that a chat keeps."""
_Encoding = Callable[[Sequence[Message], Sequence[Mapping[str, Any]]], list[int]]
_EMPTY_THINKING = re.compile(r"<think>\s*</think>\s*")


class Chat:
    """A transformers tokenizer with its chat template, which renders dialogues as token ids."""

    def __init__(self, tokenizer: Any) -> None:
        if not tokenizer.chat_template:
            raise UsageError(
                "this tokenizer has no chat template, so messages cannot be rendered; choose an instruct model, or put "
                "a chat_template.jinja into the model folder"
            )
        self.tokenizer = tokenizer
        self._memory: dict[bytes, list[int]] = {}
        """Ids of the newest texts, by a digest of the messages and tools they were rendered from."""
        control = sorted((str(token) for token in tokenizer.added_tokens_decoder.values()), key=len, reverse=True)
        self._control = re.compile("|".join(re.escape(word) for word in control if len(word) > 1) or r"(?!)")
        question: list[Message] = [{"role": "user", "content": "question"}]
        closed = self._render([*question, {"role": "assistant", "content": _STUB}], (), prompt=False)
        after = self._encode(closed.partition(_STUB)[2])
        if not after:
            raise UsageError(
                "this chat template puts nothing after an assistant's message, so the end of a turn cannot be found; "
                "expected an end-of-turn token"
            )
        self.end_of_turn: int = after[0]
        self.stops: frozenset[int] = frozenset({self.end_of_turn, tokenizer.eos_token_id} - {None})
        opened = self._render(question, (), prompt=True).removeprefix(self._render(question, (), prompt=False))
        cut = opened.rfind("<think>")
        # Some templates open the thinking themselves: the agent's text then starts inside it.
        self.opened_thinking = opened[cut:] if cut >= 0 and "</think>" not in opened[cut:] else ""
        self._continues = {
            (kind, thinking): self.probe(kind, thinking) for kind in ("tool", "user") for thinking in (False, True)
        }

    def opening(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the ids of a whole dialogue, up to the point at which the agent's turn begins."""
        return self._remembered(self._opening, messages, tools)

    def delta(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], last_id: int) -> list[int]:
        """Return the ids to append for new messages, up to the agent's next turn. `last_id` is the row's last token."""
        ids = self._remembered(self._delta, messages, tools)
        # The sampled row has its own end of turn already, or another stop in its place.
        return ids[1:] if last_id in self.stops and ids[:1] == [self.end_of_turn] else ids

    def continues(self, messages: Sequence[Message], thought: bool) -> bool:
        """Return whether these messages can be appended to a row; False if the template would change earlier turns.

        `thought` is True if the row contains thinking.
        """
        kind = "tool" if all(message["role"] == "tool" for message in messages) else "user"
        verdict = self._continues[kind, thought or bool(self.opened_thinking)]
        if verdict is None:
            raise UsageError(
                f"this chat template cannot show {kind} messages after an assistant's; choose a model whose template "
                "can, or put another chat_template.jinja into the model folder"
            )
        return verdict

    def decode(self, ids: Sequence[int]) -> str:
        """Return a sampled turn's text without its stop token. Other special tokens stay: call formats use them."""
        turn_ids = ids[:-1] if ids and ids[-1] in self.stops else ids
        return self.opened_thinking + str(self.tokenizer.decode(list(turn_ids), skip_special_tokens=False))

    def encode_turn(self, text: str) -> list[int]:
        """Return the ids of a turn that was written, not sampled, with its end-of-turn token."""
        return [*self._encode(text.removeprefix(self.opened_thinking)), self.end_of_turn]

    def probe(self, kind: str, thinking: bool, tools: Sequence[Mapping[str, Any]] = ()) -> bool | None:
        """Return whether prompt + turn + delta equals the template's own rendering of the same dialogue.

        `kind` is the role of the message after the turn; `thinking` says whether the turn contains thinking. Return
        None if the template raises an error for such a message, or leaves it out.
        """
        from jinja2 import TemplateError

        question: list[Message] = [{"role": "user", "content": "question"}]
        response = "<think>\nmusing\n</think>\n\nword" if thinking or self.opened_thinking else "word"
        new: list[Message] = [{"role": kind, "name": "probe", "content": "reply"}]
        prompt = self._render(question, tools, prompt=True)
        try:
            whole = self._render([*question, {"role": "assistant", "content": response}, *new], tools, prompt=True)
            delta = self._delta_text(new, tools)
        except TemplateError:
            return None
        if "reply" not in delta:
            return None
        row = prompt + response.removeprefix(self.opened_thinking) + delta
        # An empty think block that a template adds is ignored; the row keeps what was really sampled.
        return _EMPTY_THINKING.sub("", whole) == _EMPTY_THINKING.sub("", row)

    def _remembered(
        self, encode: _Encoding, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> list[int]:
        """Return the ids that `encode` gives. Those of the newest texts are kept: a group's episodes share a prompt."""
        question = encode.__name__, hash(str(self.tokenizer.chat_template)), messages, tools
        key = blake2b(repr(question).encode("utf-8", "surrogatepass")).digest()
        ids = self._memory.get(key)
        if ids is None:
            ids = self._memory[key] = encode(messages, tools)
            if len(self._memory) > _REMEMBERED:
                self._memory.pop(next(iter(self._memory)), None)
        return list(ids)

    def _opening(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        shielded, mark = self._shield(messages)
        return self._encode(self._render(shielded, tools, prompt=True), mark)

    def _delta(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        shielded, mark = self._shield(messages)
        return self._encode(self._delta_text(shielded, tools), mark)

    def _render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, prompt: bool) -> str:
        return rendered(self.tokenizer, messages, tools, prompt=prompt)

    def _delta_text(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
        stub: list[Message] = [{"role": "user", "content": "question"}, {"role": "assistant", "content": _STUB}]
        return self._render([*stub, *messages], tools, prompt=True).partition(_STUB)[2]

    def _encode(self, text: str, mark: str = "") -> list[int]:
        pieces = text.split(mark) if mark else [text]
        return [token for piece in pieces for token in self.tokenizer.encode(piece, add_special_tokens=False)]

    def _shield(self, messages: Sequence[Message]) -> tuple[Sequence[Message], str]:
        """Return the messages with a mark inside every control token that a foreign text contains, and the mark.

        Foreign are the texts of users, of tools, and of other roles with a name: a harness writes such messages.
        `_encode` splits the text at the mark. The name of a tool message is marked too: the agent chooses the name that
        it calls, and some templates show it.
        """
        texts_by_key = [
            {key: m[key] for key in ("name", "content") if isinstance(m.get(key), str)}
            if m["role"] in ("user", "tool") or "name" in m
            else {}
            for m in messages
        ]
        if not any(self._control.search(text) for texts in texts_by_key for text in texts.values()):
            return messages, ""
        # No text can hold the digest of itself, whatever an attacker writes.
        mark = "\ue001" + blake2b(repr(messages).encode(), digest_size=16).hexdigest()
        cut = [{key: self._cut(text, mark) for key, text in texts.items()} for texts in texts_by_key]
        return [{**m, **texts} for m, texts in zip(messages, cut, strict=True)], mark

    def _cut(self, text: str, mark: str) -> str:
        """Return the text with the mark put inside every control token in it, also in overlapping ones."""
        pieces, begin = [], 0
        while word := self._control.search(text, begin):
            pieces.append(text[begin : word.start() + 1])
            begin = word.start() + 1
        return mark.join([*pieces, text[begin:]])


def rendered(
    tokenizer: Any, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), *, prompt: bool = True
) -> str:
    """Return the dialogue as the tokenizer's template renders it; `prompt` adds the beginning of the agent's turn."""
    return str(
        tokenizer.apply_chat_template(
            list(messages), tools=list(tools) or None, add_generation_prompt=prompt, tokenize=False
        )
    )
