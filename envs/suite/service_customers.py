"""The customer of `service`, by rule: her reply follows from what the clerk has said and done so far.

She answers requests, compares what the clerk offers to do with her wish (the operation, the order, the item and the
detail), and corrects it. She brings up her next wish when the last one is settled, ends the conversation when all are,
and hangs up on a clerk who does not get on. She does not know the right actions. Left out: the shop, and customers that
a served model plays (`palaestra.envs.users`).
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from palaestra.envs.suite.service_requests import words_of
from palaestra.envs.suite.service_world import CHANGES, COLOURS, PRODUCTS
from palaestra.envs.users import MAX_CHARS, MAX_REPLIES, conversation
from palaestra.episode import Attempt

PATIENCE = 3
"""Number of times that she says the same thing about a wish before she hangs up."""


def _word(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{pattern})\b")


_SENTENCE = re.compile(r"[^.!?\n]*(?:[.](?=\S)[^.!?\n]*)*[.!?]?")
_REQUEST = re.compile(r"\?|\b(?:please|need|tell me|give me|let me know|confirm)\b")
_IDENTITY = {
    "name": (_word(r"(?:your|full|last) name"), "I am {}."),
    "email": (_word("e-?mail"), "My e-mail is {}."),
    "postcode": (_word("post ?code|postal code|zip(?: code)?"), "My postcode is {}."),
}
_NUMBER = _word("order number|number of (?:your|the) order|which order")
_DETAILS = {
    "change_address": (_word("street|address|where"), "Please send it to {}."),
    "exchange_item": (_word("colou?r|which|variant"), "I want the {}."),
    "return_item": (_word("refund|card|voucher|money|how (?:do|would|should)"), "Please pay it back to my {}."),
}
_OPERATIONS = {
    "cancel_order": _word("cancel(?:led|ling)?"),
    "change_address": _word("address|send|deliver|ship"),
    "exchange_item": _word("exchange|swap|replace|colou?r"),
    "return_item": _word("return|refund|take (?:it|the .{1,20}) back|pay (?:it|the .{1,20}) back"),
    "give_voucher": _word("voucher"),
}
_CONFIRM = _word(
    "shall i|should i|may i|can i|confirm|do you agree|do you want|would you like|go ahead|proceed|is that (?:right|ok)"
)
_ITEM = _word(rf"(?:{'|'.join(COLOURS)}) (?:{'|'.join(PRODUCTS)})")
_ELSE = _word("else|other wish|more|further")
_SORRY = _word("sorry|cannot|can't|unable|not (?:possible|allowed)|unfortunately|refuse[ds]?")


@dataclass
class Mood:
    """The state of a customer in a conversation."""

    at: int = 0
    """Index of the wish that she talks about."""
    changed: bool = False
    """True if she has changed her mind about this wish."""
    acted: bool = False
    """True if the clerk has changed something, or noted a refusal, since she brought this wish up."""
    settled: bool = False
    """True if she has confirmed this wish."""
    over: bool = False
    """True if she has said that this is all."""
    replies: Counter[str] = field(default_factory=Counter)
    """Replies about this wish, and how often she gave each."""


def customer(attempt: Attempt) -> str | None:
    """Return the customer's reply to the clerk's last turn, or None when she ends the conversation."""
    mood, data, reply, turns = Mood(), attempt.task.data, None, 0
    for role, text in conversation(attempt, calls=True):
        if role == "tool":
            mood.acted |= text in CHANGES
        elif role == "assistant":
            reply, turns = answer(data, mood, text), turns + 1
    return reply if turns <= MAX_REPLIES else None


def answer(data: Mapping[str, Any], mood: Mood, message: str) -> str | None:
    """Return the reply to one message; None if there is nothing more to say, or if patience has run out."""
    reply = _reply(data, mood, message[:MAX_CHARS].lower())
    if reply is not None:
        mood.replies[reply] += 1
    return reply if reply is not None and mood.replies[reply] <= PATIENCE else None


def _reply(data: Mapping[str, Any], mood: Mood, text: str) -> str | None:
    wish = data["wishes"][mood.at]
    wish = wish["instead"] if mood.changed else wish
    requests = " ".join(sentence for sentence in _SENTENCE.findall(text) if _REQUEST.search(sentence))
    if not requests:
        return _reply_to_statement(data, mood, text, words_of(wish))
    replies = [
        form.format(data["customer"][what]) for what, (words, form) in _IDENTITY.items() if words.search(requests)
    ]
    numbers = re.findall(r"\b\d{4}\b", text)
    if _NUMBER.search(requests) and not numbers:
        replies.append(
            f"Order {wish['order']}." if wish["knows_number"] else f"I do not know. It has the {wish['item']}."
        )
    if replies:
        return " ".join(replies)
    if _ELSE.search(requests):
        return _next_wish(data, mood, "Yes.") or "No, that is all. Thank you."
    if form := _DETAILS.get(wish["kind"]):
        names_all = {"card", "voucher"} <= set(re.findall(r"[a-z]+", text))
        if (wish["detail"].lower() not in text or names_all) and (
            form[0].search(requests) or _CONFIRM.search(requests)
        ):
            return form[1].format(wish["detail"])
    return _reply_to_offer(wish, mood, text, numbers) if _CONFIRM.search(requests) else f"As I said: {words_of(wish)}"


def _reply_to_statement(data: Mapping[str, Any], mood: Mood, text: str, wish: str) -> str | None:
    if mood.over:
        return None
    if mood.acted:
        return _next_wish(data, mood, "Thank you.")
    return "I see." if mood.settled or _SORRY.search(text) else f"As I said: {wish}"


def _next_wish(data: Mapping[str, Any], mood: Mood, begin: str) -> str | None:
    """Bring up the next wish; without one, remember that this is all, and return None."""
    if mood.at + 1 >= len(data["wishes"]):
        mood.over = True
        return None
    mood.at, mood.changed, mood.acted, mood.settled = mood.at + 1, False, False, False
    mood.replies.clear()
    return f"{begin} {words_of(data['wishes'][mood.at])}"


def _reply_to_offer(wish: dict[str, Any], mood: Mood, text: str, numbers: list[str]) -> str:
    """Compare what the clerk offers to do with the wish."""
    operations = [kind for kind, words in _OPERATIONS.items() if words.search(text)]
    items = _ITEM.findall(text)
    if not operations:
        return "What exactly do you want to do?"
    if wish["kind"] not in operations:
        return f"No, that is not what I want. {words_of(wish)}"
    if numbers and str(wish["order"]) not in numbers and wish["knows_number"]:
        return f"No. I mean order {wish['order']}."
    if items and wish["item"] not in items:
        return f"No. It is the {wish['item']}."
    if wish.get("instead") and not mood.changed:
        mood.changed = True
        mood.replies.clear()
        return f"Wait, I have changed my mind. {words_of(wish['instead'])}"
    mood.settled = True
    return "Yes, please."
