"""Tools: schemas and checks come from the signature, results become text, and what cannot work is refused at once."""

import copy
import json
import pickle
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from palaestra import Broken, EnvironmentDefect, ToolError
from palaestra.envs import Game, TextEnv, ToolEnv, Toolkit, tool
from palaestra.envs.core.result import Done
from palaestra.envs.core.tool import WorkMode, collect
from palaestra.episode import Status


class Place(BaseModel):
    row: int
    name: str = "x"


class Kind(Enum):
    RED = "red"
    BLUE = "blue"


class Many:
    @tool
    def book(
        self, place: Place, kind: Literal["a", "b"], count: int = 2, schema: str | None = None, _model: Any = None
    ) -> str:
        """Book a place.

        In two lines.

        Args:
            place (Place): where to
                sit
            kind: which kind

        Returns:
            nothing the agent needs
        """
        return f"{place.row} {kind} {count} {schema} {_model}"

    @tool(name="look_up", timeout=3)
    async def find(self, query: Annotated[str, Field(description="what to find")]) -> str:
        """Find.

        Parameters
        ----------
        query : str
            ignored, the annotation wins
        """
        return query

    @tool(blocking=True)
    def wait(self, until: str = "") -> None:
        """Wait.

        :param until: when
        """

    @tool
    def paint(
        self,
        kind: Kind,
        spots: list[Place],
        day: date = date(2026, 1, 2),
        names: dict[str, int] = {},  # noqa: B006
        level: Annotated[int, Field(ge=0, le=9, description="how much")] = 3,
    ) -> str:
        """Paint spots."""
        return f"{kind.name} {spots[0].row} {day.year} {sorted(names)} {level}"

    @tool
    def take(self, text: str, count: int, share: float, flag: bool) -> str:
        return text

    @tool
    def rest(self) -> str:
        return ""


tools = collect(Many)


def test_schema_says_what_the_signature_and_the_docstring_say():
    book, paint = (tools[name].schema["function"] for name in ("book", "paint"))
    assert book["description"] == "Book a place. In two lines."
    assert tools["look_up"].schema["function"]["description"] == "Find."
    parameters = book["parameters"]
    assert list(parameters["properties"]) == ["place", "kind", "count", "schema", "_model"]
    assert parameters["required"] == ["place", "kind"]
    assert parameters["properties"]["kind"] == {"description": "which kind", "enum": ["a", "b"], "type": "string"}
    for name, parameter, said in (
        ("book", "place", "where to sit"), ("look_up", "query", "what to find"), ("wait", "until", "when")
    ):  # fmt: skip
        assert tools[name].schema["function"]["parameters"]["properties"][parameter]["description"] == said
    assert paint["parameters"]["$defs"]["Kind"]["enum"] == ["red", "blue"]
    assert paint["parameters"]["$defs"]["Place"]["required"] == ["row"]
    assert paint["parameters"]["properties"]["level"] == {
        "default": 3, "description": "how much", "maximum": 9, "minimum": 0, "type": "integer"
    }  # fmt: skip


def test_a_tool_is_still_a_method_made_once_and_gone_where_it_is_overridden():
    assert Many().wait() is None
    assert collect(Many)["book"] is tools["book"]
    assert [(tools[name].mode, tools[name].timeout) for name in ("book", "look_up", "wait")] == [
        (WorkMode.INLINE, 30.0), (WorkMode.ASYNC, 3), (WorkMode.BLOCKING, 30.0)
    ]  # fmt: skip
    fewer = type("Fewer", (Many,), {"wait": None, "paint": None})
    assert list(collect(fewer)) == ["book", "look_up", "take", "rest"]


# Arguments


@pytest.mark.parametrize(
    ("name", "written", "result", "received"),
    [
        ("book", {"place": {"row": "4"}, "kind": "a", "schema": 5}, "4 a 2 5 None",
         {"place": {"row": 4, "name": "x"}, "kind": "a", "count": 2, "schema": "5", "_model": None}),
        ("paint", {"kind": "blue", "spots": [{"row": 2}], "day": "2025-03-04", "names": {"a": "1"}},
         "BLUE 2 2025 ['a'] 3",
         {"kind": "blue", "spots": [{"row": 2, "name": "x"}], "day": "2025-03-04", "names": {"a": 1}, "level": 3}),
        ("take", {"text": 4, "count": 1.0, "share": 1, "flag": False}, "4",
         {"text": "4", "count": 1, "share": 1.0, "flag": False}),
    ],
)  # fmt: skip
def test_a_call_keeps_what_the_tool_received_as_plain_data(name, written, result, received):
    values = tools[name].validate(written)
    assert getattr(Many(), name)(**values) == result
    assert json.dumps(tools[name].received(written, values)) == json.dumps(received)


def test_what_the_check_leaves_alone_is_kept_as_the_same_objects_and_no_default_is_shared():
    for name, written in (
        ("take", {"text": "x", "count": 1, "share": 0.5, "flag": True}),
        ("rest", {}),
        ("paint", {"kind": "red", "day": "2026-01-02", "spots": [], "names": {"a": 1}, "level": 4}),
        ("book", {"place": {"name": "y", "row": 1}, "kind": "a", "count": 1, "schema": None, "_model": [{}]}),
    ):
        assert tools[name].received(written, tools[name].validate(written)) is written
    changed = {"kind": "red", "spots": [{"row": 1, "name": "y"}], "level": "4"}
    assert tools["paint"].received(changed, tools["paint"].validate(changed))["spots"] is changed["spots"]
    tools["paint"].validate({"kind": "red", "spots": []})["names"]["left"] = 1
    assert tools["paint"].validate({"kind": "red", "spots": []})["names"] == {}


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [("book", {"kind": "a"}, "place: Field required"), ("book", {"place": {"row": 1}, "kind": "c"}, "kind: "),
     ("book", {"place": {"row": 1}, "kind": "a", "more": 1}, "more: Extra"),
     ("book", {"place": "x", "kind": "a"}, "place: "), ("paint", {"kind": "green", "spots": []}, "kind: "),
     ("paint", {"kind": "red", "spots": {}}, "spots: "),
     ("paint", {"kind": "red", "spots": [{"row": 1}, {}]}, "spots.1.row: "),
     ("paint", {"kind": "red", "spots": [], "level": 10}, "level: "),
     ("paint", {"kind": "red", "spots": [], "names": {"a": "b"}}, "names.a: ")],
)  # fmt: skip
def test_wrong_arguments_are_told_in_one_line_by_their_place(name, arguments, said):
    with pytest.raises(ToolError) as caught:
        tools[name].validate(arguments)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    usage = {"book": "It takes: place, kind, count (optional)", "paint": "It takes: kind, spots, day (optional)"}
    assert usage[name] in str(caught.value)


def test_plain_arguments_come_out_as_pydantic_reads_them():
    quick = tools["take"]
    slow = replace(quick, signature=replace(quick.signature, plain=None))

    def outcome(one, given):
        try:
            return [(key, type(found), found) for key, found in one.validate(given).items()]
        except ToolError as error:
            return str(error)

    whole = {"text": "x", "count": 1, "share": 1.5, "flag": False}
    for name in (*whole, "more"):
        without = {key: found for key, found in whole.items() if key != name}
        assert outcome(quick, without) == outcome(slow, without)
        for value in ("x", "é", "\ud800", "4", 1, 10**30, True, 1.5, float("inf"), None, [], {}):
            given = {**whole, name: value}
            assert outcome(quick, given) == outcome(slow, given)


# Results


@dataclass
class Order:
    number: int
    places: list[Place]


@pytest.mark.parametrize(
    ("result", "text"),
    [("as it is", "as it is"), (None, "null"), (True, "true"), (3, "3"), (0.5, "0.5"), ([1, "é"], '[1, "é"]'),
     ({"a": None, 3: (1,)}, '{"a": null, "3": [1]}'), (MappingProxyType({"a": 1}), '{"a": 1}'),
     (Order(1, [Place(row=2)]), '{"number": 1, "places": [{"row": 2, "name": "x"}]}'),
     (np.int64(3), "3"), (np.float64(0.5), "0.5"), (np.bool_(False), "false"), ([np.float32(0.5)], "[0.5]"),
     (date(2026, 1, 2), '"2026-01-02"'), ({"in": timedelta(minutes=1)}, '{"in": "PT1M"}'), (Kind.RED, '"red"'),
     (Decimal("1.50"), '"1.50"'), ({"b", "a", "c"}, '["a", "b", "c"]'), (complex(1, 2), '"1+2j"')],
)  # fmt: skip
def test_a_result_that_is_no_text_becomes_json(result, text):
    assert tools["take"].text(result) == text


@pytest.mark.parametrize(
    "result",
    [b"x", bytearray(b"x"), memoryview(b"x"), np.zeros(2), [np.zeros(2)], {"raw": b"x"}, Order(1, [b"x"]),
     {(1, 2): 3}, np.bytes_(b"x"), pytest.param(type("Loop", (list,), {})(), id="loop")],
)  # fmt: skip
def test_bytes_and_arrays_are_refused_with_the_tools_name(result):
    if type(result).__name__ == "Loop":
        result.append(result)
    with pytest.raises(EnvironmentDefect, match=rf"tool 'take' returned {type(result).__name__}: .*; expected text"):
        tools["take"].text(result)


def test_done_is_the_text_with_an_answer_and_stays_so_when_it_is_copied():
    done = Done("You fell into a hole.", answer="hole")
    for one in (done, copy.deepcopy(done), pickle.loads(pickle.dumps(done)), tools["take"].text(done)):
        assert (type(one), one, one.answer) == (Done, "You fell into a hole.", "hole")
    assert Done("sold").answer == "sold"


class Counter(ToolEnv):
    """Ends by a tool."""

    max_turns = 2

    def task_set(self, split):
        from palaestra import Task

        return [Task("Sell.", answer="yes")]

    @tool
    def sell(self, price: int) -> str:
        return Done(f"sold for {price}", answer="yes") if price < 9 else "too dear"

    @tool(terminal=True)
    def submit(self, answer: str) -> str:
        if not answer:
            raise ToolError("an answer has letters")
        return answer.strip().lower()

    @tool(blocking=True)
    def unplugged(self) -> str:
        raise Broken("the server is gone")

    def reward(self, attempt):
        return float(attempt.answer == attempt.task.answer)


@pytest.mark.parametrize(
    ("turns", "ending", "answer"),
    [
        ([[("sell", {"price": 9}), ("submit", {"answer": " YES "}), ("submit", {"answer": "no"})]], "answered", "yes"),
        ([[("sell", {"price": "3"}), ("sell", {"price": 4})]], "answered", "yes"),
        ([[("submit", {"answer": ""}), ("submit", {"reply": "yes"})], [("sell", {"price": 1})]], "answered", "yes"),
        ([[("submit", {"answer": "yes"}), ("unplugged", {})]], "broken", None),
    ],
    ids=["the first of two", "done", "a refused one ends nothing", "broken beside it"],
)
def test_the_first_result_that_ends_the_episode_is_its_answer(turns, ending, answer):
    env = TextEnv(Counter())
    env.reset(seed=7)
    for calls in turns:
        _, reward, *_, info = env.step("".join(env.call(name, **arguments) for name, arguments in calls))
    assert (info["ending"], info["attempt"].answer, reward) == (ending, answer, float(ending == "answered"))
    ended = next(call for call in info["attempt"].calls if call.answer is not None)
    assert (ended.answer, ended.status, type(ended.text)) == ("yes", Status.OK, str)
    if ended.name == "sell" and ended.written:
        assert (ended.written, ended.arguments) == ({"price": "3"}, {"price": 3})


# What is refused when the class is made


class Wrong:
    """Methods that cannot be tools, made at the top of a module."""

    def plain(self): ...

    async def waits(self): ...

    def untyped(self, query): ...

    def starred(self, *queries: str): ...

    def unknown(self, thing: Many): ...

    def unresolved(self, thing: "Nowhere"): ...  # noqa: F821

    def field(self, count: int = Field(3, ge=1)): ...

    def no_json(self, thing: Any = Many): ...

    def no_number(self, share: float = float("nan")): ...

    def yields(self):
        yield "one"

    def uses(self, word: str):
        return self.problem.prompt + word

    def selfless(number: int) -> int:  # noqa: N805
        """Add one."""

    def nothing(): ...

    def array(self, size: int, points: NDArray[np.float64]): ...

    def arrays(self, points: list[np.ndarray] | None = None): ...


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [("untyped", {}, "no type; write query: str"), ("starred", {}, r"without \* or /"),
     ("unknown", {}, "no JSON schema"), ("unresolved", {}, "cannot be resolved"),
     ("field", {}, r"Annotated\[type, Field"), ("no_json", {}, "no JSON schema"),
     ("no_number", {}, "no JSON schema"), ("yields", {}, "drop the yield"),
     ("selfless", {}, r"selfless\(number: int\) -> int, without self"), ("nothing", {}, r"nothing\(\), without self"),
     ("array", {}, r"parameter 'points' is a numpy array, .* write points: list\[float\]"),
     ("arrays", {}, r"parameter 'points' is a numpy array, .* write points: list\[float\]"),
     ("uses", {"process": True}, "no environment, only the"), ("waits", {"process": True}, "drop process,"),
     ("waits", {"blocking": True}, "drop blocking"), ("plain", {"process": True, "blocking": True}, "drop one"),
     ("plain", {"timeout": 1}, "add blocking=True, or make it async"), ("plain", {"concurrency": 1}, "runs in place"),
     ("plain", {"per_second": 1.5}, "runs in place"), ("plain", {"retries": 1, "transient": OSError}, "runs in place")],
)  # fmt: skip
def test_a_method_that_cannot_be_a_tool_is_refused_when_its_class_is_made(name, options, said):
    method = copy.copy(vars(Wrong)[name])
    for base in (ToolEnv, Toolkit, Game):
        seats = {"seats": ("a", "b")} if base is Game else {}
        with pytest.raises(EnvironmentDefect, match=said) as caught:
            type("A", (base,), {name: tool(**options)(method), **seats})
        assert str(caught.value).startswith(f"A.{name}")
        assert "\n" not in str(caught.value)


def test_a_tool_that_is_hidden_in_something_or_named_twice_is_refused():
    def search(self) -> str:
        """Search."""

    marked = tool(search)
    kit = type("Kit", (Toolkit,), {"search": marked})
    for base, members, said in (
        (ToolEnv, {"search": staticmethod(marked)}, "A.search is a tool inside a staticmethod"),
        (ToolEnv, {"search": property(marked)}, "inside a property"),
        (ToolEnv, {"search": classmethod(marked)}, "write a plain method with @tool and no classmethod"),
        (ToolEnv, {"search": cache(marked)}, "inside a _lru_ca"),
        (ToolEnv, {"search": marked, "find": tool(name="search")(search)}, "two tools named 'search'"),
        (ToolEnv, {"search": marked, "toolkits": (kit,)}, "one of them in Kit"),
        (ToolEnv, {"rounds": marked}, "replaces ToolEnv.rounds"),
        (Toolkit, {"close": marked}, "replaces Toolkit"),
    ):
        with pytest.raises(EnvironmentDefect, match=said):
            type("A", (base,), members)
    with pytest.raises(EnvironmentDefect, match="directly on a method"):
        tool(staticmethod(search))

    def local(self): ...

    with pytest.raises(EnvironmentDefect, match="at the top of a module"):
        type("A", (ToolEnv,), {"local": tool(process=True)(local)})


@pytest.mark.parametrize(
    ("options", "said"),
    [({"timout": 3}, r"@tool\(timout=3\): Unexpected keyword argument; its options are name, timeout, blocking"),
     ({"timeout": 0}, r"@tool\(timeout=0\): Input should be greater than 0"),
     ({"timeout": float("nan")}, "finite number"), ({"timeout": "3"}, "valid number"),
     ({"per_second": -1}, "greater than 0"), ({"concurrency": 0}, "greater than or equal to 1"),
     ({"concurrency": 1.5}, "valid integer"), ({"retries": -1}, "greater than or equal to 0"),
     ({"retries": True}, "valid integer"), ({"blocking": "yes"}, "valid boolean"), ({"retries": 2}, "give both"),
     ({"transient": (OSError,)}, "give both"), ({"name": "two words"}, "should match pattern"),
     ({"retries": 1, "transient": (3,)}, "subclass of Exception"),
     ({"retries": 1, "transient": [OSError]}, "valid tuple"),
     ({"retries": 1, "transient": (ToolError,)}, "never tried again")],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused_where_they_are_written(options, said):
    with pytest.raises(EnvironmentDefect, match=said):
        tool(**options)
