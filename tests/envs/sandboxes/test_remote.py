"""A remote sandbox behaves as the one behind it, and neither a lost answer nor a lying server is taken for a result."""

import asyncio
import contextlib
import socket
import threading
import time
from dataclasses import asdict, replace

import httpx
import pytest
import uvicorn
from memory_sandbox import MemorySandbox
from patient_runner import patient
from settling import soon

from palaestra.cli.serve_sandbox import ServeSandboxOptions
from palaestra.envs.rewards.code import GRADING
from palaestra.envs.sandboxes import Limits, open_sandbox
from palaestra.envs.sandboxes.remote import RemoteSandbox, client, connection, hosting, server
from palaestra.envs.sandboxes.remote.admission import ServiceLimits
from palaestra.envs.sandboxes.remote.connection import TOKEN_ENV
from palaestra.envs.sandboxes.remote.messages import CONTENT_TYPE, pack_result, unpack
from palaestra.envs.sandboxes.remote.server import application, find_token, serve
from palaestra.envs.sandboxes.result import Result
from palaestra.envs.sandboxes.runner.wire import RESULT, RUN, pack
from palaestra.envs.tools.python import CodeInterpreter
from palaestra.envs.tools.shell import Shell
from palaestra.errors import Broken, ConfigError, SandboxUnavailable, UsageError

URL = "http://localhost:1"
TOKEN = "a-token-of-many-letters"
SESSION, REQUEST = "s" * 32, "r" * 32


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """Waits between two tries are short."""
    monkeypatch.setattr(connection, "_FIRST_WAIT", 0.02)
    monkeypatch.setattr(server, "_RETRY_AFTER", 0)


def operation(request):
    """What a request asks for."""
    if request.method == "GET":
        return "capabilities"
    head, _ = unpack(request.content, 2**28)
    return "run" if isinstance(head, bytes) else head["op"]


class Line(httpx.AsyncBaseTransport):
    """The network between a client and a server's application; `mishap(operation)` may raise, or answer by itself."""

    def __init__(self, app, mishap=None):
        self.inner = httpx.ASGITransport(app)
        self.mishap = mishap or (lambda operation: None)
        self.statuses = []

    async def handle_async_request(self, request):
        answer = await self.inner.handle_async_request(request)
        self.statuses.append(answer.status_code)
        await answer.aread()
        return self.mishap(operation(request)) or raw(answer.content, answer.status_code, answer.headers)


def raw(content, status=200, headers=None):
    """A response as it comes from a socket."""
    stream = content if isinstance(content, httpx.AsyncByteStream) else httpx.ByteStream(content)
    return httpx.Response(status, headers=headers, stream=stream)


def on_run(answer):
    """A mishap: what this gives in place of the answer to a run."""
    return lambda operation: answer() if operation == "run" else None


@contextlib.contextmanager
def joined(inner=None, mishap=None, service=None, **options):
    inner = inner or MemorySandbox()
    line = Line(application(inner, service or ServiceLimits()), mishap)
    with RemoteSandbox(URL, transport=line, **{"patience": 60.0, **options}) as sandbox:
        sandbox.inner, sandbox.line = inner, line
        yield sandbox


def hosted(sandbox):
    """The sessions as its server holds them."""
    return sandbox.line.inner.app.routes[-1].endpoint.__self__.hosting


def asking(app, work):
    """Run `work(post)` with a client of our own: `post(frame, session, request)` gives an answer's status and text."""

    async def ask():
        transport, kind = httpx.ASGITransport(app), {"Content-Type": CONTENT_TYPE}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as asker:

            async def post(frame, session=SESSION, request=REQUEST, **headers):
                answer = await asker.post(f"/v2/{session}/{request}", content=frame, headers=kind | headers)
                return answer.status_code, answer.text

            await work(post)

    asyncio.run(ask())


# As the one behind it.


def test_a_session_keeps_its_state_and_its_files_and_one_run_does_not():
    with joined() as sandbox:
        assert sandbox.capabilities().backend == "remote memory"
        assert sandbox.capabilities().memory == "tree"
        assert sandbox.capabilities().notes == ("made of air",)
        assert sandbox.limits == Limits()
        session = sandbox.start(files={"a": b"\x00\xff", "b/c": b""})
        assert session.listdir() == ["a", "b/c"]
        assert session.get("a") == b"\x00\xff"
        session.put("d\udcff", b"new")
        assert session.listdir()[-1] == "d\udcff"
        assert session.run("count").stdout == "1"
        assert session.run("count").stdout == "2"
        fork = session.fork()
        assert fork.run("count").stdout == "3"
        assert session.run("count").stdout == "3"
        session.reset()
        assert session.listdir() == []
        assert session.run("count").stdout == "1"
        assert session.run("say x", show_last=True) == Result("x", value="'x'", duration_s=0.25, stdout_bytes=1)
        assert session.run(["ls", "-l"]).stdout == "ls -l"
        assert session.run("echo", stdin=b"given").stdout == "given"
        assert sandbox.run_once("count", files={"x": b"1"}).stdout == "1"
        assert len(sandbox.inner.alive) == 2
        session.close()
        session.close()
        fork.close()
        assert sandbox.inner.alive == []
        with pytest.raises(UsageError, match="closed"):
            session.run("count")


def test_many_at_once_from_a_running_loop_which_never_waits():
    async def work(sandbox):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(sandbox, number)) for number in range(20)]
            while sandbox.inner.busy < 20:  # were it waiting for a run, this loop would never come to open the gate
                await asyncio.sleep(0.01)
            sandbox.inner.gate.set()
        assert [task.result() for task in tasks] == [str(number) for number in range(20)]

    async def one(sandbox, number):
        session = await sandbox.astart()
        await session.arun("gate", timeout=60.0)
        said = (await session.arun(f"say {number}")).stdout
        await session.aclose()
        return said

    with joined() as sandbox:
        asyncio.run(work(sandbox))


def test_failures_come_through_as_what_they_are():
    with joined() as sandbox, sandbox.start() as session:
        with pytest.raises(Broken, match="the disk has melted"):
            session.run("break")
        with pytest.raises(UsageError, match="never ask that"):
            session.run("usage")
        with pytest.raises(FileNotFoundError) as caught:
            session.get("missing")
        assert (caught.value.errno, caught.value.filename) == (2, "missing")
        with pytest.raises(Broken, match="ZeroDivisionError"):
            session.run("defect")
        assert session.run("count").stdout == "4"


def test_limits_are_the_usual_ones_within_the_servers_and_only_ever_tighter():
    wide = Limits(seconds=900.0, memory_bytes=2**40, processes=4, code_bytes=2**25)
    service, asked = ServiceLimits(most_seconds=60.0), Limits(seconds=60.0, memory_bytes=2**40, processes=4)
    for options, found in (({}, Limits(processes=4)), ({"limits": asked}, asked)):
        with joined(MemorySandbox(wide), service=service, **options) as sandbox:
            assert sandbox.limits == found
            sandbox.start()
            assert sandbox.inner.sessions[-1].limits == found
            sandbox.start(limits=replace(found, seconds=1.0))
            assert sandbox.inner.sessions[-1].limits.seconds == 1.0
            with pytest.raises(UsageError, match="processes is 32; this sandbox gives at most 4"):
                sandbox.start(limits=replace(found, processes=32))
            with pytest.raises(UsageError, match="allows at most 60"):
                sandbox.run_once("count", timeout=61.0)
    with (
        pytest.raises(UsageError, match=r"seconds is 60\.5"),
        joined(MemorySandbox(wide), service=service, limits=replace(asked, seconds=60.5)),
    ):
        pass


def test_a_run_waits_no_longer_than_the_limits_of_its_session_and_of_the_fork(monkeypatch):
    monkeypatch.setattr(hosting, "_RUN_GRACE", 0.1)
    with joined(MemorySandbox(Limits(seconds=60.0))) as sandbox:
        session = sandbox.start(limits=Limits(seconds=0.1))
        for one in (session.fork(), session):
            began = time.monotonic()
            with pytest.raises(Broken, match="did not answer in time"):
                one.run("wait 1000")
            assert time.monotonic() - began < 50, "it has waited as long as the sandbox allows"


def test_the_command_serves_what_the_tools_and_graders_ask_for():
    options = ServeSandboxOptions(backend="sandbox")
    for asked in (Limits(), GRADING, CodeInterpreter.limits, Shell.limits):
        assert asked.within(options.limits()) == asked
        with joined(MemorySandbox(options.limits()), limits=asked) as sandbox:
            program, stdin = "é" * (asked.code_bytes // 2), b"x" * asked.code_bytes
            assert sandbox.run_once(program, stdin=stdin).limit_hit == ""
            assert sandbox.inner.ran == [program]


def test_kept_answers_have_a_largest_size_together(monkeypatch):
    monkeypatch.setattr(hosting, "KEPT_BYTES", 10_000)
    with joined() as sandbox, sandbox.start() as session:

        def kept():
            return sum(answer.size() for answer in hosted(sandbox)._answers.values())

        for _ in range(8):
            assert session.run("bytes 2000").stdout_bytes == 4000
            assert kept() <= 10_000
        assert kept() > 8000
        assert session.run("bytes 4000").stdout_bytes == 8000
        assert session.run("count").stdout == "10"


# What the network does.


def test_a_request_whose_answer_was_lost_is_not_executed_again():
    lost = []

    def mishap(operation):
        if operation != "capabilities" and lost.count(operation) < 2:
            lost.append(operation)
            raise httpx.ReadError("gone")

    with joined(mishap=mishap) as sandbox:
        session = sandbox.start(files={"a": b"1"})
        assert len(sandbox.inner.sessions) == 1
        assert session.run("count").stdout == "1"
        assert session.run("count").stdout == "2"
        session.fork()
        assert len(sandbox.inner.sessions) == 2
        session.put("b", b"2")
        session.reset()
        assert sandbox.run_once("say once").stdout == "once"
        assert sandbox.inner.ran.count("say once") == 1
        assert lost.count("run") == 2


def test_a_server_that_cannot_be_reached_is_broken_when_patience_ends():
    away = []

    def mishap(operation):
        if away:
            raise httpx.ConnectError("nobody there")

    with joined(mishap=mishap, patience=0.3) as sandbox:
        session = sandbox.start()
        away.append(True)
        began = time.monotonic()
        with pytest.raises(Broken, match="nobody there"):
            session.run("count")
        assert 0.25 < time.monotonic() - began < 20.0
        away.clear()
        assert session.run("count").stdout  # The session has survived.


def test_a_full_server_tells_its_figures_and_is_waited_for():
    service = ServiceLimits(most_sessions=1, most_running=1, most_waiting=1)
    with joined(service=service, patience=0.5) as sandbox:
        first = sandbox.start()
        with pytest.raises(Broken, match="sessions 1, most_sessions 1, running 0"):
            sandbox.start()
        threading.Timer(0.2, first.close).start()
        waiting = RemoteSandbox(URL, transport=sandbox.line, patience=600.0)
        waiting.start()
        answers = []
        sandbox.line.statuses.clear()

        def slow():
            answers.append(waiting.run_once("gate", timeout=60.0))

        threads = [threading.Thread(target=slow) for _ in range(3)]
        for thread in threads:
            thread.start()
        soon(lambda: 429 in sandbox.line.statuses)  # One runs, one waits, and the third was told to come again.
        sandbox.inner.gate.set()
        for thread in threads:
            thread.join()
        assert len(answers) == 3
        assert sandbox.inner.ran.count("gate") == 3
        waiting.close()


def forged(**values):
    """A result of which some fields are not as they should be."""
    names = ("code", "signal", "late", "oom", "lost", "limit", "out_all", "err_all", "seconds", "cpu", "held",
             "out", "err", "value")  # fmt: skip
    fields = dict(zip(names, (0, -1, False, False, False, 0, 4, 0, 0.0, 0.0, 0, 4, 0, -1), strict=True))
    return pack(RESULT.pack(*(fields | values).values()), b"fine")


LIES = [
    b"", b"<html>a page</html>", b"\xff\xff\xff\xff" * 100, pack({})[:-1], pack({}) + b"x", pack({"ok": True}),
    pack({"error": "a word"}), pack({"error": {"kind": "broken", "text": 5}}), pack({"error": {"text": "t"}}),
    b"\x02\x00\x00\x00\x00\x00\x00\x00[]", (200_001).to_bytes(4, "little") + bytes(4) + b"[" * 200_001,
    pack(b"\0short"), forged(limit=99), forged(seconds=float("nan")), forged(cpu=float("inf")), forged(out=5),
    forged(value=2**31 - 1), pack(RESULT.pack(*[0] * 11, 2**31, 0, 0)),
]  # fmt: skip


def test_a_server_that_lies_is_broken():
    assert unpack(forged(), 100) == unpack(pack_result(Result("fine", stdout_bytes=4)), 100)
    answers = iter(LIES)
    with joined(mishap=on_run(lambda: raw(next(answers)))) as sandbox:
        session = sandbox.start()
        for lie in LIES:
            with pytest.raises(Broken):
                pytest.fail(f"{lie[:80]!r} was taken for {session.run('count')}")
        for lie in (pack({"ok": True}, b"[1]"), pack({"ok": True}, b"{"), pack({"error": {"kind": "os", "text": 1}})):
            sandbox.line.mishap = lambda operation, lie=lie: raw(lie)
            with pytest.raises(Broken):
                session.listdir()
    pages = [raw(lie) for lie in (b"", b"{}", b'{"capabilities": {"backend": 1}, "limits": {}}', b"[" * 10**5)]
    for page in [*pages, raw(b"x", 200, {"content-encoding": "gzip"})]:
        with pytest.raises(SandboxUnavailable, match="is no sandbox server" if page in pages else "compressed"):
            RemoteSandbox(URL, transport=Line(sandbox.line.inner.app, lambda _, page=page: page))


class Endless(httpx.AsyncByteStream):
    """A body that goes on and on."""

    def __init__(self, part, pause):
        self.part, self.pause, self.sent = part, pause, 0

    async def __aiter__(self):
        while True:
            self.sent += len(self.part)
            yield self.part
            await asyncio.sleep(self.pause)


def test_a_body_that_never_ends_is_not_read_to_its_end(monkeypatch):
    bodies = [Endless(bytes(2**16), 0), Endless(b"x", 0.02)]

    async def trickle(session):
        async with asyncio.timeout(100):
            await session.arun("count", timeout=0.1)

    with joined(mishap=on_run(lambda: raw(bodies[0])), patience=0.2) as sandbox:
        session = sandbox.start()
        with pytest.raises(Broken, match=r"in 1 tries .* larger than"):
            session.run("count", timeout=0.1)
        assert bodies[0].sent < 8 * 2**20
        bodies.pop(0)
        monkeypatch.setattr(client.HttpStream, "grace", 0.3)
        with pytest.raises(Broken, match="no answer"):
            asyncio.run(trickle(session))


# Who may ask.


def test_a_token_is_demanded_and_never_shown(monkeypatch, caplog, capfd):
    app = application(MemorySandbox(), ServiceLimits(), TOKEN, local=False)
    monkeypatch.delenv(TOKEN_ENV, raising=False)
    with pytest.raises(UsageError, match="the token is missing"):
        RemoteSandbox("http://example.org", transport=Line(app))
    monkeypatch.setenv(TOKEN_ENV, "another-token-of-letters")
    with pytest.raises(UsageError, match="the token was refused"):
        RemoteSandbox("http://example.org", transport=Line(app))
    monkeypatch.setenv(TOKEN_ENV, TOKEN)
    spoilt = Line(app, on_run(lambda: raw(TOKEN.encode(), 500)))
    with RemoteSandbox("http://example.org", transport=spoilt, patience=0.2) as sandbox:
        with pytest.raises(Broken) as caught:
            sandbox.start().run("count")
        assert TOKEN not in f"{caught.value!r} {sandbox!r} {vars(sandbox)}"
    shown = capfd.readouterr()
    assert TOKEN not in caplog.text + shown.out + shown.err


def test_nothing_is_answered_without_the_token():
    async def ask():
        transport = httpx.ASGITransport(application(MemorySandbox(), ServiceLimits(), TOKEN))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as asker:
            for path in ("/v2/capabilities", f"/v2/{SESSION}/{REQUEST}", "/v2/a/b"):
                ask_once = asker.get if "capabilities" in path else asker.post
                for given in ("", "Bearer", f"Basic {TOKEN}", TOKEN[:-1], f"Bearer {TOKEN[:-1]}"):
                    answer = await ask_once(path, headers={"Authorization": given})
                    assert (answer.status_code, "memory" in answer.text) == (401, False)

    asyncio.run(ask())


def test_without_a_token_a_web_page_gets_nowhere():
    inner = MemorySandbox()

    async def work(post):
        start = pack({"op": "start", "files": [], "limits": {}})
        assert (await post(start, Host="127.0.0.1.evil.example"))[0] == 403
        assert (await post(start, **{"Content-Type": "text/plain"}))[0] == 415
        assert inner.sessions == []
        assert (await post(start))[0] == 200

    asking(application(inner, ServiceLimits()), work)


def test_a_token_is_needed_beyond_this_machine(monkeypatch):
    monkeypatch.delenv(TOKEN_ENV, raising=False)
    assert find_token(TOKEN_ENV, "127.0.0.1") == ""
    for host in ("0.0.0.0", "192.168.1.2", "::", "127.evil.example"):
        with pytest.raises(UsageError, match="needs"):
            find_token(TOKEN_ENV, host)
    monkeypatch.setenv(TOKEN_ENV, "short")
    with pytest.raises(UsageError, match="16 or more"):
        find_token(TOKEN_ENV, "127.0.0.1")
    monkeypatch.setenv(TOKEN_ENV, TOKEN)
    assert find_token(TOKEN_ENV, "0.0.0.0") == TOKEN
    with pytest.raises(UsageError, match="needs a token"):
        application(MemorySandbox(), ServiceLimits(), "", local=False)


def test_a_request_of_the_wrong_form_is_told_what_is_wrong():
    def once(run=None, **header):
        run = RUN.pack(False, False, 1.0, 0) if run is None else RUN.pack(*run)
        return pack({"op": "once", "files": [], "limits": {}, **header}, run)

    wrong = [
        (b"nothing", "no frame"), (pack({}), "op is a NoneType"), (pack({"op": "dance"}), "no operation 'dance'"),
        (once(files=3), "files"), (once(files=[["a", -1]]), "files"), (once(files=[["a", 10**6]]), "files of"),
        (once(limits=5), "limits is 5"), (once(limits={"sky": 1}), "no 'sky'"),
        (pack({"op": "once", "files": []}), "a run of"),
        (once((False, False, float("nan"), 0)), "a run of nan"), (once((True, False, 1.0, 0)), "program"),
        (once((False, False, 1.0, 9)), "9 bytes"), (pack({"op": "put", "path": 5}), "no such session"),
    ]  # fmt: skip

    async def work(post):
        for number, (frame, words) in enumerate(wrong):
            status, text = await post(frame, request=f"{number:032}")
            assert (status in (400, 500), words in text) == (True, True), (words, status, text)
        for names in (("short", REQUEST), (SESSION, "a" * 65), (SESSION, "a-" * 16)):
            assert (await post(once(), *names))[0] == 400
        for patience in ("nan", "-1", "inf", "long"):
            assert (await post(once(), **{connection.PATIENCE_HEADER: patience}))[0] == 400

    asking(application(MemorySandbox(), ServiceLimits()), work)


def test_a_server_believes_no_client(monkeypatch):
    """Limits that the client did not check, and a request whose answer is not kept any more."""
    monkeypatch.setattr(hosting, "KEPT_SECONDS", 0.0)
    monkeypatch.setattr(hosting, "_LOOK", 0.02)
    inner = MemorySandbox(Limits(seconds=2.0))

    async def work(post):
        def start(seconds):
            return pack({"op": "start", "files": [], "limits": asdict(Limits(seconds=seconds))})

        run = pack(RUN.pack(False, False, 1.0, 5), b"count")
        status, text = await post(start(3.0), request="a" * 32)
        assert (status, "seconds is 3.0" in text) == (400, True)
        assert (await post(start(2.0), request="b" * 32))[0] == 200
        assert (await post(run, request="c" * 32))[0] == 200
        await asyncio.sleep(0.2)
        status, text = await post(run, request="c" * 32)
        assert (status, "executed before" in text) == (500, True)
        assert inner.ran == ["count"]
        assert "no such session" in (await post(run, "t" * 32, "c" * 32))[1]

    asking(application(inner, ServiceLimits()), work)


def test_what_is_too_large_is_not_sent_and_refused_where_it_is():
    async def work(post):
        status, text = await post(bytes(5 * 2**20))
        assert (status, "larger than" in text) == (413, True)

    limits = Limits(scratch_bytes=1000, file_bytes=1000, code_bytes=1000)
    asking(application(MemorySandbox(limits), ServiceLimits()), work)
    with joined(MemorySandbox(limits)) as sandbox, sandbox.start() as session:
        for program in ("say " + "x" * 1000, "é" * 501):
            assert sandbox.run_once(program).limit_hit == "code"
        assert sandbox.inner.ran == []
        with pytest.raises(OSError, match="a file may have 1000"):
            session.put("a", bytes(2 * 2**20))
        session.put("a", bytes(500))


# Those who never come back.


def test_a_session_that_nobody_touches_ends(monkeypatch):
    monkeypatch.setattr(hosting, "_LOOK", 0.01)
    with joined() as sandbox:
        session, looks, results = sandbox.start(), [], []
        held = hosted(sandbox)
        look = held._drop_old_answers
        monkeypatch.setattr(held, "_drop_old_answers", lambda: (looks.append(None), look()))
        running = threading.Thread(target=lambda: results.append(session.run("gate", timeout=60.0)))
        running.start()
        soon(lambda: sandbox.inner.busy)
        held.service = replace(held.service, idle_seconds=0.05)
        time.sleep(0.1)
        seen = len(looks)
        soon(lambda: len(looks) > seen + 3)
        assert sandbox.inner.alive  # While something runs it is not idle.
        sandbox.inner.gate.set()
        running.join()
        assert results[0].ok
        soon(lambda: not sandbox.inner.alive)
        with pytest.raises(Broken, match="nobody had touched it"):
            session.run("count")


def test_cancelling_a_run_ends_it_there(monkeypatch):
    monkeypatch.setattr(hosting, "RETURN_SECONDS", 1000.0)  # It is told, and does not just wait.

    async def work(sandbox):
        session = await sandbox.astart()
        for run in (session.arun("wait 1000", timeout=600.0), sandbox.arun_once("wait 1001", timeout=600.0)):
            task = asyncio.create_task(run)
            while not sandbox.inner.busy:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(UsageError, match="cancelled, which ended this session"):
                await session.arun("count")
            while sandbox.inner.busy:
                await asyncio.sleep(0.01)

    with joined() as sandbox:
        asyncio.run(asyncio.wait_for(work(sandbox), 100))
        assert sandbox.inner.cancelled == ["wait 1000", "wait 1001"]
        soon(lambda: not sandbox.inner.alive)


def test_closing_ends_a_run_from_another_thread():
    def close():
        soon(lambda: sandbox.inner.busy)
        session.close()

    with joined() as sandbox:
        session = sandbox.start()
        closing = threading.Thread(target=close)
        closing.start()
        with pytest.raises(Broken, match="ended"):
            session.run("wait 1000", timeout=600.0)
        closing.join()
        soon(lambda: not sandbox.inner.alive)


@pytest.fixture
def served(monkeypatch):
    """A server on loopback, its sandbox, and a way to stop it."""
    inner, urls, servers, made = MemorySandbox(), [], [], uvicorn.Server
    monkeypatch.setattr(uvicorn, "Server", lambda config: servers.append(made(config)) or servers[0])
    thread = threading.Thread(target=lambda: serve(inner, port=0, ready=urls.append), daemon=True)
    thread.start()
    soon(lambda: servers and servers[0].started)

    def stop():
        servers[0].should_exit = True
        thread.join(60)
        assert not thread.is_alive()

    yield inner, urls[0], stop
    stop()


def test_over_a_socket_a_killed_client_ends_its_run_and_a_stopped_server_its_sessions(served, monkeypatch):
    inner, url, stop = served
    monkeypatch.setattr(hosting, "RETURN_SECONDS", 0.3)
    with open_sandbox("remote", url=url, require=["files"], patience=0.5) as sandbox:
        kept = sandbox.start()
        data = pack(RUN.pack(False, False, 60.0, 7), b"wait 60")
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as killed:
            lines = [f"POST /v2/{kept._name}/{REQUEST} HTTP/1.1", f"Host: {host}", f"Content-Type: {CONTENT_TYPE}"]
            killed.sendall("\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data)
            soon(lambda: inner.busy)
        soon(lambda: not inner.busy)
        assert inner.cancelled == ["wait 60"]
        soon(lambda: not inner.alive)
        again = sandbox.start()
        assert again.run("count").stdout == "1"
        stop()
        assert inner.alive == []
        with pytest.raises(Broken, match="gave no answer in"):
            sandbox.run_once("count")


def test_what_cannot_be_opened_says_why(monkeypatch):
    monkeypatch.setattr(connection, "OPENING", 0.2)
    with socket.socket() as taken:  # and nobody listens there
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match="cannot be used"):
            serve(MemorySandbox(), port=port)
        with pytest.raises(SandboxUnavailable, match="palaestra serve sandbox"):
            open_sandbox("remote", url=f"http://127.0.0.1:{port}")
    with pytest.raises(ConfigError):
        RemoteSandbox("not an address")
    with pytest.raises(ConfigError, match="most_running"):
        ServiceLimits(most_running=0)
    with pytest.raises(UsageError, match="lower them"):
        application(MemorySandbox(Limits(code_bytes=2**27)), ServiceLimits())
    application(MemorySandbox(Limits(scratch_bytes=2**40)), ServiceLimits())


def test_over_the_local_backend_programs_really_run(monkeypatch):
    try:
        inner = patient(monkeypatch, preload="bare")
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    with inner, joined(inner) as sandbox, sandbox.start(files={"data": b"4"}) as session:
        assert session.run("x = int(open('data').read())\nx * 10 + 2", show_last=True).value == "42"
        late = session.run("print('begun')\nwhile True: pass", timeout=0.3)
        assert (late.timed_out, late.limit_hit) == (True, "seconds")
        assert session.run("print(x)").stdout == "4\n"
        assert sandbox.run_once("import os; os._exit(3)").exit_code == 3
        assert session.listdir() == ["data"]
        with pytest.raises(OSError, match="below"):
            session.get("../secret")
