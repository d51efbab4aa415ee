"""Process tools: the child's death, lies and endless loops are answers to the agent; what we cannot start is ours."""

import os
import signal
import subprocess
import sys
import threading

import pytest
import workshop
from driven import becomes, begun

import palaestra
from palaestra.envs.core.calls import prepare
from palaestra.envs.core.tool import collect
from palaestra.envs.running import processes
from palaestra.envs.running.inbox import Inbox
from palaestra.envs.running.runner import wait_for
from palaestra.envs.running.work import Pending
from palaestra.episode import Status
from palaestra.formats import ParsedCall, hermes


def prepared(name, arguments):
    """A call that is ready, and what waits for its work."""
    ready = prepare(ParsedCall(name, arguments), collect(workshop.Heavy), {}, workshop.Heavy())
    return ready, Pending([ready.work()])


def run(name, /, **arguments):
    ready, pending = prepared(name, arguments)
    wait_for(pending)
    assert pending.late is None
    call = ready.call(pending.works[0])
    return call.status, call.text


def gone(pid):
    """A process has ended, or is about to be reaped."""

    def is_gone():
        try:
            with open(f"/proc/{pid}/stat") as file:
                return file.read().rsplit(")", 1)[1].split()[0] == "Z"
        except OSError:  # Also ProcessLookupError, where it goes between the two.
            return True

    return becomes(is_gone)


def test_arguments_go_as_json_and_are_coerced_there_too():
    assert run("square", number="12") == (Status.OK, "+144 in True")
    assert run("square", number=10**40, sign="-") == (Status.OK, f"-{10**80} in True")
    assert run("refuse") == (Status.TOOL_ERROR, "Error: no")
    status, text = run("flood", size=70_000)
    assert (status, len(text)) == (Status.OK, 70_001)


@pytest.mark.parametrize(("how", "said"), [("kill", "killed by SIGKILL"), ("exit", "ended with status 3"), ("lie", "")])
def test_a_process_that_dies_or_lies_over_its_arguments_is_told_to_the_agent(how, said):
    status, text = run("die", how=how)
    assert status is Status.TOOL_ERROR
    assert said in text
    assert run("square", number=2)[0] is Status.OK, "the next call has a new process"


def test_a_time_out_kills_the_process_and_is_told_to_the_agent(monkeypatch):
    killed = []
    kill = processes.WorkerProcess.kill
    monkeypatch.setattr(processes.WorkerProcess, "kill", lambda child: (killed.append(child.process.pid), kill(child)))
    status, text = run("spin")
    assert (status, text) == (Status.TOOL_ERROR, "Error: timed out after 0.5 s")
    assert gone(killed[0])
    assert run("square", number=2)[0] is Status.OK


def test_a_call_that_is_given_up_kills_its_process(arena):
    opened = begun(arena(workshop.Heavy, 1))
    opened.send({0: hermes.render([ParsedCall("spin_long", {})])})
    (work,) = opened._tables[0].out[0].works
    assert becomes(lambda: work.started_at is not None)
    pid = work.child.process.pid
    opened.begin(0, palaestra.Start(1, 1))
    assert gone(pid)
    assert opened.recv(1, 60)[0].ending is None


def test_a_process_that_cannot_be_started_or_load_the_tool_is_our_failure(monkeypatch):
    def refuse(*arguments, **options):
        raise OSError("no more processes")

    def start():
        ready, pending = prepared("square", {"number": 1})
        pending.inbox, (work,) = Inbox("world"), pending.works

        def perform():  # In a thread that has no process yet.
            processes.run_in_process(work)
            processes._forget(processes._mine.child)

        thread = threading.Thread(target=perform)
        thread.start()
        thread.join(120)
        return ready.call(work)

    with monkeypatch.context() as patched:
        patched.setattr(processes.subprocess, "Popen", refuse)
        call = start()
        assert (call.status, "no more processes" in call.text) == (Status.BROKEN, True)
    with monkeypatch.context() as patched:
        patched.setattr(workshop.Heavy.square, "__module__", "nowhere_at_all")
        call = start()
        assert (call.status, "nowhere_at_all" in call.text) == (Status.BROKEN, True)


def test_the_processes_die_with_us_even_while_they_compute():
    program = (
        "import sys, time; sys.path[:0] = sys.argv[1:]\n"
        "from test_tool_process import Inbox, prepared\n"
        "from palaestra.envs.running.runner import Runner\n"
        "_, pending = prepared('spin_long', {})\n"
        "(work,) = pending.works\n"
        "Runner(1).start((pending,), Inbox('w'))\n"
        "while work.started_at is None: time.sleep(0.01)\n"
        "print(work.child.process.pid, flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, os.path.dirname(__file__)], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert gone(pid)
