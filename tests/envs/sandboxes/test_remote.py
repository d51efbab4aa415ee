"""A remote sandbox behaves as the one behind it, and neither a lost answer nor a lying server is taken for a result."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from dataclasses import asdict, replace

import httpx
import pytest
from memory_sandbox import MemorySandbox
from patient_runner import patient
from settling import soon

from palaestra.cli.serve import Options
from palaestra.envs.rewards.code import GRADING
from palaestra.envs.sandboxes import Limits, open_sandbox
from palaestra.envs.sandboxes.remote import RemoteSandbox
from palaestra.envs.sandboxes.remote import places as places_module
from palaestra.envs.sandboxes.remote.server import application, find_token, serve
from palaestra.envs.sandboxes.remote.turnstile import ServiceLimits
from palaestra.envs.sandboxes.remote.wire import TOKEN_ENV, pack, result_answer, unpack
from palaestra.envs.sandboxes.result import Result
from palaestra.envs.tools.python import CodeInterpreter
from palaestra.envs.tools.shell import Shell
from palaestra.errors import Broken, ConfigError, SandboxUnavailable, UsageError

URL = "http://localhost:1"
TOKEN = "a-token-of-many-letters"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """Waits between two tries are short."""
    monkeypatch.setattr("palaestra.envs.sandboxes.remote.exchange._FIRST_WAIT", 0.02)
    monkeypatch.setattr("palaestra.envs.sandboxes.remote.server._RETRY_AFTER", 0)


class Line(httpx.AsyncBaseTransport):
    """The network between a client and a server's application; `mishap(request, answer)` may spoil it."""

    def __init__(self, app, mishap=None):
        self.inner = httpx.ASGITransport(app)
        self.mishap = mishap or (lambda request, answer: None)
        self.statuses = []

    async def handle_async_request(self, request):
        answer = await self.inner.handle_async_request(request)
        self.statuses.append(answer.status_code)
        await answer.aread()
        return self.mishap(request, answer) or httpx.Response(
            answer.status_code, headers=answer.headers, stream=Raw(answer.content)
        )


class Raw(httpx.AsyncByteStream):
    def __init__(self, content):
        self.content = content

    async def __aiter__(self):
        yield self.content


@contextlib.contextmanager
def joined(inner=None, mishap=None, service=None, **options):
    inner = inner or MemorySandbox()
    line = Line(application(inner, service or ServiceLimits()), mishap)
    options = {"patience": 60.0, **options}
    with RemoteSandbox(URL, transport=line, **options) as sandbox:
        sandbox.inner, sandbox.line = inner, line
        yield sandbox


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


def test_limits_are_only_ever_tighter():
    with joined(MemorySandbox(Limits(seconds=3.0, memory_bytes=2**26))) as sandbox:
        with sandbox.start(limits=Limits(seconds=1.0, memory_bytes=2**25)):
            assert sandbox.inner.sessions[-1].limits.seconds == 1.0
        with pytest.raises(UsageError, match=r"seconds is 4\.0; this sandbox gives"):
            sandbox.start(limits=Limits(seconds=4.0, memory_bytes=2**25))
        with pytest.raises(UsageError, match="allows at most 600"):
            sandbox.run_once("count", timeout=601.0)
        with pytest.raises(UsageError, match="positive number of seconds"):
            sandbox.run_once("count", timeout=float("nan"))


def test_who_asks_for_no_limits_gets_the_usual_ones_within_the_servers():
    wide = Limits(seconds=900.0, memory_bytes=2**40, processes=4, code_bytes=2**25)
    with joined(MemorySandbox(wide), service=ServiceLimits(most_seconds=60.0)) as sandbox:
        assert sandbox.limits == Limits(processes=4)
        sandbox.start()
        assert sandbox.inner.sessions[-1].limits == Limits(processes=4)
        with pytest.raises(UsageError, match="processes is 32"):
            sandbox.start(limits=Limits())
    asked = Limits(seconds=60.0, memory_bytes=2**40, processes=4)
    with joined(MemorySandbox(wide), service=ServiceLimits(most_seconds=60.0), limits=asked) as sandbox:
        sandbox.start()
        assert sandbox.inner.sessions[-1].limits == asked
    with (
        pytest.raises(UsageError, match=r"seconds is 60\.5"),
        joined(MemorySandbox(wide), service=ServiceLimits(most_seconds=60.0), limits=replace(asked, seconds=60.5)),
    ):
        pass


def test_a_run_waits_no_longer_than_the_limits_of_its_session_and_of_the_fork(monkeypatch):
    monkeypatch.setattr(places_module, "_RUN_GRACE", 0.1)
    with joined(MemorySandbox(Limits(seconds=60.0))) as sandbox:
        session = sandbox.start(limits=Limits(seconds=0.1))
        for place in (session.fork(), session):
            began = time.monotonic()
            with pytest.raises(Broken, match="did not answer in time"):
                place.run("wait 1000")
            assert time.monotonic() - began < 50, "it has waited as long as the sandbox allows"


def test_the_command_serves_what_the_tools_and_graders_ask_for():
    options = Options("sandbox")
    for asked in (Limits(), GRADING, CodeInterpreter.limits, Shell.limits):
        assert asked.within(options.limits()) == asked
        with joined(MemorySandbox(options.limits()), limits=asked) as sandbox:
            program, stdin = "é" * (asked.code_bytes // 2), b"x" * asked.code_bytes
            assert sandbox.run_once(program, stdin=stdin).limit_hit == ""
            assert sandbox.inner.ran == [program]


def test_a_server_whose_programs_would_not_fit_into_a_request_does_not_start():
    with pytest.raises(UsageError, match="lower them"):
        application(MemorySandbox(Limits(code_bytes=2**27)), ServiceLimits())
    application(MemorySandbox(Limits(scratch_bytes=2**40)), ServiceLimits())


def test_kept_answers_have_a_largest_size_together(monkeypatch):
    monkeypatch.setattr(places_module, "KEPT_BYTES", 10_000)
    with joined() as sandbox, sandbox.start() as session:
        places = sandbox.line.inner.app.routes[-1].endpoint.__self__.places
        for _ in range(8):
            assert session.run("bytes 2000").stdout_bytes == 4000
            assert sum(work.size() for work in places._works.values()) <= 10_000
        assert sum(work.size() for work in places._works.values()) == 8000
        assert session.run("bytes 9000").stdout_bytes == 18_000
        assert session.run("count").stdout == "10"


def test_a_program_that_is_too_large_is_judged_by_the_backend_without_being_sent_whole():
    with joined(MemorySandbox(Limits(code_bytes=1000))) as sandbox:
        sandbox.run_once("say " + "x" * 10_000_000)
        assert len(sandbox.inner.ran[-1]) == 1001
        sandbox.run_once("é" * 1000)
        assert len(sandbox.inner.ran[-1].encode()) == 1001


# What the network does.


def test_a_request_whose_answer_was_lost_is_not_executed_again():
    lost = []

    def mishap(request, answer):
        path = request.url.path
        if path != "/v1/capabilities" and lost.count(path) < 2:
            lost.append(path)
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
        assert lost.count("/v1/run") == 2


def test_a_server_that_cannot_be_reached_is_broken_when_patience_ends():
    away = []

    def mishap(request, answer):
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


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>a page</html>",
        b"\xff\xff\xff\xff" * 100,
        pack({})[:-1],
        pack({"result": 1}),
        pack({"result": {}, "sizes": [0, 0, 0], "has_value": False}),
        pack({"result": {}, "sizes": [2**40, 0, 0], "has_value": False}),
        pack({"result": {}, "sizes": "aaa", "has_value": False}),
        pack({"error": "a word"}),
        pack({"error": {"kind": "os", "errno": "x", "text": "t"}}),
        pack({"error": {"kind": "broken", "text": 5}}),
        b"\x02\x00\x00\x00\x00\x00\x00\x00[]",
        (200_001).to_bytes(4, "little") + bytes(4) + b"[" * 200_001,
    ],
)
def test_a_server_that_lies_is_broken(body):
    def mishap(request, answer):
        return httpx.Response(200, stream=Raw(body)) if request.url.path == "/v1/run" else None

    with joined(mishap=mishap) as sandbox, sandbox.start() as session, pytest.raises(Broken):
        session.run("count")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("exit_code", "0"), ("exit_code", 2**40), ("signal", -9), ("timed_out", 0), ("limit_hit", "sky"),
        ("stdout_bytes", -1), ("duration_s", "1"), ("duration_s", 1e999), ("cpu_s", None), ("max_rss_bytes", 1.5),
        ("oom", None), ("state_lost", "yes"), ("sizes", [5, 0, 0]), ("sizes", [3, 0, 0]),
    ],
)  # fmt: skip
def test_a_result_whose_fields_have_wrong_types_is_none(name, value):
    def mishap(request, answer):
        if request.url.path == "/v1/run":
            header, body = result_answer(Result("fine"))
            (header if name == "sizes" else header["result"])[name] = value
            head = json.dumps(header).encode()
            sizes = len(head).to_bytes(4, "little") + len(body).to_bytes(4, "little")
            return httpx.Response(200, stream=Raw(sizes + head + body))
        return None

    with (
        joined(mishap=mishap) as sandbox,
        sandbox.start() as session,
        pytest.raises(Broken, match={"sizes": "parts"}.get(name, name.split("_")[0])),
    ):
        session.run("count")


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

    def mishap(request, answer):
        return httpx.Response(200, stream=bodies[0]) if request.url.path == "/v1/run" else None

    async def trickle(session):
        async with asyncio.timeout(100):
            await session.arun("count", timeout=0.1)

    with joined(mishap=mishap, patience=0.2) as sandbox:
        session = sandbox.start()
        with pytest.raises(Broken, match="larger than"):
            session.run("count", timeout=0.1)
        assert bodies[0].sent < 8 * 2**20
        bodies.pop(0)
        monkeypatch.setattr("palaestra.envs.sandboxes.remote.client.GRACE", 0.3)
        with pytest.raises(Broken, match="no answer"):
            asyncio.run(trickle(session))


def test_a_compressed_body_is_refused():
    def mishap(request, answer):
        return httpx.Response(200, headers={"content-encoding": "gzip"}, stream=Raw(b"x"))

    with pytest.raises(SandboxUnavailable, match="compressed"), joined(mishap=mishap):
        pass


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

    def mishap(request, answer):
        return httpx.Response(500, stream=Raw(TOKEN.encode())) if request.url.path == "/v1/run" else None

    with RemoteSandbox("http://example.org", transport=Line(app, mishap), patience=0.2) as sandbox:
        with pytest.raises(Broken) as caught:
            sandbox.start().run("count")
        assert TOKEN not in f"{caught.value!r} {sandbox!r} {vars(sandbox)}"
    shown = capfd.readouterr()
    assert TOKEN not in caplog.text + shown.out + shown.err


@pytest.mark.parametrize("path", ["/v1/capabilities", "/v1/once", "/v1/nothing", "/v1/start"])
def test_nothing_is_answered_without_the_token(path):
    async def ask():
        transport = httpx.ASGITransport(application(MemorySandbox(), ServiceLimits(), TOKEN))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            method = "GET" if path.endswith("capabilities") else "POST"
            for header in (
                {},
                {"Authorization": "Bearer"},
                {"Authorization": f"Basic {TOKEN}"},
                {"Authorization": TOKEN[:-1]},
            ):
                answer = await client.request(method, path, headers=header)
                assert answer.status_code == 401
                assert "memory" not in answer.text

    asyncio.run(ask())


def test_without_a_token_a_web_page_gets_nowhere():
    async def ask():
        inner = MemorySandbox()
        transport = httpx.ASGITransport(application(inner, ServiceLimits()))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            data = pack({"request": "r" * 32, "session": "s" * 32, "patience": 1})
            rebound = {"Host": "127.0.0.1.evil.example", "Content-Type": "application/x-palaestra-sandbox"}
            assert (await client.post("/v1/start", content=data, headers=rebound)).status_code == 403
            plain = {"Content-Type": "text/plain"}
            assert (await client.post("/v1/start", content=data, headers=plain)).status_code == 415
            assert inner.sessions == []

    asyncio.run(ask())


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


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ({}, "request is None"),
        ({"request": "r" * 32, "session": "../../etc/passwd"}, "session"),
        ({"request": "r" * 32, "session": "s" * 32, "argv": "ls"}, "program_size"),
        ({"request": "r" * 32, "session": "s" * 32, "files": [["a", -1]]}, "size"),
        ({"request": "r" * 32, "session": "s" * 32, "files": 3}, "files"),
    ],
)
def test_a_request_of_the_wrong_form_is_told_what_is_wrong(header, told):
    async def ask():
        transport = httpx.ASGITransport(application(MemorySandbox(), ServiceLimits()))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            kind = {"Content-Type": "application/x-palaestra-sandbox"}
            answer = await client.post("/v1/once", content=pack(header), headers=kind)
            assert answer.status_code == 400
            assert told in unpack(answer.content)[0]["error"]["text"]

    asyncio.run(ask())


def test_a_server_believes_no_client():
    """Limits that the client did not check, and a request whose answer is not kept any more."""

    async def ask():
        inner = MemorySandbox(Limits(seconds=2.0))
        transport = httpx.ASGITransport(application(inner, ServiceLimits()))
        kind = {"Content-Type": "application/x-palaestra-sandbox"}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=kind) as client:

            async def post(operation, request, body=b"", **header):
                named = {"request": request * 32, "session": "s" * 32, "patience": 1, **header}
                answer = await client.post(f"/v1/{operation}", content=pack(named, body))
                return answer.status_code, str(unpack(answer.content)[0])

            wide = asdict(Limits(seconds=3.0))
            status, told = await post("start", "a", limits=wide)
            assert (status, "seconds is 3.0" in told) == (400, True)
            assert (await post("start", "b"))[0] == 200
            run = {"argv": None, "show_last": False, "files": [], "program_size": 5, "stdin_size": 0}
            assert (await post("run", "c", b"count", **run))[0] == 200
            await asyncio.sleep(0.2)
            status, told = await post("run", "c", b"count", **run)
            assert (status, "executed before" in told) == (500, True)
            assert inner.ran == ["count"]
            assert (await post("run", "c", b"count", **run | {"session": "t" * 32}))[0] == 404

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places_module, "KEPT_SECONDS", 0.0)
        patch.setattr(places_module, "_LOOK", 0.02)
        asyncio.run(ask())


def test_a_body_that_is_too_large_is_refused():
    with joined(MemorySandbox(Limits(scratch_bytes=1000, file_bytes=1000, code_bytes=100))) as sandbox:
        session = sandbox.start()
        with pytest.raises(UsageError, match="larger than"):
            session.put("a", bytes(2 * 2**20))
        session.put("a", bytes(500))


# Those who never come back.


def test_a_session_that_nobody_touches_ends(monkeypatch):
    monkeypatch.setattr(places_module, "_LOOK", 0.01)
    with joined() as sandbox:
        session, looks, results = sandbox.start(), [], []
        places = sandbox.line.inner.app.routes[-1].endpoint.__self__.places
        look = places._drop_old_answers
        monkeypatch.setattr(places, "_drop_old_answers", lambda: (looks.append(None), look()))
        running = threading.Thread(target=lambda: results.append(session.run("gate", timeout=60.0)))
        running.start()
        soon(lambda: sandbox.inner.busy)
        places.service = replace(places.service, idle_seconds=0.05)
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
    monkeypatch.setattr(places_module, "RETURN_SECONDS", 1000.0)  # It is told, and does not just wait.

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
def served():
    """A server on loopback, its sandbox, and a way to stop it."""
    inner, ready, urls = MemorySandbox(), threading.Event(), []

    def answer():
        serve(inner, port=0, ready=lambda url: (urls.append(url), ready.set()))

    import uvicorn

    servers = []
    original = uvicorn.Server.__init__

    def remember(self, config):
        servers.append(self)
        original(self, config)

    uvicorn.Server.__init__ = remember
    thread = threading.Thread(target=answer, daemon=True)
    try:
        thread.start()
        assert ready.wait(60)
        soon(lambda: servers and servers[0].started)
    finally:
        uvicorn.Server.__init__ = original

    def stop():
        servers[0].should_exit = True
        thread.join(60)
        assert not thread.is_alive()

    yield inner, urls[0], stop
    stop()


def test_over_a_socket_a_killed_client_ends_its_run_and_a_stopped_server_its_sessions(served, monkeypatch):
    inner, url, stop = served
    monkeypatch.setattr(places_module, "RETURN_SECONDS", 0.3)
    with open_sandbox("remote", url=url, require=["files"], patience=0.5) as sandbox:
        kept = sandbox.start()
        header = {"request": "r" * 32, "session": kept.name, "patience": 1, "argv": None, "timeout": 60.0,
                  "show_last": False, "files": [], "program_size": 7, "stdin_size": 0}  # fmt: skip
        data = pack(header, b"wait 60")
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as killed:
            lines = ["POST /v1/run HTTP/1.1", f"Host: {host}", "Content-Type: application/x-palaestra-sandbox"]
            killed.sendall("\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data)
            soon(lambda: inner.busy)
        soon(lambda: not inner.busy)
        assert inner.cancelled == ["wait 60"]
        soon(lambda: not inner.alive)
        again = sandbox.start()
        assert again.run("count").stdout == "1"
        stop()
        assert inner.alive == []
        with pytest.raises(Broken, match="failed in"):
            sandbox.run_once("count")


def test_what_cannot_be_opened_says_why(monkeypatch):
    monkeypatch.setattr("palaestra.envs.sandboxes.remote.service.OPENING", 0.2)
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
