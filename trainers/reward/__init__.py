"""The training reward: its terms, judges and scoring."""
