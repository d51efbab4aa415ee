"""Environments of other packages, under ids of palaestra that open where the package is installed.

Each module adapts one package: to Gymnasium's interface, and `envs.arena.foreign` plays the result as any other
Gymnasium environment of text; or, where the package's own loop asks a model (verifiers, inspect), as a `Harness`.
"""
