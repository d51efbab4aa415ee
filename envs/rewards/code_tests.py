"""Hidden tests of a program, read from the columns that data sets keep them in.

    inputs, outputs, fn_name          APPS, as `input_output`; also PrimeIntellect's and Skywork's answer column
    public_ and private_test_cases    LiveCodeBench; the private ones as base64 of zlib of a pickled JSON text
    test, entry_point                 HumanEval: code that defines check(candidate)
    test_list                         MBPP: assertions, with test_setup_code and test_imports
    verification_info                 PrimeIntellect: test_cases, of programs or of functions

Nothing is unpickled: a pickle that holds one text has few opcodes, and one with any other is refused. Left out: tests
that judge by a program of their own (special judges), and MBPP's challenge_test_list.
"""

import base64
import binascii
import json
import keyword
import pickletools
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from palaestra.envs.rewards.code_assertions import function_of, judgeable, shapes, split_setup
from palaestra.errors import UsageError

MAX_TEST_BYTES = 256 * 2**20
"""Size of a problem's tests once they are unpacked."""
MAX_CASES = 1000
_PICKLED_TEXT = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT", "STOP"}
_LONG_INTEGER = re.compile(r"\d{4300}")
_TEXT = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"}


@dataclass(frozen=True, slots=True)
class Case:
    given: Any
    """What comes on stdin, or the list of arguments."""
    accepted: tuple[Any, ...]
    """Outputs or values, any of which is right."""


@dataclass(frozen=True, slots=True)
class HiddenTests:
    """Either cases, or code that asserts."""

    cases: tuple[Case, ...] = ()
    function: str = ""
    """What is called; "" for a program that reads stdin."""
    code: str = ""
    """Tests in Python: they define check(candidate), or call `function` as they run."""
    context: str = ""
    """Runs before the program and before the tests: imports, classes, functions that the agent was shown."""

    def asked(self) -> str:
        """What to define, in words; "" for a program that reads stdin."""
        if not self.function:
            return ""
        given = shapes(self.code, self.function) if self.code else [(len(case.given), ()) for case in self.cases]
        known = [one for one in given if one is not None]
        counts = sorted({count for count, _ in known})
        names = sorted({name for _, named in known for name in named})
        if not counts or len(known) < len(given):
            return f"Define a function `{self.function}`."
        many = f"{' or '.join(map(str, counts))} argument{'' if counts == [1] else 's'}"
        by_name = f"; given by name: {', '.join(f'`{name}`' for name in names)}" if names else ""
        return f"Define a function `{self.function}` of {many}{by_name}."


def read_tests(columns: Mapping[str, Any], answer: Any = None, shown: str = "") -> HiddenTests:
    """The tests of a problem; a ValueError says what is wrong. `answer` is looked at where no column helps.

    `shown` is what the agent is asked: functions of a set-up that stand in it may be handed to the program.
    """
    if not isinstance(columns, Mapping):
        raise UsageError(f"columns is {str(columns)[:40]!r}; expected a mapping of names to what stands there")
    if "private_test_cases" in columns or "public_test_cases" in columns:
        return _livecodebench(columns)
    if isinstance(columns.get("test"), str) and isinstance(columns.get("entry_point"), str):
        name = _named(columns["entry_point"])
        context, made = split_setup(str(columns.get("context") or ""), name, shown)
        judgeable(made + columns["test"], name, context)
        return HiddenTests(code=made + columns["test"], function=name, context=context)
    if columns.get("test_list"):
        setup = "\n".join(_lines(columns.get(name) or "") for name in ("test_imports", "test_setup_code"))
        return _assertions(_listed(columns["test_list"]), setup, shown)
    for name in ("input_output", "tests", "verification_info"):
        if columns.get(name):
            return _any(_json(columns[name], name))
    if answer is not None:
        return _any(_json(answer, "the answer"))
    raise ValueError(
        "it has no tests; expected a column input_output, private_test_cases, test with entry_point, test_list, "
        "tests, verification_info, or an answer that holds inputs and outputs (found "
        f"{', '.join(map(str, columns)) or 'no column'})"
    )


def _any(found: Any) -> HiddenTests:
    if isinstance(found, Mapping) and "test_cases" in found:
        language = found.get("language") or "python"
        if language not in ("python", "python3"):
            raise ValueError(f"its tests are for {str(language)[:40]}; programs are run as Python")
        found = found["test_cases"]
    if isinstance(found, Mapping) and "inputs" in found:
        return _inputs_and_outputs(found)
    if isinstance(found, list) and found and all(isinstance(one, Mapping) for one in found):
        return _typed_cases(found, "")
    if isinstance(found, list) and found and all(isinstance(one, str) for one in found):
        return _assertions(found)
    raise ValueError(
        'tests are neither {"inputs": [...], "outputs": [...]}, nor a list of cases, nor one of assertions'
    )


def _inputs_and_outputs(found: Mapping[str, Any]) -> HiddenTests:
    """APPS. What a function returns is there in a list of one, or bare: both are accepted."""
    inputs, outputs = found.get("inputs"), found.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise ValueError("inputs and outputs are no two lists of the same length")
    name = found.get("fn_name") or ""
    if not name:
        cases = [Case(_lines(given), (_lines(wanted),)) for given, wanted in zip(inputs, outputs, strict=True)]
        return _checked(HiddenTests(tuple(cases)))
    cases = []
    for given, wanted in zip(inputs, outputs, strict=True):
        if not isinstance(given, list):
            raise ValueError(f"an input of the function {name!r} is {str(given)[:40]!r}; expected a list of arguments")
        one = isinstance(wanted, list) and len(wanted) == 1
        cases.append(Case(given, (wanted[0], wanted) if one else (wanted,)))
    return _checked(HiddenTests(tuple(cases), _named(name)))


def _lines(value: Any) -> str:
    """Text that is given whole, or as a list of lines."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _livecodebench(columns: Mapping[str, Any]) -> HiddenTests:
    found = []
    for name in ("public_test_cases", "private_test_cases"):
        if value := columns.get(name):
            listed = _json(value, name) if not isinstance(value, str) or value.lstrip()[:1] == "[" else _packed(value)
            if not isinstance(listed, list) or not all(isinstance(one, Mapping) for one in listed):
                raise ValueError(f"{name} holds no list of test cases")
            found += listed
    metadata = _json(columns.get("metadata") or {}, "metadata")
    return _typed_cases(found, str(metadata.get("func_name") or "") if isinstance(metadata, Mapping) else "")


def _typed_cases(found: Sequence[Mapping[str, Any]], function: str) -> HiddenTests:
    """Cases with an input, an output and a type; a function's arguments stand one a line, each as JSON.

    Those of PrimeIntellect are of the type function_call and hold their arguments as APPS does.
    """
    kinds = {str(one.get("testtype", one.get("type", "stdin"))) for one in found}
    if len(kinds) > 1:
        raise ValueError(f"its cases are of several types: {', '.join(sorted(kinds))}")
    calls = bool(kinds) and kinds <= {"functional", "function_call"}
    named = [_named(name) for one in found if calls and (name := _function_of_case(one) or function)]
    if calls and len(set(named)) != 1:
        found_names = ", ".join(sorted(set(named))) or "not there"
        raise ValueError(f"its cases call a function; its one func_name or fn_name is {found_names}")
    if kinds == {"function_call"}:
        inputs, outputs = ([one.get(key) for one in found] for key in ("input", "output"))
        return _inputs_and_outputs({"fn_name": named[0], "inputs": inputs, "outputs": outputs})
    cases = []
    for one in found:
        given, wanted = one.get("input"), one.get("output")
        if calls:
            lines = [line for line in str(given).split("\n") if line.strip()]
            cases.append(Case([_json(line, "an input") for line in lines], (_json(wanted, "an output"),)))
        else:
            cases.append(Case(_lines(given), (_lines(wanted),)))
    return _checked(HiddenTests(tuple(cases), named[0] if calls else ""))


def _function_of_case(case: Mapping[str, Any]) -> Any:
    metadata = case.get("metadata")
    return case.get("fn_name") or (metadata.get("func_name") if isinstance(metadata, Mapping) else None)


def _assertions(listed: Sequence[Any], setup: str = "", shown: str = "") -> HiddenTests:
    """Of a set-up the values and the functions are with the tests alone."""
    code = "\n".join(map(str, listed))
    name = function_of(code, *split_setup(setup, "", shown))
    context, made = split_setup(setup, name, shown)
    judgeable(made + code, name, context)
    return HiddenTests(code=made + code, function=name, context=context)


def _listed(value: Any) -> list[Any]:
    """A list, or text that holds one, or a single assertion."""
    if isinstance(value, str):
        value = _json(value, "test_list") if value.lstrip().startswith("[") else [value]
    if not isinstance(value, Sequence):
        raise ValueError(f"test_list is {str(value)[:40]!r}; expected a list of assertions")
    return list(value)


def _named(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"the function to define is {str(name)[:40]!r}, which is no name of Python")
    return name


def _checked(tests: HiddenTests) -> HiddenTests:
    if not tests.cases:
        raise ValueError("it has no test case")
    wanted = [case.accepted[0] for case in tests.cases]
    if all(one is None or (isinstance(one, str) and not one.strip()) for one in wanted):
        raise ValueError("none of its test cases expects any output, so a program that does nothing would pass them")
    if len(tests.cases) > MAX_CASES:
        raise ValueError(f"it has {len(tests.cases)} test cases; at most MAX_CASES, {MAX_CASES}, are run")
    return tests


def _json(value: Any, name: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        if _LONG_INTEGER.search(value):  # Python reads no decimal integer of more than 4,300 digits by itself.
            return json.loads(value, parse_int=lambda digits: int(Decimal(digits)))
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is no JSON: {str(error)[:80]}") from None


def _packed(value: str) -> Any:
    """base64, zlib, a pickle of one text, JSON: each opened in a way that what somebody wrote cannot act."""
    try:
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(base64.b64decode(value, validate=True), MAX_TEST_BYTES)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise ValueError(f"private_test_cases is neither JSON nor base64 of zlib: {error}") from None
    if unpacker.unconsumed_tail:
        raise ValueError(f"private_test_cases unpacks to more than MAX_TEST_BYTES, {MAX_TEST_BYTES:,} bytes")
    return _json(pickled_text(raw), "private_test_cases")


def pickled_text(raw: bytes) -> str:
    """The one text that a pickle holds, read without unpickling; a ValueError where it holds anything else."""
    texts = []
    try:
        for opcode, argument, _ in pickletools.genops(raw):
            if opcode.name in _TEXT:
                texts.append(str(argument))
            elif opcode.name not in _PICKLED_TEXT:
                raise ValueError(f"it uses {opcode.name}, which a text does not need")
    except ValueError as error:
        raise ValueError(f"private_test_cases is no pickle of one text, and nothing else is opened: {error}") from None
    if len(texts) != 1:
        raise ValueError(f"private_test_cases is a pickle of {len(texts)} texts; expected one")
    return texts[0]
