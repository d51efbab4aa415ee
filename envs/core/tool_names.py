"""Names and descriptions under which an environment offers the tools of its toolkits.

`offer(WebBrowser, prefix="page_")` makes a factory of the toolkit with other names. If two toolkits have a tool of the
same name, `settled` puts the `namespace` of each toolkit before it. A text that mentions a tool as `{Search.open}` (the
toolkit's class or a base class of it, and the method) gets the tool's present name. Left out: calls of tools (`calls`).
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache, partial
from typing import Any

from palaestra.envs.core.tool import NAME_PATTERN, Tool
from palaestra.envs.core.toolkit import Toolkit, tools_of
from palaestra.errors import EnvironmentDefect, UsageError

_MENTION = re.compile(r"\{([A-Za-z_]\w*)\.([A-Za-z_]\w*)\}")


@dataclass(frozen=True, slots=True)
class OfferedToolkit:
    """A factory of toolkits whose tools have the names and descriptions that `offer` gave them."""

    make: Any
    allow: tuple[str, ...] | None = None
    hide: tuple[str, ...] = ()
    prefix: str = ""
    rename: tuple[tuple[str, str], ...] = ()
    describe: tuple[tuple[str, str], ...] = ()

    @property
    def tools(self) -> Mapping[str, Tool]:
        """Return the tools by their new names."""
        return self._offered(tools_of(self.make))

    def __call__(self, *arguments: Any, **options: Any) -> Toolkit:
        """Return a new toolkit; the toolkit's class gets the arguments."""
        toolkit: Toolkit = self.make(*arguments, **options)
        toolkit.set_tools(self._offered(toolkit.tools))
        return toolkit

    def _offered(self, tools: Mapping[str, Tool]) -> dict[str, Tool]:
        where, rename, describe = _name(self.make), dict(self.rename), dict(self.describe)
        offered: dict[str, Tool] = {}
        require_names((*rename, *describe), tools, where)
        new_names = {old: rename.get(old, self.prefix + old) for old in chosen(tools, self.allow, self.hide, where)}
        for old, new in new_names.items():
            if new in offered or not re.fullmatch(NAME_PATTERN, new):
                problem = "two tools would have this name" if new in offered else "it is no name of a tool"
                raise UsageError(f"{where}: {old!r} cannot be called {new!r}, for {problem}; choose another")
            text = describe.get(old) or _with_new_names(tools[old].schema["function"]["description"], new_names)
            offered[new] = _retitled(tools[old], new, text)
        return offered


def offer(
    toolkit: Callable[..., Toolkit],
    *,
    allow: Collection[str] | None = None,
    hide: Collection[str] = (),
    prefix: str = "",
    rename: Mapping[str, str] | None = None,
    describe: Mapping[str, str] | None = None,
) -> OfferedToolkit:
    """Return a factory of a toolkit whose tools have other names or descriptions, or are not all offered.

    `allow` names the tools that agents may use (None means all), `hide` those that they may not. `rename` and
    `describe` give names and descriptions by a tool's old name; `prefix` is put before the names of the other tools.
    """
    renames, texts = tuple((rename or {}).items()), tuple((describe or {}).items())
    return OfferedToolkit(toolkit, None if allow is None else tuple(allow), tuple(hide), prefix, renames, texts)


def _with_new_names(text: str, new_names: Mapping[str, str]) -> str:
    """Return a description with the tools' new names. A name that could be a plain word, such as `open`, is replaced
    only in quotes or before a bracket."""
    for old, new in new_names.items():
        name = rf"(?<![\w-]){re.escape(old)}(?![\w-])"
        if old.isalpha() and old.islower():
            name = rf"(?<=[`'\"]){re.escape(old)}(?=[`'\"])|{name}(?=\()"
        text = re.sub(name, new, text) if old != new else text
    return text


def chosen(names: Iterable[str], allow: Collection[str] | None, hide: Collection[str], owner: str) -> list[str]:
    """Return the names that are in `allow` and not in `hide`; raise UsageError for an unknown name there."""
    all_names = list(names)
    require_names((*(allow or ()), *hide), all_names, owner)
    return [name for name in (all_names if allow is None else dict.fromkeys(allow)) if name not in hide]


def require_names(names: Iterable[str], tool_names: Collection[str], owner: str) -> None:
    """Raise UsageError, with the closest match, if a wanted tool is unknown."""
    for name in names:
        if name not in tool_names:
            close = get_close_matches(name, tool_names, n=1)
            hint = f"is {close[0]!r} meant?" if close else f"it has {', '.join(tool_names)}"
            raise UsageError(f"{owner} has no tool {name!r}; {hint}")


def settled(toolkits: Sequence[Any]) -> list[Any]:
    """Return the factories; those of tools that share a name with a tool of another toolkit put their `namespace`
    before it."""
    counts = Counter(name for make in toolkits for name in tools_of(make))
    result = []
    for make in toolkits:
        namespace = _class_of(make).namespace
        shared = {name: f"{namespace}_{name}" for name in tools_of(make) if counts[name] > 1 and namespace}
        result.append(offer(make, rename=shared) if shared else make)
    return result


class ToolNames:
    """The present names of the tools of an environment's toolkits, for the texts that mention them."""

    def __init__(self, owner: str, toolkits: Sequence[Any]) -> None:
        self._owner = owner
        self._kits = [(_class_of(make), tools_of(make)) for make in toolkits]

    def tools(self) -> Iterator[tuple[str, Mapping[str, Tool]]]:
        """Yield each toolkit's name and its tools, with the mentions in their schemas resolved."""
        for kit, tools in self._kits:
            yield kit.__name__, {name: self._resolved(kit, tool) for name, tool in tools.items()}

    def write(self, text: str, *first: tuple[type, Mapping[str, Tool]]) -> str:
        """Return the text with present names in place of the mentions; a toolkit in `first` comes before the others."""
        return _MENTION.sub(partial(self._present, (*first, *self._kits)), text) if "{" in text else text

    def _present(self, kits: Iterable[tuple[type, Mapping[str, Tool]]], mention: re.Match[str]) -> str:
        owners = [(kit, tools) for kit, tools in kits if mention[1] in (base.__name__ for base in kit.__mro__[:-1])]
        for _, tools in owners:
            for name, tool in tools.items():
                if tool.attribute == mention[2]:
                    return name
        if not owners:
            return mention[0]  # Braces of another meaning, such as code in a prompt.
        raise EnvironmentDefect(
            f"{self._owner}: a text mentions {mention[0]}, a tool that is not offered; write another text (a tool's "
            "description: offer(..., describe={NAME: TEXT}))"
        )

    def _resolved(self, kit: type, tool: Tool) -> Tool:
        """Return the tool with the mentions in its description resolved. A clause about a tool that is not offered is
        left out."""
        kit_tools = next(tools for other, tools in self._kits if other is kit and tool in tools.values())
        text = tool.schema["function"]["description"]
        attributes, bases = {other.attribute for other in kit_tools.values()}, {base.__name__ for base in kit.__mro__}
        for mention in _MENTION.finditer(text):
            if mention[1] in bases and mention[2] not in attributes:
                text = re.sub(rf"[;.]?[^;.]*{re.escape(mention[0])}[^;.]*", "", text)
        return _retitled(tool, tool.name, self.write(text, (kit, kit_tools)))


def _class_of(make: Any) -> type[Toolkit]:
    """Return the class of the toolkits that a factory makes."""
    while not isinstance(make, type):
        if isinstance(make, partial):
            make = make.func
        elif hasattr(make, "make"):
            make = make.make
        else:
            return type(make())
    return make


def _name(make: Any) -> str:
    return _class_of(make).__name__ if isinstance(make, type | partial) else str(getattr(make, "__name__", make))


@lru_cache(maxsize=4096)
def _retitled(tool: Tool, name: str, description: str) -> Tool:
    """Return the tool with this name and description; the same object for the same values."""
    function = tool.schema["function"]
    if (name, description) == (tool.name, function["description"]):
        return tool
    changed = {**function, "name": name, "description": description}
    return replace(tool, name=name, schema={**tool.schema, "function": changed})
