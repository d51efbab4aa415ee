"""Environments of palaestra in other people's trainers and evaluations: a module for each package, imported by name.

Nothing of palaestra but its command line imports this folder. An episode that ended BROKEN is never a reward of 0:
each module says what it is in its package.
"""
