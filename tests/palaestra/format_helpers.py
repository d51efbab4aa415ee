"""What the tests of the call formats share: schemas in one line, and whether work grows in step with length."""

import time


def schema(name, required=None, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(required or properties)}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


def _seconds(parse, turn):
    begun = time.process_time()
    parse(turn)
    return time.process_time() - begun


def grows_in_step(parse, short, long):
    """Whether forty times the text takes at most forty times the work, and a generous bit more: quadratic is 1600.

    A busy machine may spoil a measurement, and then another is taken; it never makes quadratic work look linear.
    """
    least = min(_seconds(parse, short) for _ in range(3))
    return any(_seconds(parse, long) < 40 * 8 * (least + 2e-5) for _ in range(5))
