"""The modules that a zygote imports before it is forked, and the choice of the zygote for a program.

"bare" has the small modules of the standard library that programs use most, "numpy" has numpy as well, "scientific" has
sympy too: a process with more modules takes longer to fork. The libraries are also used once, because their first use
takes longer than their import. A module that is not installed is left out. A program imports any other module itself.
"""

import contextlib
import io
import re
from importlib import import_module
from typing import Any

BARE = (
    "bisect", "collections", "contextlib", "dataclasses", "datetime", "fractions", "functools", "heapq", "itertools",
    "json", "math", "operator", "random", "re", "statistics", "string", "textwrap", "time", "traceback", "typing",
)  # fmt: skip
LIBRARIES = {"bare": (), "numpy": ("numpy",), "scientific": ("numpy", "sympy", "mpmath")}
SYMPY = re.compile(rb"\b(?:sympy|mpmath)\b")
NUMPY = re.compile(rb"\b(?:numpy|scipy|pandas|networkx|matplotlib|sklearn|statsmodels)\b")
"""Names whose import needs numpy. A match in a comment does no harm: it only chooses a zygote that forks
more slowly."""

WARM_NUMPY = """
import numpy
work = (
    lambda: numpy.arange(9.0).sum() + numpy.random.default_rng(0).random() + numpy.linalg.det(numpy.eye(3)),
    lambda: numpy.linalg.solve(numpy.eye(3), numpy.ones(3)) @ numpy.ones((3, 2)),
    lambda: repr(numpy.random.rand(3)) + str(numpy.linalg.eigvals(numpy.diag([1.0, 2.0]))),
)
"""
WARM_SYMPY = """
from sympy import *
x, y = symbols("x y")
work = (
    lambda: str(factor(x**4 - 1)) + str(factor(x**12 - 1)) + str(expand((x + y) ** 5)) + latex(x**2 / y),
    lambda: str(simplify(sin(x) ** 2 + cos(x) ** 2)) + str(simplify((x**2 - 1) / (x - 1))),
    lambda: str(solve(x**2 - 5 * x + 6, x)) + str(solve([x + y - 3, x - y - 1], [x, y])),
    lambda: str(solveset(x**2 - 4, x)) + str(roots(x**3 - 6 * x**2 + 11 * x - 6)),
    lambda: str(integrate(x**2 * exp(x), x)) + str(diff(sin(x) * x**2, x)) + str(limit(sin(x) / x, x, 0)),
    lambda: str(summation(x, (x, 1, y))) + str(series(exp(x), x, 0, 4)) + str(sqrt(8)) + str(Rational(3, 6)),
    lambda: str(Matrix([[1, 2], [3, 4]]).inv()) + str(Matrix([[2, 0], [0, 3]]).eigenvals()) + str(pi.evalf(30)),
    lambda: str(factorint(360)) + str(isprime(10**9 + 7)) + str(gcd(12, 18)) + str(sympify("2*x + 1")) + str(N(E)),
)
"""
WARM = {"numpy": WARM_NUMPY, "sympy": WARM_SYMPY}
"""Calls of numpy and sympy that agents often make. Each line is run separately: if a version lacks one, the others
still run."""


def choose(program: bytes) -> str:
    """Return the name of the zygote that fits a program best: "scientific", "numpy" or "bare"."""
    return "scientific" if SYMPY.search(program) else "numpy" if NUMPY.search(program) else "bare"


def load(name: str) -> None:
    """Import the modules of this zygote and use them once."""
    for module in BARE + LIBRARIES[name]:
        with contextlib.suppress(ImportError):
            import_module(module)
    for library in LIBRARIES[name]:
        names: dict[str, Any] = {"__name__": "warm"}
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(ImportError):
            exec(WARM.get(library, "work = ()"), names)
            for work in names["work"]:
                with contextlib.suppress(Exception):  # it only warms; what fails is for a program to meet
                    work()
