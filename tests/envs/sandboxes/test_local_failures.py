"""What breaks is ours and says so: killed parts are replaced, nothing is left behind, nobody else is touched."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from settling import alive, below, soon, supervisor_of

from palaestra.envs.sandboxes import Session
from palaestra.envs.sandboxes.framed import FramedSession
from palaestra.envs.sandboxes.local import LocalSandbox
from palaestra.envs.sandboxes.runner import watching
from palaestra.envs.sandboxes.runner.files import empty
from palaestra.errors import Broken, SandboxUnavailable, UsageError


@pytest.fixture
def sandbox() -> Iterator[LocalSandbox]:
    try:
        opened = LocalSandbox(preload="bare")
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    with opened:
        yield opened


def zygote_of(sandbox: LocalSandbox) -> int:
    """The one that such a sandbox has."""
    supervisor = supervisor_of(sandbox)
    (zygote,) = (pid for pid in below(supervisor) if watching.status(pid)[1:2] == [b"%d" % supervisor])
    return zygote


def groups_of(pid: int) -> list[str]:
    """Its control groups; others come and go meanwhile, which a walk does not mind."""
    walk = os.walk("/sys/fs/cgroup")
    return [name for _, names, _ in walk for name in names if name.startswith("palaestra-") and f"-{pid}-" in name]


def once_it_runs(session: Session, then: Callable[[], object]) -> threading.Thread:
    """Do something in a thread, as soon as a run of the session is on its way."""

    def wait() -> None:
        soon(cast("FramedSession", session)._busy.locked)
        time.sleep(0.2)  # most often it has come to the program by then; whatever follows holds also where it has not
        then()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_a_zygote_killed_during_a_run_is_broken_and_the_next_session_has_a_new_one(sandbox: LocalSandbox) -> None:
    session = sandbox.start()
    killing = once_it_runs(session, partial(os.kill, zygote_of(sandbox), signal.SIGKILL))
    with pytest.raises(Broken, match="zygote"):
        session.run("import time; time.sleep(1000)", timeout=1000)
    killing.join()
    session.close()
    assert sandbox.run_once("print(1)").stdout == "1\n"


def test_a_killed_supervisor_is_broken_replaced_and_leaves_nothing(sandbox: LocalSandbox) -> None:
    session = sandbox.start()
    session.run("import os, time\nif os.fork() == 0: time.sleep(1000)")
    supervisor = supervisor_of(sandbox)
    family = below(supervisor)
    assert len(family) >= 4
    os.kill(supervisor, signal.SIGKILL)
    with pytest.raises(Broken, match="gone"):
        session.run("1")
    soon(lambda: not any(map(alive, family)))
    assert sandbox.run_once("print(1)").stdout == "1\n"
    assert supervisor_of(sandbox) != supervisor
    soon(lambda: not groups_of(supervisor))  # another sandbox of this machine may be sweeping them just now


def test_closing_leaves_nothing(sandbox: LocalSandbox) -> None:
    session = sandbox.start()
    session.run("import os, time\nif os.fork() == 0: time.sleep(1000)")
    supervisor = supervisor_of(sandbox)
    family = {supervisor, *below(supervisor)}
    sandbox.close()
    with pytest.raises(UsageError, match="closed"):
        session.run("1")
    assert not any(map(alive, family)) and not groups_of(supervisor)
    with pytest.raises(UsageError, match="closed"):
        sandbox.run_once("1")


def test_a_forked_trainer_has_a_supervisor_of_its_own_and_spares_its_parents(sandbox: LocalSandbox) -> None:
    with sandbox.start() as session:
        session.run("x = 1")
        supervisor = supervisor_of(sandbox)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                own = sandbox.run_once("print(2)").stdout == "2\n" and supervisor_of(sandbox) != supervisor
                sandbox.close()
                code = 0 if own else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert session.run("x", show_last=True).value == "1"
        assert supervisor_of(sandbox) == supervisor


def test_many_threads_share_a_sandbox(sandbox: LocalSandbox) -> None:
    outcomes: list[str] = []

    def work(number: int) -> None:
        with sandbox.start() as session:
            session.run(f"x = {number}")
            for _ in range(5):
                session.run("x += 1")
            outcomes.append(session.run("x", show_last=True).value or "")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, outcomes)) == list(range(5, 13))


def test_closing_the_sandbox_during_a_run_breaks_the_run_and_nothing_else(sandbox: LocalSandbox) -> None:
    session, supervisor = sandbox.start(), sandbox._supervisor
    assert supervisor is not None
    closing = once_it_runs(session, sandbox.close)
    with pytest.raises(Broken, match="gone"):
        session.run("import time; time.sleep(1000)", timeout=1000)
    closing.join()
    reader, writer = os.pipe()  # they take the numbers that were let go
    assert supervisor.why() == "it ended with 0"
    os.close(reader)
    os.close(writer)


def test_a_folder_is_emptied_whatever_was_put_into_it(tmp_path: Path) -> None:
    folder = tmp_path
    for _ in range(40):
        folder = folder / ("d" * 200)
        os.mkdir(folder) if len(str(folder)) < 4000 else None
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked" / "file").write_text("x")
    (tmp_path / "locked").chmod(0)
    (tmp_path / "link").symlink_to("/etc")
    empty(str(tmp_path))
    assert os.listdir(tmp_path) == [] and os.path.isdir("/etc")


def test_a_hundred_runs_at_once_are_all_answered(sandbox: LocalSandbox) -> None:
    async def together() -> list[str]:
        runs = (sandbox.arun_once("print(1)", timeout=60.0) for _ in range(100))
        return [result.stdout for result in await asyncio.gather(*runs)]

    assert asyncio.run(together()) == ["1\n"] * 100


def test_no_path_leads_outside_and_what_is_no_regular_file_is_refused_at_once(sandbox: LocalSandbox) -> None:
    with sandbox.start() as session:
        session.run("import os\nos.symlink('/etc/passwd', 'link')\nos.symlink('/tmp', 'way')")
        session.run("os.mkfifo('fifo')\nos.mkdir('folder')\nos.truncate(os.open('big', 66), 10**7)")
        for path in ("../x", "/etc/passwd", "a/../../x", "link/x", "link", "way/x", "fifo", "folder", "."):
            for attempt in (lambda path: session.put(path, b""), session.get):
                with pytest.raises(OSError, match=r".") as caught:
                    attempt(path)
                assert not isinstance(caught.value, FileNotFoundError), path
        assert len(session.get("big")) == 10**7


def test_files_come_and_go_while_a_run_goes_on_or_after_its_end(sandbox: LocalSandbox) -> None:
    with sandbox.start(files={"given/deep.txt": b"1"}) as session:
        assert session.run("print(open('given/deep.txt').read())").stdout == "1\n"
        session.put("new/file", b"\0\xff")
        assert session.get("new/file") == b"\0\xff"
        assert session.run("import os; open('new/file', 'ab').write(b'!'); os._exit(0)").state_lost
        assert session.get("new/file") == b"\0\xff!"
        assert session.listdir() == ["given/", "new/"] and session.listdir("new") == ["file"]
        with pytest.raises(OSError, match="may have"):
            session.put("large", bytes(2**24 + 1))
        with pytest.raises(FileNotFoundError):
            session.get("none")
