"""Runs and files of episodes in figures, side by side: read, grouped over seeds, drawn."""

from palaestra.trainers.analysis.comparing import Analysis, Group, Spread, analyse

__all__ = ["Analysis", "Group", "Spread", "analyse"]
