"""A toolkit whose methods nobody would call as they are written is refused when its class is made."""

from functools import partial

import pytest

from palaestra import EnvironmentDefect, Task
from palaestra.envs import ToolEnv, Toolkit, tool


async def _later(self, *arguments):
    pass


def _nothing(self):
    pass


def _extra(self, task, rng, further):
    pass


@pytest.mark.parametrize(
    ("name", "method", "said"),
    [("start", _later, "Kit.start is an async def, which nobody would await; write a plain method, def start("),
     ("close", _later, "Kit.close is an async def"), ("restore", _later, "Kit.restore is an async def"),
     ("start", _nothing, "Kit.start is not called as it is written (too many positional arguments)"),
     ("start", _extra, "write def start(self, task, rng)"), ("close", _extra, "write def close(self)")],
)  # fmt: skip
def test_a_method_that_nobody_would_call_as_written_is_refused(name, method, said):
    with pytest.raises(EnvironmentDefect) as refused:
        type("Kit", (Toolkit,), {name: method})
    assert said in str(refused.value)


def test_a_method_of_a_class_mixed_in_is_held_to_the_same():
    class Waiting:
        async def close(self):
            pass

    with pytest.raises(EnvironmentDefect, match=r"Kit\.close is an async def"):
        type("Kit", (Waiting, Toolkit), {})


def test_a_method_may_take_more_than_it_is_given():
    class Kit(Toolkit):
        def start(self, *arguments, seed=0):
            self.begun = arguments

        def close(self, wait=False):
            pass

    kit = Kit()
    kit.start("task", "rng")
    assert kit.begun == ("task", "rng")


class Notebook:
    """Forgets to be a toolkit."""

    @tool
    def note(self) -> str:
        """Note."""
        return ""


@pytest.mark.parametrize("given", [Notebook, partial(Notebook)])
def test_a_class_that_is_no_toolkit_is_refused_by_name(given):
    said = "toolkits has Notebook, which is no toolkit; write class Notebook\\(Toolkit\\)"
    with pytest.raises(EnvironmentDefect, match=said):
        type("Desk", (ToolEnv,), {"toolkits": (given,)})

    class Desk(ToolEnv):
        def __init__(self):
            super().__init__()
            self.toolkits = (given,)

        def task(self, rng):
            return Task(f"{rng.integers(10**6)}?", answer="x")

    with pytest.raises(EnvironmentDefect, match=said):
        Desk().reset(seed=0)
