"""Code that all drivers of `benchmarks/evaluation.py` share: the questions, the calculator, and the measurement.

Standard library only, because each driver runs with its own interpreter.
"""

import ast
import gc
import operator
import resource
import time

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def questions(count):
    """Return pairs of a question and its answer, always the same."""
    return [(f"What is {a} * {b}?", str(a * b)) for a, b in ((7 + n % 89, 3 + n // 89 % 97) for n in range(count))]


def calculate(expression):
    """Return the value of an expression of whole numbers."""

    def value(node):
        if isinstance(node, ast.BinOp):
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        return node.value

    return str(value(ast.parse(expression, mode="eval").body))


def measured(play, episodes):
    """Return CPU and wall time per episode, and the peak memory of the process. `play` returns the mean score."""
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    score = play()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    if score != 1.0:
        raise RuntimeError(f"the mean score is {score}; expected 1, since the server answers right")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"cpu_ms": 1e3 * cpu / episodes, "wall_ms": 1e3 * wall / episodes, "memory_mb": memory}
