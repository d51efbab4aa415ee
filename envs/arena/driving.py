"""Runs one machine: starts the jobs that it asks for, and waits until it has events.

Left out: many machines at once (`arena`).
"""

from palaestra.envs.arena.playable import Playable
from palaestra.envs.core.machine import Machine, MachineReply
from palaestra.envs.core.state import Events
from palaestra.envs.running.inbox import Inbox
from palaestra.envs.running.runner import shared_runner, wait_for
from palaestra.envs.running.work import Pending, warn_late


def settle(machine: Playable, reply: MachineReply) -> Events:
    """Run the jobs that a reply waits for, resume the machine, and return its events."""
    try:
        while isinstance(reply, Pending):
            try:
                wait_for(reply, _name(machine))
            except BaseException:  # After an interrupt the jobs never come back, so the episode is dropped.
                machine.discard()
                raise
            reply = machine.resume(reply)
    finally:
        while machine.aside:  # They may hang, so nothing waits for them.
            shared_runner().start((machine.aside.pop(),), Inbox(_name(machine)))
    return reply


def release(machine: Playable) -> None:
    """Drop the running episode, and wait until its toolkits are closed or exceed their deadlines."""
    machine.discard()
    while machine.aside:
        pending = machine.aside.pop()
        wait_for(pending, _name(machine))
        warn_late(_name(machine), pending.works)


def _name(machine: Playable) -> str:
    return machine.spec.name if isinstance(machine, Machine) else str(getattr(machine, "name", ""))
