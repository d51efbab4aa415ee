"""Play episodes with a rule instead of a model, and see why each got its reward. Needs no torch.

python examples/play_by_script.py
"""

import palaestra
from palaestra.agents import Agent, ScriptedPolicy, play


def one_search(messages, rng):
    """Search once, for the first name in the question, and answer with whatever comes back."""
    replies = [message["content"] for message in messages if message["role"] == "tool"]
    if replies:
        return f"Answer: {replies[-1]}"
    names = [word for word in messages[-1]["content"].rstrip("?").split() if word[0].isupper() and word != "What"]
    return f'<tool_call>{{"name": "search", "arguments": {{"query": "{names[0]} born"}}}}</tool_call>'


def main() -> None:
    arena = palaestra.arena("palaestra/TwoHop-v0", 8)
    starts = (palaestra.Start(task=number, seed=number) for number in range(4))
    for episode in play(Agent(ScriptedPolicy(one_search)), arena, starts):
        attempt = episode.attempt
        print(attempt.task.prompt)
        for call in attempt.calls:
            print(f"  {call.name}({dict(call.arguments)}) -> {call.text} [{call.status}]")
        print(f"  {attempt.answer!r}, expected {attempt.task.answer!r}: {dict(episode.parts)}, {episode.ending}")
    arena.close()


if __name__ == "__main__":
    main()
