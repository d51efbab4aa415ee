"""Tools: schemas and checks come from the signature, and what cannot work is refused when the class is made."""

from dataclasses import replace
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

from palaestra import EnvironmentDefect, ToolError
from palaestra.envs import Game, ToolEnv, Toolkit, tool
from palaestra.envs.core.tool import Mode, collect


class Place(BaseModel):
    row: int
    name: str = "x"


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
    def wait(self) -> None: ...


tools = collect(Many)


def test_schema_says_what_the_signature_says():
    function = tools["book"].schema["function"]
    parameters = function["parameters"]
    assert function["description"] == "Book a place. In two lines."
    assert list(parameters["properties"]) == ["place", "kind", "count", "schema", "_model"]
    assert parameters["required"] == ["place", "kind"]
    assert parameters["properties"]["kind"] == {"description": "which kind", "enum": ["a", "b"], "type": "string"}
    assert parameters["properties"]["place"]["description"] == "where to sit"
    assert tools["look_up"].schema["function"]["parameters"]["properties"]["query"]["description"] == "what to find"
    assert tools["look_up"].schema["function"]["description"] == "Find."


def test_modes_and_timeouts():
    assert [(found.mode, found.timeout) for found in tools.values()] == [
        (Mode.INLINE, 30.0), (Mode.ASYNC, 3), (Mode.BLOCKING, 30.0)
    ]  # fmt: skip


def test_arguments_are_coerced_and_defaults_filled():
    values = tools["book"].validate({"place": {"row": "4"}, "kind": "a", "schema": 5})
    assert Many().book(**values) == "4 a 2 5 None"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({"kind": "a"}, "place: Field required"), ({"place": {"row": 1}, "kind": "c"}, "kind: "),
     ({"place": {"row": 1}, "kind": "a", "more": 1}, "more: Extra"), ({"place": "x", "kind": "a"}, "place: ")],
)  # fmt: skip
def test_wrong_arguments_are_told_in_one_line(arguments, said):
    with pytest.raises(ToolError) as caught:
        tools["book"].validate(arguments)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "It takes: place, kind, count (optional)" in str(caught.value)


def test_a_decorated_method_is_still_a_method():
    assert Many().wait() is None


def test_schemas_are_made_once():
    assert collect(Many)["book"] is tools["book"]


def test_an_undecorated_override_is_no_tool():
    class Fewer(Many):
        wait = None

    assert list(collect(Fewer)) == ["book", "look_up"]


def _untyped():
    class A(ToolEnv):
        @tool
        def search(self, query): ...


def _star():
    class A(ToolEnv):
        @tool
        def search(self, *queries: str): ...


def _twice():
    class A(ToolEnv):
        @tool
        def search(self): ...

        @tool(name="search")
        def find(self): ...


def _twice_with_kit():
    class Kit(Toolkit):
        @tool
        def search(self): ...

    class A(ToolEnv):
        toolkits = (Kit,)

        @tool
        def search(self): ...


def _shadow():
    class A(ToolEnv):
        @tool
        def step(self): ...


def _shadow_kit():
    class A(Toolkit):
        @tool
        def close(self): ...


def _async_blocking():
    class A(ToolEnv):
        @tool(blocking=True)
        async def search(self): ...


def _static():
    class A(ToolEnv):
        @tool
        @staticmethod
        def search(): ...


def _inside(decorate):
    def made():
        type("A", (ToolEnv,), {"search": decorate(tool(lambda self: ""))})

    return made


def _no_schema():
    class A(ToolEnv):
        @tool
        def search(self, thing: Many): ...


def _unknown_type():
    class A(ToolEnv):
        @tool
        def search(self, thing: "Nowhere"): ...  # noqa: F821


def _default():
    class A(ToolEnv):
        @tool
        def search(self, count: int = "many"): ...


def _none():
    class A(ToolEnv):
        @tool
        def search(self, word: str = None): ...  # noqa: RUF013


def _field_default():
    class A(ToolEnv):
        @tool
        def search(self, count: int = Field(3, ge=1)): ...


def _default_without_json():
    class A(ToolEnv):
        @tool
        def search(self, thing: Any = Many): ...


def _default_nan():
    class A(ToolEnv):
        @tool
        def search(self, share: float = float("nan")): ...


def _generator():
    class A(ToolEnv):
        @tool
        def search(self):
            yield "one"


def _process_self():
    @tool(process=True)
    def search(self, word: str):
        return self.problem.prompt + word

    search.__qualname__ = "A.search"
    type("A", (ToolEnv,), {"search": search})


def _process_local():
    class A(ToolEnv):
        @tool(process=True)
        def search(self): ...


def _process_async():
    class A(ToolEnv):
        @tool(process=True)
        async def search(self): ...


def _process_blocking():
    class A(ToolEnv):
        @tool(process=True, blocking=True)
        def search(self): ...


def _inline(**options):
    def make():
        class A(ToolEnv):
            @tool(**options)
            def search(self): ...

    return make


def _selfless():
    class Env(ToolEnv):
        @tool
        def add(number: int) -> int:  # noqa: N805
            """Add one."""
            return number + 1


def _selfless_in_a_game():
    class Play(Game):
        seats = ("a", "b")

        @tool
        def look(place: str) -> str:  # noqa: N805
            """Look."""
            return place


def _nothing():
    class Env(ToolEnv):
        @tool
        def rest():
            """Rest."""


@pytest.mark.parametrize(
    ("make", "said"),
    [(_untyped, "no type; write query: str"), (_star, r"without \* or /"), (_twice, "two tools named 'search'"),
     (_twice_with_kit, "one of them in Kit"), (_shadow, "replaces ToolEnv.step"), (_shadow_kit, "replaces Toolkit"),
     (_async_blocking, "drop blocking"), (_static, "directly on a method"),
     (_inside(staticmethod), "A.search is a tool inside a staticmethod"), (_inside(property), "inside a property"),
     (_inside(classmethod), "write a plain method with @tool and no classmethod"), (_inside(cache), "inside a _lru_ca"),
     (_no_schema, "no JSON schema"),
     (_unknown_type, "cannot be resolved"), (_default, "default 'many' of 'count' does not fit"),
     (_none, r"needs `\| None`"), (_field_default, r"Annotated\[type, Field"),
     (_default_without_json, "no JSON schema"), (_default_nan, "no JSON schema"), (_generator, "drop the yield"),
     (_process_self, "no environment, only the"), (_selfless, r"add\(number: int\) -> int, without self"),
     (_selfless_in_a_game, r"look\(place: str\) -> str, without self"), (_nothing, r"rest\(\), without self"),
     (_process_local, "at the top of a module"), (_process_async, "drop process,"), (_process_blocking, "drop one"),
     (_inline(timeout=1), "runs in place"), (_inline(concurrency=1), "runs in place"),
     (_inline(per_second=1.5), "runs in place"), (_inline(retries=1, transient=OSError), "runs in place")],
)  # fmt: skip
def test_defects_are_found_when_the_class_is_made(make, said):
    with pytest.raises(EnvironmentDefect, match=said):
        make()


def test_a_deadline_on_a_plain_method_is_refused_since_nobody_could_keep_it():
    with pytest.raises(EnvironmentDefect, match="add blocking=True, or make it async"):

        class Slow(Toolkit):
            @tool(timeout=1.0)
            def wait(self) -> str:
                """Wait."""
                return ""


@pytest.mark.parametrize(
    ("options", "said"),
    [({"timout": 3}, "is 'timeout' meant"), ({"timeout": 0}, "positive number"),
     ({"timeout": float("nan")}, "positive number"), ({"timeout": "3"}, "positive number"),
     ({"per_second": -1}, "positive number"), ({"concurrency": 0}, "at least 1"),
     ({"concurrency": 1.5}, "whole number"), ({"retries": -1}, "at least 0"), ({"retries": True}, "whole number"),
     ({"retries": 2}, "give both"), ({"transient": (OSError,)}, "give both"),
     ({"name": "two words"}, "expected a letter"), ({"retries": 1, "transient": (3,)}, "classes of exceptions"),
     ({"retries": 1, "transient": [OSError]}, "a tuple"),
     ({"retries": 1, "transient": (ToolError,)}, "never tried again")],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused_where_they_are_written(options, said):
    with pytest.raises(EnvironmentDefect, match=said):
        tool(**options)


class Kind(Enum):
    RED = "red"
    BLUE = "blue"


class Typed:
    @tool
    def paint(
        self,
        kind: Kind,
        spots: list[Place],
        size: Literal[1, 2] | None = None,
        names: dict[str, int] = {},  # noqa: B006
        level: Annotated[int, Field(ge=0, le=9, description="how much")] = 3,
    ) -> str:
        """Paint spots."""
        return f"{kind.name} {spots[0].row} {size} {sorted(names)} {level}"


typed = collect(Typed)["paint"]


def test_enums_models_optionals_and_bounds_are_in_the_schema_and_checked():
    parameters = typed.schema["function"]["parameters"]
    properties = parameters["properties"]
    assert parameters["required"] == ["kind", "spots"]
    assert parameters["$defs"]["Kind"]["enum"] == ["red", "blue"]
    assert parameters["$defs"]["Place"]["required"] == ["row"]
    assert properties["level"] == {
        "default": 3, "description": "how much", "maximum": 9, "minimum": 0, "type": "integer"
    }  # fmt: skip
    assert {"type": "null"} in properties["size"]["anyOf"]
    values = typed.validate({"kind": "blue", "spots": [{"row": "2"}], "size": 2, "names": {"a": "1"}})
    assert Typed().paint(**values) == "BLUE 2 2 ['a'] 3"


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"kind": "green"}, "kind: "), ({"spots": {}}, "spots: "), ({"spots": [{"row": 1}, {}]}, "spots.1.row: "),
     ({"size": 3}, "size"), ({"level": 10}, "level: "), ({"names": {"a": "b"}}, "names.a: ")],
)  # fmt: skip
def test_what_does_not_fit_is_named_by_its_place(changed, said):
    with pytest.raises(ToolError) as caught:
        typed.validate({"kind": "red", "spots": [{"row": 1}], **changed})
    assert said in str(caught.value)


def test_a_default_is_no_state_that_calls_share():
    first = typed.validate({"kind": "red", "spots": []})
    first["names"]["left"] = 1
    assert typed.validate({"kind": "red", "spots": []})["names"] == {}


class Plain:
    @tool
    def take(self, text: str, count: int, share: float, flag: bool) -> str:
        """Take plain values."""
        return text


@pytest.mark.parametrize("value", ["x", "é", "\ud800", "4", 1, 10**30, True, 1.5, float("inf"), None, [], {}])
@pytest.mark.parametrize("name", ["text", "count", "share", "flag", "more"])
def test_plain_arguments_come_out_as_pydantic_reads_them(name, value):
    signature = collect(Plain)["take"].signature
    assert signature.plain
    given = {"text": "x", "count": 1, "share": 1.5, "flag": False, name: value}

    def outcome(read):
        try:
            return [(key, type(found), found) for key, found in read(given).items()]
        except ValidationError as error:
            return str(error)

    assert outcome(signature.read) == outcome(replace(signature, plain={}).read)
    given = {key: found for key, found in given.items() if key != name}
    assert outcome(signature.read) == outcome(replace(signature, plain={}).read)
