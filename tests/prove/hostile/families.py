"""All programs, in order."""

from . import files, kernel, memory, network, output, processes, protocol, secrets, timing
from .program import PROGRAMS, Program

FAMILIES = (files, secrets, network, processes, memory, timing, output, kernel, protocol)

__all__ = ["FAMILIES", "PROGRAMS", "Program"]
