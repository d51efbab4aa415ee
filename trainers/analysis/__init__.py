"""Analysis of runs and episode files: read them, group runs over seeds, compare groups, and plot curves."""

from palaestra.trainers.analysis.comparing import Analysis, Group, Spread, analyse

__all__ = ["Analysis", "Group", "Spread", "analyse"]
