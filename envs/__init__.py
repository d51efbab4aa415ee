"""Environments, tools and rewards: the names that the author of an environment imports.

Left out: registration (`palaestra.register`), the suite of ready environments (`palaestra.envs.suite`) and tools that
several environments share (`palaestra.envs.tools`).
"""

from palaestra.envs.arena.text_env import TextEnv
from palaestra.envs.arena.vector import ToolVectorEnv
from palaestra.envs.core.author import Game, ToolEnv
from palaestra.envs.core.branches import Snapshot
from palaestra.envs.core.result import Done
from palaestra.envs.core.scoring import RewardPart
from palaestra.envs.core.space import TextSpace
from palaestra.envs.core.tasks import ProceduralTasks
from palaestra.envs.core.tool import tool
from palaestra.envs.core.tool_names import offer
from palaestra.envs.core.toolkit import Toolkit
from palaestra.envs.data.task_files import load_tasks
from palaestra.envs.harness.author import Harness, Model
from palaestra.envs.rewards.progressive import RewardStage, StagedReward
from palaestra.envs.users import ModelUser, ScriptedUser, conversation
from palaestra.episode import Task
from palaestra.errors import ToolError

__all__ = [
    "Done",
    "Game",
    "Harness",
    "Model",
    "ModelUser",
    "ProceduralTasks",
    "RewardPart",
    "RewardStage",
    "ScriptedUser",
    "Snapshot",
    "StagedReward",
    "Task",
    "TextEnv",
    "TextSpace",
    "ToolEnv",
    "ToolError",
    "ToolVectorEnv",
    "Toolkit",
    "conversation",
    "load_tasks",
    "offer",
    "tool",
]
