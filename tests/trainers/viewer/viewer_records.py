"""Episodes for the tests of the viewer, harmless ones and the worst that an agent could write."""

from dataclasses import replace
from typing import Any

import numpy as np

from palaestra.episode import Attempt, Call, Ending, Episode, Start, Status, Task, TokenRow
from palaestra.record import Lesson, Record

RUNS = "window.__pwned=1"
HOSTILE = (
    f"</script><script>{RUNS}</script>",
    f"<img src=x onerror={RUNS}><svg onload={RUNS}>",
    f"javascript:{RUNS} [click](javascript:{RUNS}) <a href='javascript:{RUNS}'>here</a>",
    "<style>*{background:url(http://evil.example/css)}</style>;}*{color:red;background:url(//evil.example)",
    f"${{{RUNS}}} `${{{RUNS}}}` {{{{{RUNS}}}}} <!--<script>--><![CDATA[",
    "\u202eright to left\u202c \u2066isolated\u2069 zero\u200bwidth \u2028line\u2029paragraph",
    "\x1b[31mred\x1b[0m \x07bell \x00nul \x9b31m",
    "half \ud800 pair, half \udfff pair",
    "https://evil.example/ <iframe src=//evil.example></iframe><link rel=stylesheet href=//evil.example>",
    "&lt;b&gt; &amp; &#x3c;script&#x3e;",
)
NAMES = ("__proto__", "constructor", "toString", "hasOwnProperty", "<b>bold</b>")


def row(count: int, seed: int = 0, version: int = 0) -> TokenRow:
    """Tokens in alternating spans of context and sampled ones."""
    rng = np.random.default_rng(seed)
    sampled = (np.arange(count) // 40) % 2 == 1
    logprobs = np.where(sampled, -rng.gamma(0.3, 1.0, size=count), 0.0)
    versions = np.where(sampled, version, -1)
    ids = rng.integers(200, size=count)
    return TokenRow(ids.astype(np.int32), sampled, logprobs.astype(np.float32), versions.astype(np.int32))


def record(group: int = 0, member: int = 0, *, step: int = 1, tokens: int = 120, **changes: Any) -> Record:
    """An episode of two turns; a member with an odd number succeeds."""
    answer = str(6 + (member + 1) % 2)
    messages = (
        {"role": "system", "content": "Use the calculator."},
        {"role": "user", "content": f"What is 2 * 3, in group {group}?"},
        {"role": "assistant", "content": f"I compute. <tool_call>{{'expression': '2*3'}}</tool_call> as {member}"},
        {"role": "tool", "name": "calculator", "content": "6"},
        {"role": "assistant", "content": answer},
    )
    reward = float(member % 2)
    fields: dict[str, Any] = {
        "start": Start(group, 100 * step + 10 * group + member, group),
        "attempt": Attempt(
            Task(messages[1]["content"], 6, f"train/{group}", {"digits": 1}),
            messages,
            answer,
            (Call("calculator", {"expression": "2*3"}, "6", Status.OK, 0.25),),
            2,
        ),
        "rows": (row(tokens, member, step - 1),) if tokens else (),
        "ending": Ending.ANSWERED,
        "reward": reward,
        "parts": {"success": reward},
        "tools": ({"type": "function", "function": {"name": "calculator", "description": "Computes."}},),
        "seconds": 1.5,
    }
    episode = Episode(**{**fields, **changes})
    said = tuple(one.logprobs + np.where(one.sampled, np.float32(1e-6), 0) for one in episode.rows)
    # Of two failures and two successes: the mean is 0 and the deviation 2 / sqrt(3).
    lesson = Lesson(step, {"outcome": 2 * reward - 1}, (2 * reward - 1) * 0.8660247, said, 0)
    return Record("palaestra/Calculator-v0", episode, {"split": "train"}, "tiny", (lesson,))


def hostile_record(group: int = 0, member: int = 0) -> Record:
    """One that attacks through everything an agent, an environment or a file can name."""
    plain = record(group, member)
    attack = "\n".join(HOSTILE)
    calls = tuple(Call(name, {name: attack, "of": attack}, attack, Status.TOOL_ERROR, 0.1) for name in NAMES)
    messages: list[dict[str, Any]] = [{"role": "user", "content": attack}]
    for name in NAMES:
        messages.append({"role": "assistant", "content": attack, name: attack})
        messages.append({"role": "tool", "name": name, "content": attack})
    messages.append({"role": attack, "content": attack})
    messages.append({"role": "assistant", "content": [{"type": "text", "text": attack}]})
    task = Task(attack, attack, attack, {name: {name: attack} for name in NAMES})
    attempt = Attempt(task, tuple(messages), attack, calls, len(NAMES) + 1)
    tools = tuple({"function": {"name": name, "description": attack, "parameters": {name: attack}}} for name in NAMES)
    parts = {"success": 0.0} | dict.fromkeys((*NAMES, attack[:200]), 0.5)
    episode = replace(plain.episode, attempt=attempt, tools=tools, parts=parts, fault=attack)
    lesson = Lesson(1, dict.fromkeys(NAMES, 0.25), -0.5, (), 3, {"score": 0.9, "critique": attack, attack: attack})
    return Record(f"{attack}/Evil-v0", episode, dict.fromkeys(NAMES, attack), attack, (lesson,))
