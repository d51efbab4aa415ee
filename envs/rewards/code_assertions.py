"""Reads tests in Python: finds the function that they test, and checks whether they can fail and can be judged.

Tests and program run in two sessions, and only values are sent between them. So some tests are refused: those that hand
a function to the program, and those that assert something about an argument after the call. Both are found in the text
of the tests. Left out: faults that show only when the tests run.
"""

import ast
import builtins
from collections.abc import Iterator, Sequence
from typing import Any

from palaestra.envs.rewards.empty_values import calls, program_names, returned
from palaestra.envs.rewards.remote_calls import PLAIN_TYPES

_HOLDS = ast.List | ast.Tuple | ast.Set | ast.Dict | ast.Starred | ast.IfExp
_BINDS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def split_setup(source: str, function: str = "", prompt: str = "") -> tuple[str, str]:
    """Split a set-up into code for both sessions and code for the tests alone.

    Both get imports, classes, and the functions that the agent's `prompt` contains. Only the tests get values and other
    functions, which may be the answer. Raise ValueError if a class defines `function`, or uses what the program does
    not get.
    """
    body = _tree(source, "its set-up is").body
    both = [
        node
        for node in body
        if isinstance(node, ast.ClassDef | ast.Import | ast.ImportFrom)
        or (isinstance(node, _BINDS) and (ast.get_source_segment(source, node) or " ") in prompt)
    ]
    others = [node for node in body if node not in both]
    test_names = _bound([child for node in others for child in _own(node)])
    for node in both:
        if not isinstance(node, ast.ClassDef):
            continue
        inner = list(ast.walk(node))
        if any(isinstance(child, _BINDS) and child.name == function for child in inner):
            raise ValueError(f"the class {node.name} of its set-up defines {function}, which the program is to define")
        used = {child.id for child in inner if isinstance(child, ast.Name)} & (test_names - _bound(inner))
        if used:
            raise ValueError(
                f"the class {node.name} of its set-up uses {', '.join(sorted(used))}, which the program does not get, "
                "since it could be the answer; make it part of the class"
            )
    others = [node for node in others if not (isinstance(node, _BINDS) and node.name == function)]
    first, second = ("".join(f"{ast.unparse(node)}\n" for node in part) for part in (both, others))
    return first, second


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the node and its descendants, but not the inside of functions and classes."""
    yield node
    if not isinstance(node, _BINDS):
        for child in ast.iter_child_nodes(node):
            yield from _own(child)


def function_of(assertions: str, context: str, setup: str = "") -> str:
    """Return the name of the function that the assertions call and that neither context nor set-up defines."""
    nodes = parsed(assertions)
    defined = _bound([*nodes, *ast.walk(_tree(context)), *ast.walk(_tree(setup))])
    called = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    names = [name for name in called if name not in defined]
    # A problem of MBPP asks for a `sum` of its own.
    name = next((name for name in names if not hasattr(builtins, name)), next(iter(names), None))
    if name is None:
        raise ValueError("no assertion calls a function, so nothing says what to define")
    return name


def parsed(code: str) -> list[ast.AST]:
    """Return the nodes of tests in Python; raise ValueError if none of them can ever fail."""
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
    """Return whether a node asserts something. `assert (f(1) == 2, "why")` and `assert True` can never fail."""
    if isinstance(node, ast.Assert):
        holds = isinstance(node.test, ast.Tuple) or (isinstance(node.test, ast.Constant) and bool(node.test.value))
        return not holds
    if isinstance(node, ast.Attribute):  # self.assertEqual, numpy.testing.assert_allclose
        return node.attr.startswith("assert")
    return isinstance(node, ast.Raise) or (isinstance(node, ast.Name) and node.id.startswith("assert"))


def judgeable(code: str, function: str, context: str = "") -> None:
    """Raise ValueError if a right program would fail, because the tests need something that is not sent to them."""
    nodes = parsed(code)
    names = program_names(nodes, function)
    functions = _functions([*nodes, *ast.walk(_tree(context))])
    called = {name for name, builtin in vars(builtins).items() if callable(builtin) and builtin not in PLAIN_TYPES}
    functions |= called - _bound(nodes)
    for call in calls(nodes, names):
        for argument in _handed(call):
            if isinstance(argument, ast.Lambda) or (isinstance(argument, ast.Name) and argument.id in functions):
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
    """Return for each call of a function its number of arguments and its keyword names, or None if unknown."""
    function_calls = calls(parsed(code), {function})
    return [
        None
        if any(isinstance(argument, ast.Starred) for argument in call.args)
        or any(argument.arg is None for argument in call.keywords)
        else (len(call.args) + len(call.keywords), tuple(str(argument.arg) for argument in call.keywords))
        for call in function_calls
    ]


def _looks_at_argument(nodes: Sequence[ast.AST], names: set[str]) -> ast.AST | None:
    """Return the first assertion about an argument of an earlier call but not about a returned value, or None."""
    handed: dict[str, tuple[int, int]] = {}
    for call in calls(nodes, names):
        for name in (argument.id for argument in _handed(call) if isinstance(argument, ast.Name)):
            handed[name] = min(handed.get(name, _ends(call)), _ends(call))
    results = returned(nodes, names)
    for node in sorted((inner_node for inner_node in nodes if _asserts(inner_node)), key=_begins):
        inner = list(ast.walk(node.test if isinstance(node, ast.Assert) else node))
        read = {inner_node.id for inner_node in inner if isinstance(inner_node, ast.Name)}
        after = any(handed.get(name, (1 << 60, 0)) < _begins(node) for name in read)
        if after and not read & results and not list(calls(inner, names)):
            return node
    return None


def _asserts(node: ast.AST) -> bool:
    return isinstance(node, ast.Assert) or (isinstance(node, ast.Call) and _can_fail(node.func))


def _handed(call: ast.Call) -> Iterator[ast.expr]:
    """Yield the arguments of a call, and the elements of lists, tuples, sets and dicts among them."""
    waiting: list[ast.expr] = [*call.args, *(child.value for child in call.keywords)]
    while waiting:
        yield (node := waiting.pop())
        if isinstance(node, _HOLDS):
            waiting.extend(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))


def _functions(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names of the functions and classes that are defined."""
    lambdas = (node for node in nodes if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda))
    lambda_names = {target.id for node in lambdas for target in node.targets if isinstance(target, ast.Name)}
    return lambda_names | {node.name for node in nodes if isinstance(node, _BINDS)}


def _bound(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names that are defined, imported, assigned or parameters of a function."""
    imported = [alias for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names]
    names = {(alias.asname or alias.name).partition(".")[0] for alias in imported}
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
