"""What is no toolkit is refused by name."""

from functools import partial

import pytest

from palaestra import EnvironmentDefect, Task
from palaestra.envs import TextEnv, ToolEnv, tool


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
