"""Tests in Python as they are read: which function they ask for, whether they can fail, whether they can be judged.

Tests and program run in two sessions, and values alone are sent between them. Refused is what could not be judged so,
and would be paid wrongly: a function that is handed to the program, and an assertion about an argument after the call.
Both are looked for in the text. Left out: what only running them would show.
"""

import ast
import builtins
from collections.abc import Iterator, Sequence
from typing import Any

from palaestra.envs.rewards.remote_calls import PLAIN_TYPES

_HOLDS = ast.List | ast.Tuple | ast.Set | ast.Dict | ast.Starred | ast.IfExp
_BINDS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def split_setup(source: str, function: str = "", shown: str = "") -> tuple[str, str]:
    """What of a set-up both sessions get, and what the tests alone get: values and functions, which may be the answer.

    Both get imports, classes, and the functions that the agent was `shown` already. A ValueError where a class is the
    answer itself, or uses what the program does not get.
    """
    body = _tree(source, "its set-up is").body
    both = [
        node
        for node in body
        if isinstance(node, ast.ClassDef | ast.Import | ast.ImportFrom)
        or (isinstance(node, _BINDS) and (ast.get_source_segment(source, node) or " ") in shown)
    ]
    rest = [node for node in body if node not in both]
    kept = _bound([one for node in rest for one in _own(node)])
    for node in both:
        if not isinstance(node, ast.ClassDef):
            continue
        inner = list(ast.walk(node))
        if any(isinstance(one, _BINDS) and one.name == function for one in inner):
            raise ValueError(f"the class {node.name} of its set-up defines {function}, which the program is to define")
        used = {one.id for one in inner if isinstance(one, ast.Name)} & (kept - _bound(inner))
        if used:
            raise ValueError(
                f"the class {node.name} of its set-up uses {', '.join(sorted(used))}, which the program does not get, "
                "since it could be the answer; make it part of the class"
            )
    rest = [node for node in rest if not (isinstance(node, _BINDS) and node.name == function)]
    first, second = ("".join(f"{ast.unparse(node)}\n" for node in part) for part in (both, rest))
    return first, second


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """The node and what is in it, but for the inside of a function."""
    yield node
    if not isinstance(node, _BINDS):
        for child in ast.iter_child_nodes(node):
            yield from _own(child)


def function_of(assertions: str, context: str, setup: str = "") -> str:
    """The function that assertions call and nothing around them defines."""
    nodes = parsed(assertions)
    known = _bound([*nodes, *ast.walk(_tree(context)), *ast.walk(_tree(setup))])
    called = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    names = [name for name in called if name not in known]
    # A problem of MBPP asks for a `sum` of its own.
    name = next((name for name in names if not hasattr(builtins, name)), next(iter(names), None))
    if name is None:
        raise ValueError("no assertion calls a function, so nothing says what to define")
    return name


def parsed(code: str) -> list[ast.AST]:
    """The nodes of tests in Python; a ValueError where none of them could ever fail."""
    nodes = list(ast.walk(_tree(code)))
    if not any(map(_can_fail, nodes)):
        raise ValueError("its tests assert nothing, so every program would pass them; expected `assert f(1) == 2`")
    return nodes


def _tree(code: str, which: str = "its assertions are") -> ast.Module:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{which} no Python: {str(error)[:80]}") from None


def _can_fail(node: ast.AST) -> bool:
    """Whether a node asserts something. `assert (f(1) == 2, "why")` and `assert True` hold whatever happens."""
    if isinstance(node, ast.Assert):
        holds = isinstance(node.test, ast.Tuple) or (isinstance(node.test, ast.Constant) and bool(node.test.value))
        return not holds
    if isinstance(node, ast.Attribute):  # self.assertEqual, numpy.testing.assert_allclose
        return node.attr.startswith("assert")
    return isinstance(node, ast.Raise) or (isinstance(node, ast.Name) and node.id.startswith("assert"))


def judgeable(code: str, function: str, context: str = "") -> None:
    """A ValueError where a right program would fail, since what the tests look at is not sent."""
    nodes = parsed(code)
    checks = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == "check" and node.args.args]
    names = {function, *(node.args.args[0].arg for node in checks)}
    functions = _functions([*nodes, *ast.walk(_tree(context))])
    called = {name for name, one in vars(builtins).items() if callable(one) and one not in PLAIN_TYPES}
    functions |= called - _bound(nodes)
    for call in _calls(nodes, names):
        for given in _handed(call):
            if isinstance(given, ast.Lambda) or (isinstance(given, ast.Name) and given.id in functions):
                raise ValueError(
                    f"`{_text(code, call)}` hands a function to the program, and only values are sent between the "
                    "tests and it: a right program would fail"
                )
    if about := _looks_at_argument(nodes, names):
        raise ValueError(
            f"`{_text(code, about)}` looks at an argument after the call, and only what is returned comes back to the "
            "tests: a right program would fail"
        )


def shapes(code: str, function: str) -> list[tuple[int, tuple[str, ...]] | None]:
    """How each call of a function is given its arguments: how many there are, and who has a name. None: unknown."""
    calls = _calls(parsed(code), {function})
    return [
        None
        if any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords)
        else (len(call.args) + len(call.keywords), tuple(str(one.arg) for one in call.keywords))
        for call in calls
    ]


def _looks_at_argument(nodes: Sequence[ast.AST], names: set[str]) -> ast.AST | None:
    """The first assertion about an argument of an earlier call that is not about what a call returned."""
    handed: dict[str, tuple[int, int]] = {}
    for call in _calls(nodes, names):
        for name in (given.id for given in _handed(call) if isinstance(given, ast.Name)):
            handed[name] = min(handed.get(name, _ends(call)), _ends(call))
    returned = _returned(nodes, names)
    for node in sorted((one for one in nodes if _asserts(one)), key=_begins):
        inner = list(ast.walk(node.test if isinstance(node, ast.Assert) else node))
        read = {one.id for one in inner if isinstance(one, ast.Name)}
        after = any(handed.get(name, (1 << 60, 0)) < _begins(node) for name in read)
        if after and not read & returned and not list(_calls(inner, names)):
            return node
    return None


def _returned(nodes: Sequence[ast.AST], names: set[str]) -> set[str]:
    """Variables that hold what a call returned, or anything made of it."""
    found: set[str] = set()
    known = -1
    while known < len(found):
        known = len(found)
        for node in nodes:
            source = getattr(node, "iter", None) or getattr(node, "value", None) or getattr(node, "context_expr", None)
            targets = getattr(node, "targets", None) or [getattr(node, "target", getattr(node, "optional_vars", None))]
            if not isinstance(source, ast.AST) or targets == [None]:
                continue
            inner = list(ast.walk(source))
            if list(_calls(inner, names)) or any(isinstance(one, ast.Name) and one.id in found for one in inner):
                found |= {one.id for at in targets for one in ast.walk(at) if isinstance(one, ast.Name)}
    return found


def _asserts(node: ast.AST) -> bool:
    return isinstance(node, ast.Assert) or (isinstance(node, ast.Call) and _can_fail(node.func))


def _calls(nodes: Sequence[ast.AST], names: set[str]) -> Iterator[ast.Call]:
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield node


def _handed(call: ast.Call) -> Iterator[ast.expr]:
    """What a call is given: its arguments, and what stands in lists and the like among them."""
    waiting: list[ast.expr] = [*call.args, *(one.value for one in call.keywords)]
    while waiting:
        yield (node := waiting.pop())
        if isinstance(node, _HOLDS):
            waiting.extend(one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr))


def _functions(nodes: Sequence[ast.AST]) -> set[str]:
    """Names of functions and classes that are defined."""
    lambdas = (node for node in nodes if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda))
    named = {target.id for node in lambdas for target in node.targets if isinstance(target, ast.Name)}
    return named | {node.name for node in nodes if isinstance(node, _BINDS)}


def _bound(nodes: Sequence[ast.AST]) -> set[str]:
    """Names that are defined, imported, assigned or given to a function."""
    imported = [one for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for one in node.names]
    names = {(one.asname or one.name).partition(".")[0] for one in imported}
    names |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return names | {node.name for node in nodes if isinstance(node, _BINDS)}


def _begins(node: Any) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _ends(node: Any) -> tuple[int, int]:
    return node.end_lineno, node.end_col_offset


def _text(code: str, node: ast.AST) -> str:
    text = " ".join((ast.get_source_segment(code, node) or "").split())
    return text if len(text) <= 80 else f"{text[:77]}..."
