"""Environments of other packages, under ids of palaestra that open where the package is installed.

Each module adapts one package to Gymnasium's interface; `envs.arena.foreign` plays the result as any other Gymnasium
environment of text. Left out: packages whose interface is a loop that asks a model itself (verifiers, inspect).
"""
