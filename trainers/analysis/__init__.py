"""Analysis of runs and episode files: read them, group runs over seeds, compare groups, and plot curves."""

from palaestra.trainers.analysis.comparing import Analysis, SeedGroup, Spread, analyse

__all__ = ["Analysis", "SeedGroup", "Spread", "analyse"]
