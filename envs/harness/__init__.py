"""Harnesses: environments that somebody's own agent loop plays, by asking our model over an OpenAI-compatible API."""

from palaestra.envs.harness.author import Harness, Model

__all__ = ["Harness", "Model"]
