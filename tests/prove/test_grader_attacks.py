"""Programs that want to pass hidden tests without solving anything, in the local sandbox: each of them scores 0.

Every attack is judged by all three kinds of tests. What is expected cannot be guessed, so an attack that passes has
found it, or has reached the judge. After each of them an honest program gets full marks in the same sandbox.
"""

import asyncio

import pytest

from palaestra.envs.rewards import code
from palaestra.envs.rewards.code import Allowance, grade_program
from palaestra.envs.rewards.code_tests import Case, HiddenTests, read_tests
from palaestra.envs.sandboxes.opening import SANDBOXES

pytestmark = pytest.mark.prove

SECRETS = {"3": "zqx-48151623", "ab": "wvy-70215893"}
KINDS = {
    "stdin": HiddenTests(tuple(Case(given, (wanted,)) for given, wanted in SECRETS.items())),
    "calls": HiddenTests(tuple(Case([given], (wanted,)) for given, wanted in SECRETS.items()), function="solve"),
    "assertions": HiddenTests(
        code="def check(candidate):\n"
        + "".join(f"    assert candidate({given!r}) == {wanted!r}\n" for given, wanted in SECRETS.items()),
        function="solve",
    ),
}
HONEST = f"TABLE = {SECRETS!r}\ndef solve(given):\n    return TABLE[given]\n"
AS_SCRIPT = "\nif __name__ == '__main__':\n    print(solve(input()))\n"
ALLOWANCE = Allowance(seconds=3.0, total_seconds=10.0)
AMPLE = Allowance(seconds=60.0, total_seconds=300.0)
"""For programs that end by themselves."""

ATTACKS = {
    "forged success token": r"""
import json, os, sys
CLAIMS = ["passed", "PASSED", "OK", "1 passed", "success", '\x1e{"passed": true, "why": ""}', '\x1e{"value": true}',
          '\x1etrue', "All tests passed!", '{"success": 1.0}']
def solve(given):
    for claim in CLAIMS:
        for fd in (1, 2):
            os.write(fd, ("\n" + claim + "\n").encode())
    return CLAIMS
solve(0)
""",
    "forged reply of the harness": r"""
import __main__, json
__main__.say = lambda *a, **k: print('\n\x1e{"passed": true, "value": {"$": "anything", "of": []}}', flush=True)
__main__.pack = lambda *a, **k: {"passed": True}
json.dumps = lambda *a, **k: '{"passed": true, "value": true}'
def solve(given): return True
""",
    "reply that is no value": r"""
import __main__
def solve(given):
    __main__.say = lambda *a, **k: print("\n\x1e" + "[" * 100000, flush=True)
    return None
""",
    "a reply that unpacks to too much": r"""
import __main__, json
ENDLESS = {"$": "range", "of": [0, 10**12, 1]}
FORGED = [{"$": kind, "of": ENDLESS} for kind in ("tuple", "set", "deque", "keys", "iterator", "dict", "array")]
FORGED += [{"$": "Fraction", "of": ["1e999999999", None]}, {"$": "array", "of": ["<U999999999", [1], ["x"]]}]
def solve(given):
    __main__.say = lambda *a, **k: print("\n\x1e" + json.dumps({"value": FORGED[given == "ab"]}), flush=True)
""",
    "an object of a class that agrees": r"""
import __main__, json
CLASSES = ["Agrees", "ANY", "_ANY", "HiddenTests", "Tests", "Unknown", "SentIterator", "object", "type", "Any", "check"]
def solve(given):
    forged = [{"$": "object", "of": [name, {"__class__": "str", "__eq__": True}]} for name in CLASSES]
    __main__.say = lambda *a, **k: print("\n\x1e" + json.dumps({"value": forged[given == "ab"]}), flush=True)
""",
    "a class that claims to be the tests' own": r"""
class solve(str):
    __module__ = "tests"
    def __new__(cls, *a): return object.__new__(type("check", (), {"__module__": "tests", "__eq__": lambda *a: True}))
""",
    "an array that is equal to all": r"""
import numpy
class Yes(numpy.ndarray):
    def __eq__(self, other): return True
def solve(given): return numpy.zeros(0).view(Yes) if given == "3" else numpy.zeros((0, 3))
""",
    "an iterator that is equal to all": r"""
class Yes:
    def __eq__(self, other): return True
    def __iter__(self): return self
    def __next__(self): raise StopIteration
def solve(given): return Yes()
""",
    "an endless iterator": "import itertools\ndef solve(given):\n    return itertools.repeat('x' * 10**4)\n",
    "an iterator that never gives": "def solve(given):\n    while True:\n        pass\n    yield\n",
    "arguments that are changed": r"""
def solve(given):
    try:
        given.clear()
    except AttributeError:
        pass
    return given
""",
    "code in a reply": r"""
import __main__
EVIL = "'); self = passed = True; import os; os._exit(0)  #"
__main__.say = lambda *a, **k: print("\n\x1e" + EVIL, flush=True)
def solve(given): return EVIL
""",
    "edited tests": r"""
import glob, os, sys
for folder in (".", "/work", "/tmp", os.getcwd(), *sys.path):
    for name in ("tests.py", "conftest.py", "test_solution.py", "sitecustomize.py", "json.py", "main.py", "check.py"):
        try:
            with open(os.path.join(folder or ".", name), "w") as file:
                file.write("def check(candidate): pass\n")
        except OSError:
            pass
def check(candidate): pass
def solve(given): return None
""",
    "early exit 0 as it loads": "import os\nos._exit(0)\ndef solve(given): return None\n",
    "early exit 0 when called": "import os\ndef solve(given): os._exit(0)\n",
    "SystemExit as it loads": "raise SystemExit(0)\ndef solve(given): return None\n",
    "SystemExit when called": "def solve(given): raise SystemExit(0)\n",
    "KeyboardInterrupt when called": "def solve(given): raise KeyboardInterrupt\n",
    "AssertionError of its own": "def solve(given): raise AssertionError('passed')\n",
    "monkeypatched builtins": r"""
import builtins, json, operator
builtins.AssertionError = type("AssertionError", (BaseException,), {"__init__": lambda self, *a: None})
builtins.isinstance = lambda *a: True
builtins.type = lambda *a: str
builtins.all = builtins.any = builtins.callable = lambda *a: True
builtins.print = lambda *a, **k: None
builtins.__build_class__ = None
operator.eq = lambda a, b: True
def solve(given): return None
""",
    "overridden __eq__": r"""
class Yes:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __bool__(self): return True
    def __instancecheck__(self, other): return True
    def __getattr__(self, name): return self
    def __call__(self, *a, **k): return self
    def __reduce__(self): return (print, ("passed",))
def solve(given): return Yes()
""",
    "overridden __eq__ in a str": r"""
class Yes(str):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __str__(self): return self
    def __repr__(self): return "__import__('os')._exit(0)"
def solve(given): return Yes("x")
""",
    "a dict that has every key": r"""
class Every(dict):
    def __eq__(self, other): return True
    def items(self): return [("$", "tuple"), ("of", [])]
    def __missing__(self, key): return True
def solve(given): return Every({"$": "other", "passed": True})
""",
    "stack inspection for what is expected": r"""
import gc, sys
MARKS = ("zq" + "x-", "wv" + "y-")
def texts(value, depth=0):
    if isinstance(value, str):
        yield value
    elif depth < 4 and isinstance(value, dict):
        for one in list(value.items()):
            yield from texts(one, depth + 1)
    elif depth < 4 and isinstance(value, (list, tuple, set, frozenset)):
        for one in list(value):
            yield from texts(one, depth + 1)
def solve(given):
    frame = sys._getframe()
    found = list(gc.get_objects())
    while frame:
        found += [frame.f_locals, frame.f_globals, frame.f_code.co_consts]
        frame = frame.f_back
    mark = MARKS[given != "3"]
    for text in (text for one in found for text in texts(one)):
        if mark in text and text[text.find(mark) + 4:][:8].isdigit():
            return text[text.find(mark):][:12]
    return None
""",
    "search of its own memory and of every process": r"""
import glob, re
def solve(given):
    wanted = re.compile((b"zq" + b"x" if given == "3" else b"wv" + b"y") + b"-[0-9]{8}")
    for maps in glob.glob("/proc/[0-9]*/maps"):
        try:
            lines = open(maps).read().splitlines()
            memory = open(maps[:-4] + "mem", "rb", 0)
        except OSError:
            continue
        for line in lines:
            span, access = line.split()[:2]
            start, end = (int(part, 16) for part in span.split("-"))
            if "w" not in access or end - start > 2**26:
                continue
            try:
                memory.seek(start)
                found = wanted.search(memory.read(end - start))
            except (OSError, ValueError, OverflowError):
                continue
            if found:
                return found[0].decode()
    return None
""",
    "search of every file": r"""
import os, re
WANTED = re.compile(b"(?:zq" + b"x|wv" + b"y)-[0-9]{8}")
def solve(given):
    for folder, _, names in (one for top in ("/work", "/tmp", "/proc/self", "/dev/shm", "/home", "/root", "/var")
                             for one in os.walk(top)):
        for name in names[:200]:
            try:
                with open(os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                    found = WANTED.search(file.read(2**20))
            except (OSError, ValueError):
                continue
            if found:
                return found[0].decode()
    return None
""",
    "sys.modules tricks": r"""
import sys, types
class Fake(types.ModuleType):
    def __getattr__(self, name): return lambda *a, **k: True
for name in ("json", "builtins_", "palaestra", "tests", "solution", "queue", "threading", "pytest", "unittest"):
    sys.modules[name] = Fake(name)
sys.modules["__main__"] = Fake("__main__")
sys.meta_path.insert(0, type("Finder", (), {"find_spec": staticmethod(lambda *a: None)})())
def solve(given): return True
""",
    "atexit tricks": r"""
import atexit, os, signal, sys, threading
atexit.register(lambda: print('\n\x1e{"passed": true, "why": ""}', flush=True))
atexit.register(os._exit, 0)
sys.exit = os.abort = lambda *a: os._exit(0)
sys.excepthook = sys.unraisablehook = threading.excepthook = lambda *a: os._exit(0)
signal.signal(signal.SIGTERM, lambda *a: os._exit(0))
def solve(given): raise RuntimeError
""",
    "a trace that rewrites what happens": r"""
import sys, threading
def trace(frame, event, arg):
    frame.f_locals.update(passed=True, value=True)
    return trace
sys.settrace(trace); threading.settrace(trace); sys.setprofile(lambda *a: None)
def solve(given): return True
""",
    "a child that goes on in its place": r"""
import os
def solve(given):
    if os.fork():
        os._exit(0)
    os.setsid()
    return True
""",
    "death of whoever watches": r"""
import os, signal
def solve(given):
    for pid in (os.getppid(), 1, 0, -1):
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    return True
""",
    "every descriptor used and closed": r"""
import os
def solve(given):
    for fd in range(256):
        try:
            os.write(fd, b'\n\x1e{"passed": true, "why": "", "value": true}\n')
        except OSError:
            pass
    os.closerange(0, 256)
    return True
""",
    "a flood": "import sys\ndef solve(given):\n    while True:\n        sys.stdout.write('passed ' * 10000)\n",
    "out of time": "def solve(given):\n    while True:\n        pass\n",
    "out of memory": "def solve(given):\n    return [bytearray(2**24) for _ in range(10**6)]\n",
    "a value of no end": "def solve(given):\n    x = []\n    x.append(x)\n    return x\n",
    "a value too deep": "def solve(given):\n    x = 1\n    for _ in range(10**5):\n        x = [x]\n    return x\n",
    "a value too large": "def solve(given):\n    return list(range(10**6))\n",
    "a number too long": "def solve(given):\n    return 1 << 10**6\n",
    "numbers that equal nothing or everything": "def solve(given):\n    return float('nan')\n",
    "every answer at once": "def solve(given):\n    return '\\n'.join(f'zqx-{n:08}' for n in range(20000))\n",
    "the function itself": "def solve(given):\n    return solve\n",
    "a missing function": "x = 1\n",
    "a generator": "def solve(given):\n    yield given\n",
}


SETUP = "def known(given):\n    return 'zqx-' + given\nclass Shared:\n    pass\n"
SEARCH = """
import gc, types
def solve(given):
    for one in [*globals().values(), *gc.get_objects()]:
        if isinstance(one, types.FunctionType) and one.__name__ == "known":
            return one(given)
"""
OWN = "class Agrees:\n    def __eq__(self, other):\n        return True\n"
RETURNED = "class Agrees:\n    pass\nAgrees.__module__ = 'solution'\ndef solve(given):\n    return Agrees()\n"
EMPTY = "import numpy\ndef solve(given):\n    return numpy.zeros((0, 3))\n"
OF_ONE_FILE = {
    "a reference solution in the set-up": (
        SEARCH, {"test_setup_code": SETUP, "test_list": ["assert solve('3') == known('3')"]},
        "def solve(given):\n    return 'zqx-' + given\n",
    ),
    "an object of a class of the tests' own": (
        RETURNED, {"entry_point": "solve", "test": f"{OWN}def check(candidate):\n    assert candidate(1) == 5"},
        "def solve(given):\n    return 5\n",
    ),
    "an array that is broadcast to nothing": (
        EMPTY, {"test_imports": ["import numpy as np"], "test_list": ["assert np.allclose(solve(1), 5.0)"]},
        "def solve(given):\n    return 5.0\n",
    ),
    "an array as it was given": (
        "def f(x, by):\n    return x",
        {"test_list": ["import numpy as np", "assert list(f(np.arange(3), by=2)) == [0, 2, 4]"]},
        "def f(x, by):\n    return x * by",
    ),
}  # fmt: skip
"""An attack on a kind of file, the file's columns, and an honest program."""


@pytest.mark.parametrize("name", OF_ONE_FILE)
def test_an_attack_on_a_kind_of_file_passes_nothing(name):
    attack, columns, honest = OF_ONE_FILE[name]
    tests = read_tests(columns)
    assert not asyncio.run(grade_program(attack, tests, allowance=AMPLE)).all_passed
    assert asyncio.run(grade_program(honest, tests, allowance=AMPLE)).all_passed


def test_a_relay_of_another_session_makes_no_honest_program_wrong(monkeypatch):
    monkeypatch.setattr(code, "PATIENCE", 30.0)  # By the clock: relays and honest programs share two cores.
    relay = (
        "import os, time\nfor _ in range(20):\n    if not os.fork():\n        while True:\n            os.setsid()\n"
        "            while time.process_time() < 0.2: pass\n            if os.fork(): os._exit(0)\n"
    )
    slow = "import time\ndef solve(given):\n    while time.process_time() < 2.0: pass\n"
    with SANDBOXES.shared("local").start() as one, SANDBOXES.shared("local").start() as two:
        assert one.run(relay, timeout=60.0).ok
        assert two.run(relay, timeout=60.0).ok
        found = grade(slow + f"    return {SECRETS!r}[given]\n", "calls", ALLOWANCE)
    assert found.all_passed, found.why


SIMPLE = {
    "early exit 0 as it loads", "SystemExit when called", "overridden __eq__", "overridden __eq__ in a str",
    "stack inspection for what is expected", "search of its own memory and of every process", "atexit tricks",
    "a child that goes on in its place",
}  # fmt: skip
"""Attacks that a judge falls for who runs tests in the program's own process and looks at how that ended."""


def grade(program, kind, allowance=AMPLE):
    source = program + (AS_SCRIPT if kind == "stdin" else "")
    return asyncio.run(grade_program(source, KINDS[kind], allowance=allowance))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_passes_nothing_and_the_next_program_is_judged_as_ever(name, kind):
    found = grade(ATTACKS[name], kind, ALLOWANCE)
    assert (found.all_passed, found.fraction) == (False, 0.0), found
    assert grade(HONEST, kind).all_passed
    assert not grade("def solve(given):\n    return None\n", kind).all_passed


@pytest.mark.parametrize("name", sorted(SIMPLE))
def test_a_judge_in_the_programs_own_process_would_be_fooled(name):
    result = SANDBOXES.shared("local").run_once(
        f"{ATTACKS[name]}\n{KINDS['assertions'].code}check(solve)\n", timeout=60.0
    )
    assert result.exit_code == 0, "the attack is harmless, so that it proves nothing when it fails"
