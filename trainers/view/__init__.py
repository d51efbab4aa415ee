"""Curves, tables and pages of runs: read runs and episode files, group runs over seeds, compare groups, plot."""

from palaestra.trainers.view.compare_groups import Analysis, SeedGroup, Spread, analyse

__all__ = ["Analysis", "SeedGroup", "Spread", "analyse"]
