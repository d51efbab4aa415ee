"""The reasoning reward model of agents (Agent-RRM, arXiv 2601.22154): what it is asked, and how its verdict is read.

`prompt` shows it a whole episode and no answer, `verdict` reads three tagged blocks. Left out: asking served models
(`palaestra.endpoint.judge`), and what a score does to a reward (`trainers.scoring.reasoning`).
"""
