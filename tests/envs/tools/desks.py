"""An environment whose toolkits run programs, in the place that it is given."""

from palaestra.envs import Task, ToolEnv
from palaestra.envs.tools.python import Python
from palaestra.envs.tools.sandboxed import in_sandbox


class Desk(ToolEnv):
    """Anything may be run."""

    max_turns = 50
    toolkits = (Python,)

    def __init__(self, *kits, sandbox="fake"):
        super().__init__()
        self.toolkits = in_sandbox(sandbox, *(kits or self.toolkits))

    def task(self, rng):
        return Task(prompt=f"Case {rng.integers(10**6)}?", answer="yes", data={"sheet": "1,2"})

    def reward(self, attempt):
        return float(attempt.answer == "yes")
