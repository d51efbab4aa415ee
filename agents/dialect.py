"""In which format an environment reads an agent's calls: the one that the agent's chat template writes.

An environment of ours has the option `format`. Where nobody has chosen it, neither who opens the environment nor its
author, it is pinned to the agent at hand; what was pinned stands in the options, and so in every record. Left out:
agents without a chat (scripts, people, servers), who write whatever is read.
"""

from collections.abc import Mapping
from typing import Any

from palaestra import formats
from palaestra.agents.template import spoken_formats
from palaestra.registry import chosen_format, reads_calls

AUTO = "auto"


def template_format(tokenizer: Any) -> str | None:
    """The format that a tokenizer's chat template writes calls in.

    `auto` for one that nobody here reads by name, and None for a template that writes no calls at all: such an agent
    learns them from demonstrations.
    """
    named = formats.detect(str(tokenizer.chat_template))
    try:
        readers, family = spoken_formats(tokenizer)
    except Exception:  # A template is a program of a stranger; it may refuse tools in any way.
        return named
    exact = [name for name in readers if name != AUTO]
    if named is None or (exact and named not in exact):  # What it really writes is the better evidence.
        named = exact[0] if exact else None
    return named or (AUTO if family else None)


def pinned(
    env_id: str, options: Mapping[str, Any], tokenizer: Any, trained: str | None = None
) -> tuple[dict[str, Any], str]:
    """The options with the format that this tokenizer's agent writes, and what should be said of it, if anything.

    They come back as they are where the format was chosen, and for environments of others, who parse by themselves.
    An agent that was `trained` in another format than its template's writes that.
    """
    kept = dict(options)
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
