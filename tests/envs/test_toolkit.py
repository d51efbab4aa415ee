"""A toolkit whose methods nobody would call as they are written is refused when its class is made."""

from functools import partial

import pytest

from palaestra import EnvironmentDefect, Task
from palaestra.envs import TextEnv, ToolEnv, Toolkit, tool


async def _later(self, *arguments):
    pass


def _nothing(self):
    pass


def _extra(self, task, rng, further):
    pass


@pytest.mark.parametrize(
    ("name", "method", "said"),
    [("restore", _later, "Kit.restore is an async def, which nobody would await; write a plain method, def restore("),
     ("snapshot", _later, "Kit.snapshot is an async def"),
     ("start", _nothing, "Kit.start is not called as it is written (too many positional arguments)"),
     ("start", _extra, "write def start(self, task, rng)"), ("close", _extra, "write def close(self)"),
     ("final", _extra, "write def final(self)")],
)  # fmt: skip
def test_a_method_that_nobody_would_call_as_written_is_refused_also_where_it_is_mixed_in(name, method, said):
    for bases in ((Toolkit,), (type("Mixed", (), {name: method}), Toolkit)):
        with pytest.raises(EnvironmentDefect) as refused:
            type("Kit", bases, {name: method} if len(bases) == 1 else {})
        assert said in str(refused.value)


def test_a_method_may_take_more_than_it_is_given_and_some_may_be_awaited():
    class Kit(Toolkit):
        def start(self, *arguments, seed=0):
            pass

        async def close(self, wait=False):
            pass

        async def final(self):
            return {}


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
        TextEnv(Desk()).reset(seed=0)
