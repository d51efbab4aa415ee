"""The reasoning reward model of agents (Agent-RRM, arXiv 2601.22154): its prompt and the parser of its verdict.

`prompt` shows the model a whole episode without the answer, `verdict` reads its three tagged blocks. Left out: calls of
served models (`palaestra.endpoint.judge`), and how a score changes a reward (`trainers.reward.reward_model`).
"""
