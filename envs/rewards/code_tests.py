"""Reads the hidden tests of a program from the columns of data sets.

    inputs, outputs, fn_name          APPS, as `input_output`; also PrimeIntellect's and Skywork's answer column
    public_ and private_test_cases    LiveCodeBench; the private ones as base64 of zlib of a pickled JSON text
    test, entry_point                 HumanEval: code that defines check(candidate)
    test_list                         MBPP: assertions, with test_setup_code and test_imports
    verification_info                 PrimeIntellect: test_cases, of programs or of functions

Nothing is unpickled: the text is read from the pickle's opcodes, and a pickle with opcodes that a text does not need is
refused. Left out: tests that judge by a program of their own (special judges), and MBPP's challenge_test_list.
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
"""Largest size of a problem's unpacked tests, in bytes."""
MAX_CASES = 1000
_PICKLED_TEXT = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT", "STOP"}
_LONG_INTEGER = re.compile(r"\d{4300}")
_TEXT = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"}


@dataclass(frozen=True, slots=True)
class Case:
    input: Any
    """Text on stdin, or the list of arguments."""
    accepted: tuple[Any, ...]
    """Outputs or return values, each of which is right."""


@dataclass(frozen=True, slots=True)
class HiddenTests:
    """Tests of a program: either cases, or code that asserts."""

    cases: tuple[Case, ...] = ()
    function: str = ""
    """Name of the function that is called; "" for a program that reads stdin."""
    code: str = ""
    """Tests in Python, which define check(candidate) or call `function` as they run."""
    context: str = ""
    """Code that runs before program and tests: imports, classes, functions that the agent was prompt."""

    def request(self) -> str:
        """Return the sentence that asks an agent to define the function; "" for a program that reads stdin."""
        if not self.function:
            return ""
        call_shapes = shapes(self.code, self.function) if self.code else [(len(case.input), ()) for case in self.cases]
        known_shapes = [shape for shape in call_shapes if shape is not None]
        counts = sorted({count for count, _ in known_shapes})
        names = sorted({name for _, keywords in known_shapes for name in keywords})
        if not counts or len(known_shapes) < len(call_shapes):
            return f"Define a function `{self.function}`."
        many = f"{' or '.join(map(str, counts))} argument{'' if counts == [1] else 's'}"
        by_name = f"; given by name: {', '.join(f'`{name}`' for name in names)}" if names else ""
        return f"Define a function `{self.function}` of {many}{by_name}."


def read_tests(columns: Mapping[str, Any], answer: Any = None, prompt: str = "") -> HiddenTests:
    """Return the tests of a problem; raise ValueError if they are wrong. `answer` is read if no column has tests.

    `prompt` is what the agent reads: functions of the set-up that it contains may be given to the program.
    """
    if not isinstance(columns, Mapping):
        raise UsageError(f"columns is {str(columns)[:40]!r}; expected a mapping of names to what stands there")
    if "private_test_cases" in columns or "public_test_cases" in columns:
        return _livecodebench(columns)
    if isinstance(columns.get("test"), str) and isinstance(columns.get("entry_point"), str):
        name = _named(columns["entry_point"])
        context, test_setup = split_setup(str(columns.get("context") or ""), name, prompt)
        judgeable(test_setup + columns["test"], name, context)
        return HiddenTests(code=test_setup + columns["test"], function=name, context=context)
    if columns.get("test_list"):
        setup = "\n".join(_lines(columns.get(name) or "") for name in ("test_imports", "test_setup_code"))
        return _assertions(_listed(columns["test_list"]), setup, prompt)
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


def _any(tests: Any) -> HiddenTests:
    if isinstance(tests, Mapping) and "test_cases" in tests:
        language = tests.get("language") or "python"
        if language not in ("python", "python3"):
            raise ValueError(f"its tests are for {str(language)[:40]}; programs are run as Python")
        tests = tests["test_cases"]
    if isinstance(tests, Mapping) and "inputs" in tests:
        return _inputs_and_outputs(tests)
    if isinstance(tests, list) and tests and all(isinstance(item, Mapping) for item in tests):
        return _typed_cases(tests, "")
    if isinstance(tests, list) and tests and all(isinstance(item, str) for item in tests):
        return _assertions(tests)
    raise ValueError(
        'tests are neither {"inputs": [...], "outputs": [...]}, nor a list of cases, nor one of assertions'
    )


def _inputs_and_outputs(tests: Mapping[str, Any]) -> HiddenTests:
    """Return tests in the form of APPS. A return value may be wrapped in a list of one: both forms are accepted."""
    inputs, outputs = tests.get("inputs"), tests.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise ValueError("inputs and outputs are no two lists of the same length")
    name = tests.get("fn_name") or ""
    if not name:
        cases = [
            Case(_lines(case_input), (_lines(output),)) for case_input, output in zip(inputs, outputs, strict=True)
        ]
        return _checked(HiddenTests(tuple(cases)))
    cases = []
    for case_input, output in zip(inputs, outputs, strict=True):
        if not isinstance(case_input, list):
            raise ValueError(
                f"an input of the function {name!r} is {str(case_input)[:40]!r}; expected a list of arguments"
            )
        single = isinstance(output, list) and len(output) == 1
        cases.append(Case(case_input, (output[0], output) if single else (output,)))
    return _checked(HiddenTests(tuple(cases), _named(name)))


def _lines(value: Any) -> str:
    """Return a text, which may be given as a list of lines."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _livecodebench(columns: Mapping[str, Any]) -> HiddenTests:
    all_cases = []
    for name in ("public_test_cases", "private_test_cases"):
        if value := columns.get(name):
            cases = _json(value, name) if not isinstance(value, str) or value.lstrip()[:1] == "[" else _packed(value)
            if not isinstance(cases, list) or not all(isinstance(case, Mapping) for case in cases):
                raise ValueError(f"{name} holds no list of test cases")
            all_cases += cases
    metadata = _json(columns.get("metadata") or {}, "metadata")
    return _typed_cases(all_cases, str(metadata.get("func_name") or "") if isinstance(metadata, Mapping) else "")


def _typed_cases(tests: Sequence[Mapping[str, Any]], function: str) -> HiddenTests:
    """Return tests from cases with an input, an output and a type; arguments are JSON, one per line.

    Cases of PrimeIntellect have the type function_call and hold their arguments as APPS does.
    """
    kinds = {str(typed_case.get("testtype", typed_case.get("type", "stdin"))) for typed_case in tests}
    if len(kinds) > 1:
        raise ValueError(f"its cases are of several types: {', '.join(sorted(kinds))}")
    calls = bool(kinds) and kinds <= {"functional", "function_call"}
    functions = [_named(name) for typed_case in tests if calls and (name := _function_of_case(typed_case) or function)]
    if calls and len(set(functions)) != 1:
        found_names = ", ".join(sorted(set(functions))) or "not there"
        raise ValueError(f"its cases call a function; its one func_name or fn_name is {found_names}")
    if kinds == {"function_call"}:
        inputs, outputs = ([typed_case.get(key) for typed_case in tests] for key in ("input", "output"))
        return _inputs_and_outputs({"fn_name": functions[0], "inputs": inputs, "outputs": outputs})
    cases = []
    for typed_case in tests:
        case_input, output = typed_case.get("input"), typed_case.get("output")
        if calls:
            lines = [line for line in str(case_input).split("\n") if line.strip()]
            cases.append(Case([_json(line, "an input") for line in lines], (_json(output, "an output"),)))
        else:
            cases.append(Case(_lines(case_input), (_lines(output),)))
    return _checked(HiddenTests(tuple(cases), functions[0] if calls else ""))


def _function_of_case(case: Mapping[str, Any]) -> Any:
    metadata = case.get("metadata")
    return case.get("fn_name") or (metadata.get("func_name") if isinstance(metadata, Mapping) else None)


def _assertions(assertions: Sequence[Any], setup: str = "", prompt: str = "") -> HiddenTests:
    """Return tests from assertions; only the tests get the values and functions of the set-up."""
    code = "\n".join(map(str, assertions))
    name = function_of(code, *split_setup(setup, "", prompt))
    context, test_setup = split_setup(setup, name, prompt)
    judgeable(test_setup + code, name, context)
    return HiddenTests(code=test_setup + code, function=name, context=context)


def _listed(value: Any) -> list[Any]:
    """Return a list from a list, from its JSON text, or from a single assertion."""
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
    outputs = [case.accepted[0] for case in tests.cases]
    if all(output is None or (isinstance(output, str) and not output.strip()) for output in outputs):
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
    """Return the JSON value in base64 of zlib of a pickle of one text. No code in the pickle is run."""
    try:
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(base64.b64decode(value, validate=True), MAX_TEST_BYTES)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise ValueError(f"private_test_cases is neither JSON nor base64 of zlib: {error}") from None
    if unpacker.unconsumed_tail:
        raise ValueError(f"private_test_cases unpacks to more than MAX_TEST_BYTES, {MAX_TEST_BYTES:,} bytes")
    return _json(pickled_text(raw), "private_test_cases")


def pickled_text(raw: bytes) -> str:
    """Return the one text of a pickle without unpickling it; raise ValueError if the pickle contains anything else."""
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
