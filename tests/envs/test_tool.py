"""Tools: schemas and checks come from the signature, and what cannot work is refused when the class is made."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from palaestra import EnvironmentDefect, ToolError
from palaestra.envs import ToolEnv, Toolkit, tool
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


def _no_schema():
    class A(ToolEnv):
        @tool
        def search(self, thing: Many): ...


def _unknown_type():
    class A(ToolEnv):
        @tool
        def search(self, thing: "Nowhere"): ...  # noqa: F821


@pytest.mark.parametrize(
    ("make", "said"),
    [(_untyped, "no type; write query: str"), (_star, r"without \* or /"), (_twice, "two tools named 'search'"),
     (_twice_with_kit, "one of them in Kit"), (_shadow, "replaces ToolEnv.step"), (_shadow_kit, "replaces Toolkit"),
     (_async_blocking, "drop blocking"), (_static, "directly on a method"), (_no_schema, "no JSON schema"),
     (_unknown_type, "cannot be resolved")],
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
