"""Makes tests fail that compare an empty value with one that is not empty. Runs INSIDE the sandbox.

Without it such tests pass: numpy broadcasts an empty array beside any other to an empty result, for which `all` is
true; `zip` and `map` of an empty list and another one give nothing, and those of a list that is too short stop at its
end. The changed tests raise AssertionError, for a list that is not empty only beside one that the tests write out. The
text of this file is sent into sessions, so it imports only the standard library. Left out: loops that read only the
returned value (`all(x > 0 for x in f(1))`), results that are too long, arrays that are repeated to fit, and NaN if a
test denies that a difference is large (`not abs(f(1) - 2) > 1e-6`).
"""

import ast
import builtins
import importlib
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

_OPERATORS = {
    "Eq": "eq", "NotEq": "ne", "Lt": "lt", "LtE": "le", "Gt": "gt", "GtE": "ge",
    "Add": "add", "Sub": "sub", "Mult": "mul", "Div": "truediv",
}  # fmt: skip
"""Names of functions of `operator`, by the name of the node."""
_BROADCASTING = {
    "allclose": lambda _: False,
    "array_equiv": lambda _: False,
    "equal": lambda numpy: numpy.zeros(1, bool),
    "isclose": lambda numpy: numpy.zeros(1, bool),
}
"""Functions of numpy that find nothing wrong with an empty array beside any other, and what they are to return then."""
_GUARD = "<guard>"
"""Name under which tests call a guarded operation; no name that they could use."""
_PARALLEL_GUARD = "<guard parallel>"
_PARALLEL = {"zip": 0, "map": 1}
"""Functions that go through several values side by side, and the first argument that is one of those."""
_DISPLAYS = ast.List | ast.Tuple
_UNLIKE = "an empty value is compared with one that is not"
_SHORTER = "what is returned is shorter than what is expected"


def calls(nodes: Sequence[ast.AST], names: set[str]) -> Iterator[ast.Call]:
    """Yield the calls of functions of these names."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield node


def program_names(nodes: Sequence[ast.AST], function: str) -> set[str]:
    """Return the names by which tests call the program: its function, and the argument of `check`."""
    checks = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == "check" and node.args.args]
    return {function, *(node.args.args[0].arg for node in checks)}


def returned(nodes: Sequence[ast.AST], names: set[str]) -> set[str]:
    """Return the variables that hold a return value of these functions, or anything that is computed from one."""
    variables: set[str] = set()
    flows = list(_flows(nodes))
    size = -1
    while size < len(variables):
        size = len(variables)
        for source, bound in flows:
            inner = list(ast.walk(source))
            if list(calls(inner, names)) or any(isinstance(node, ast.Name) and node.id in variables for node in inner):
                variables |= bound
    return variables


def _written_out(nodes: Sequence[ast.AST], names: set[str]) -> set[str]:
    """Return the variables that only ever hold lists and tuples of the tests' text, and that no program is given."""
    sources: dict[str, list[ast.AST]] = {}
    for source, bound in _flows(nodes):
        for name in bound:
            sources.setdefault(name, []).append(source)
    inputs = {node.id for call in calls(nodes, names) for node in ast.walk(call) if isinstance(node, ast.Name)}
    return {
        name for name, values in sources.items() if all(isinstance(source, _DISPLAYS) for source in values)
    } - inputs


def _flows(nodes: Sequence[ast.AST]) -> Iterator[tuple[ast.AST, set[str]]]:
    """Yield each expression that is assigned, or passed to a function of the tests, with the names that receive it."""
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    defined = {function.name: [parameter.arg for parameter in function.args.args] for function in functions}
    for call in calls(nodes, set(defined)):
        yield from ((argument, {name}) for name, argument in zip(defined[_name(call)], call.args, strict=False))
        yield from ((keyword.value, {keyword.arg}) for keyword in call.keywords if keyword.arg)
    for node in nodes:
        source = getattr(node, "iter", None) or getattr(node, "value", None) or getattr(node, "context_expr", None)
        targets = getattr(node, "targets", None) or [getattr(node, "target", getattr(node, "optional_vars", None))]
        if isinstance(source, ast.AST) and targets != [None]:
            yield source, set().union(*map(_names, targets))


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def guarded(tree: ast.Module, function: str, arrays: bool) -> ast.Module:
    """Return the tests with guards (`GUARDS`) at operations on results of `function`, or at all if `arrays` is True."""
    nodes = list(ast.walk(tree))
    names = program_names(nodes, function)
    with suppress(RecursionError):  # What is nested more deeply stays as it is.
        _Guarding(names | returned(nodes, names), _written_out(nodes, names), arrays).visit(tree)
    return ast.fix_missing_locations(tree)


class _Guarding(ast.NodeTransformer):
    def __init__(self, results: set[str], written: set[str], arrays: bool) -> None:
        """`results` are the names of the program and of variables with its results, `written` those that tests write
        out.
        """
        self.results, self.written, self.arrays = results, written - results, arrays

    def visit(self, node: ast.AST) -> ast.AST:
        """Replace an operation by a call of the guard."""
        if isinstance(node, ast.Constant) or len(getattr(node, "elts", ())) > 1_000:  # Data: megabytes in some tests.
            return node
        self.generic_visit(node)
        if isinstance(node, ast.Call) and _name(node) in _PARALLEL:
            self._parallel(node, _PARALLEL[_name(node)])
        match node:
            case ast.Compare(left=left, ops=[kind], comparators=[right]) | ast.BinOp(left=left, op=kind, right=right):
                name = type(kind).__name__
            case _:
                return node
        from_program = [bool(_names(operand) & self.results) for operand in (left, right)]
        arguments: list[ast.expr] = [ast.Constant(name), *map(ast.Constant, from_program), left, right]
        call = ast.copy_location(ast.Call(ast.Name(_GUARD, ast.Load()), arguments, []), node)
        return call if name in _OPERATORS and (self.arrays or any(from_program)) else node

    def _parallel(self, node: ast.Call, first: int) -> None:
        """Guard the arguments of a call of `zip` or `map`, from the argument `first` on."""
        read = [_names(argument) for argument in node.args[first:]]
        # zip(xs, f(xs)) may be empty by right, and so may zip(ys, ys[1:]).
        written = [
            at
            for at, argument in enumerate(node.args[first:])
            if isinstance(argument, _DISPLAYS) or (isinstance(argument, ast.Name) and argument.id in self.written)
        ]
        others = [
            (
                at,
                [other for other, other_names in enumerate(read) if not names & other_names - vars(builtins).keys()],
                [other for other in written if not read[other] & self.results],
            )
            for at, names in enumerate(read)
            if names & self.results
        ]
        pairs = [pair for pair in others if pair[1]]
        if pairs and not any(isinstance(argument, ast.Starred) for argument in node.args):
            arguments = [ast.parse(repr(pairs), mode="eval").body, *node.args[first:]]
            call = ast.copy_location(ast.Call(ast.Name(_PARALLEL_GUARD, ast.Load()), arguments, []), node)
            node.args = [*node.args[:first], ast.Starred(call, ast.Load())]


def _names(node: ast.AST) -> set[str]:
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}


def _guard(name: str, of_left: bool, of_right: bool, left: Any, right: Any) -> Any:
    """Return the result of an operation; raise AssertionError if only one of its operands is an empty array.

    `of_left` and `of_right` say whether an operand comes from the program's result. An empty array and a number raise
    only in `==` and `-` with such a result (`f(1) == 5.0`): tests may count the values above 0 in an array of their
    own.
    """
    arrays = any(type(operand).__module__ == "numpy" and getattr(operand, "shape", ()) for operand in (left, right))
    if arrays and _one_is_empty(left, right, (of_left or of_right) and name in ("Eq", "Sub")):
        raise AssertionError(_UNLIKE)
    return getattr(operator, _OPERATORS[name])(left, right)


def _guard_parallel(others: list[tuple[int, list[int], list[int]]], *values: Any) -> tuple[Any, ...]:
    """Return the arguments of `zip` or `map`; raise AssertionError if a result is empty and none of its `others` is.

    A result must not be shorter than an argument that the tests write out, either.
    """
    sizes = [operator.length_hint(value, -1) for value in values]
    for at, beside, written in others:
        if sizes[at] == 0 and all(sizes[other] for other in beside) and max(sizes[other] for other in beside) > 0:
            raise AssertionError(_UNLIKE)
        if any(0 < sizes[at] < sizes[other] for other in written):
            raise AssertionError(_SHORTER)
    return values


def _one_is_empty(left: Any, right: Any, with_numbers: bool = True) -> bool:
    """Return whether one of two values is empty as an array and the other is not."""
    numpy = importlib.import_module("numpy")
    try:
        shapes = [numpy.shape(operand) for operand in (left, right)]
    except ValueError:  # Lists that are no array.
        return False
    return len({0 in shape for shape in shapes}) == 2 and (with_numbers or () not in shapes)


GUARDS = {_GUARD: _guard, _PARALLEL_GUARD: _guard_parallel}
"""Names that guarded tests need beside their own."""


def guard_numpy() -> None:
    """Replace numpy's comparing functions, so that they fail if only one of two arrays is empty."""
    try:
        numpy, testing = importlib.import_module("numpy"), importlib.import_module("numpy.testing")
    except ImportError:
        return

    def watched(compare: Callable[..., Any], unlike: Callable[[Any], Any]) -> Callable[..., Any]:
        def compared(*args: Any, **kwargs: Any) -> Any:
            both = [*args, *kwargs.values()][:2]
            return unlike(numpy) if len(both) == 2 and _one_is_empty(*both) else compare(*args, **kwargs)

        # A ufunc has methods: np.equal.outer.
        vars(compared).update({name: getattr(compare, name) for name in dir(compare) if not name.startswith("_")})
        return compared

    def fail(_: Any) -> None:
        raise AssertionError(_UNLIKE)

    for name, unlike in _BROADCASTING.items():
        setattr(numpy, name, watched(getattr(numpy, name), unlike))
    for name in testing.__all__:
        if name.startswith("assert_") and "raises" not in name and "warns" not in name:
            setattr(testing, name, watched(getattr(testing, name), fail))
