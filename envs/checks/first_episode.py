"""The check that comes first: an episode begins and ends. It also measures whether episodes are slow.

Left out: what happens between a beginning and an end (`check`).
"""

import time
from contextlib import suppress

from palaestra.envs.checks import at_once
from palaestra.envs.checks.cheats import calls_of
from palaestra.envs.checks.findings import Groundless, Noted
from palaestra.envs.checks.trials import Subject, require_unbroken
from palaestra.errors import Broken, SandboxUnavailable, UsageError


def an_episode_begins_and_ends(subject: Subject) -> None:
    """Require that an episode begins, and ends with a reward; otherwise no other check runs. Note if episodes are
    slow."""
    for chair in subject.chairs():
        try:
            require_unbroken(at_once.left_alone(subject, chair))
        except (Broken, UsageError, SandboxUnavailable) as error:
            raise Groundless(
                f"an episode ended broken: {error}" if isinstance(error, Broken) else str(error)
            ) from error
        except Exception:  # Another check reports what an author's code raises.
            chair.machine.discard()
            continue
        if not (subject.slow or chair.spec.inline) and chair.max_turns > 1:
            began = time.monotonic()
            with suppress(Exception):
                chair.begin()
                chair.say(calls_of(chair, "1", chair.schemas))
            chair.machine.discard()
            subject.slow = time.monotonic() - began > at_once.SLOW_SECONDS
    if subject.slow:
        raise Noted(f"an episode takes more than {at_once.SLOW_SECONDS:g} s, so the checks play fewer of them")
