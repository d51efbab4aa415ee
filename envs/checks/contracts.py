"""Checks by the libraries that an environment is registered with: Gymnasium's own tests, and PettingZoo's.

Left out: what palaestra asks of an environment beyond them (`check`).
"""

import contextlib
import io
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.utils.env_checker import check_env

from palaestra.envs.checks.findings import Skipped
from palaestra.envs.checks.trials import Subject


def gymnasium_contract(subject: Subject) -> None:
    """Run Gymnasium's own checker. It begins a dozen episodes, so a slow environment gets those of its checks that
    Gymnasium makes at the first reset and step; whether a seed repeats an episode, `determinism` tests."""
    env = gymnasium.make(subject.env_id, **subject.constructor_options)
    try:
        if subject.slow:
            env.reset(seed=0)
            env.step("1")
        else:
            check_env(env.unwrapped, skip_render_check=True)
    finally:
        env.close()


def pettingzoo_contract(subject: Subject) -> None:
    """Run PettingZoo's own tests of both interfaces."""
    try:
        import pettingzoo  # type: ignore[import-untyped]
        from pettingzoo import test
    except ImportError:
        raise Skipped("pettingzoo is not installed: pip install 'palaestra[games]'") from None

    def make(kind: str) -> Callable[..., object]:
        return lambda **given: pettingzoo.make(kind, subject.env_id, **subject.constructor_options, **given)

    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # They expect arrays, and warn of every text.
        if _registered(pettingzoo, "aec", subject.env_id):
            test.api_test(make("aec")(), num_cycles=50)
            test.seed_test(make("aec"), num_cycles=20)
            if subject.entry_point is not None:  # Others need not render.
                test.render_test(make("aec"))
        if _registered(pettingzoo, "parallel", subject.env_id):
            test.parallel_api_test(make("parallel")(), num_cycles=50)
            test.parallel_seed_test(make("parallel"), num_cycles=20)


def _registered(pettingzoo: Any, kind: str, env_id: str) -> bool:
    try:
        pettingzoo.spec(kind, env_id)
    except Exception:  # Its registry raises errors of its own for an unknown id.
        return False
    return True


def contract_of_others(subject: Subject) -> None:
    """Run the tests of the library that the environment is registered with: Gymnasium's or PettingZoo's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (gymnasium_contract if subject.env_id in gymnasium.registry else pettingzoo_contract)(subject)
