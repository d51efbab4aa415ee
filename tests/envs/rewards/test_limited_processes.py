"""LimitedProcesses: a question that takes too much has no answer, and the next one has."""

import asyncio
import os

import pytest

from palaestra.envs.rewards import limited_processes
from palaestra.envs.rewards.limited_processes import LimitedProcesses
from palaestra.errors import Broken


class Power:
    """Nines, as many as are asked for, which C code works out without looking up."""

    @staticmethod
    def load(setting: str) -> str:
        """Refuse one setting."""
        if setting == "missing":
            raise ImportError("no such library")
        return "loaded"

    @staticmethod
    def answer(setting: str, question: str) -> str:
        """Answer with the size of a number, the process, or its death."""
        if question == "die":
            os._exit(3)
        if question == "who":
            return str(os.getpid())
        if question == "grow":
            return str(len(bytearray(2**40)))
        return setting + str((9 ** int(question)).bit_length())


ENDLESS = "1" + "0" * 9
"""Asks for a power that takes hours."""


@pytest.fixture
def asked(monkeypatch):
    """Ask questions at once, of one process: half a second for what has no end, a minute for the others."""
    answer = limited_processes._Worker.answer

    def patient(worker, setting, question, seconds):
        return answer(worker, setting, question, seconds if question == ENDLESS else 60.0)

    monkeypatch.setattr(limited_processes._Worker, "answer", patient)
    monkeypatch.setattr(limited_processes, "PROCESSES", 1)
    made = LimitedProcesses(Power, 0.5, 1024)

    def ask(*questions, setting="x"):
        async def all_of_them():
            return await asyncio.gather(*(made.ask(setting, question) for question in questions))

        return asyncio.run(all_of_them())

    ask.processes = made
    yield ask
    made.close()


def refuse():
    raise OSError("no more processes")


def test_what_takes_too_much_has_no_answer_and_the_next_has(asked, monkeypatch):
    assert asked("10", ENDLESS, "11") == ["x32", None, "x35"]
    asked.processes.close()
    monkeypatch.setattr(limited_processes, "WorkerProcess", refuse)
    assert asked(ENDLESS) == [None], "an answer is kept, and so is that there is none"


@pytest.mark.prove
def test_a_process_that_dies_of_a_question_or_lacks_memory_is_replaced(asked):
    assert asked("grow", "die", "12") == [None, None, "x39"]


@pytest.mark.prove
def test_a_process_that_died_while_it_was_idle_is_started_again(asked):
    (process,) = asked("who")
    for worker in asked.processes._workers.values():
        worker.child.kill()
    assert asked("10") == ["x32"]
    assert not os.path.exists(f"/proc/{process}")


@pytest.mark.prove
def test_what_cannot_load_is_broken(asked):
    with pytest.raises(Broken, match="cannot load: ImportError: no such library"):
        asked("10", setting="missing")


def test_what_cannot_start_is_broken(asked, monkeypatch):
    monkeypatch.setattr(limited_processes, "WorkerProcess", refuse)
    with pytest.raises(Broken, match="no process could be started for Power"):
        asked("10")
