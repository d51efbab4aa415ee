"""All scenes, in order."""

from . import scenes_of_ends, scenes_of_files, scenes_of_sessions
from .scene import SCENES

__all__ = ["SCENES", "scenes_of_ends", "scenes_of_files", "scenes_of_sessions"]
