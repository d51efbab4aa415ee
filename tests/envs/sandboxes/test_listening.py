"""The door of our servers: strangers hold nobody up, and a request with two hosts is none."""

import socket
import threading
from contextlib import ExitStack, contextmanager

import pytest
import uvicorn
from settling import soon

from palaestra.envs.sandboxes.remote import listening

ASK = b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: %s\r\n\r\n"


async def app(scope, receive, send):
    """Answers whoever has the token."""
    if scope["type"] == "http":
        status = 200 if (b"authorization", b"token") in scope["headers"] else 401
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})
    else:
        for what in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{what}.complete"})


@pytest.fixture
def server(monkeypatch):
    """The port of a server that bears few connections."""
    servers, urls, made = [], [], uvicorn.Server
    monkeypatch.setattr(uvicorn, "Server", lambda config: servers.append(made(config)) or servers[0])
    monkeypatch.setattr(listening, "MAX_STRANGERS", 8)
    begin = {"connections": 4, "ready": urls.append}
    thread = threading.Thread(target=listening.listen, args=(app, "127.0.0.1", 0), kwargs=begin, daemon=True)
    thread.start()
    soon(lambda: servers and servers[0].started)
    yield int(urls[0].rpartition(":")[2])
    servers[0].should_exit = True
    thread.join(60)
    assert not thread.is_alive()


@contextmanager
def connected(port, *sent):
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        for part in sent:
            connection.sendall(part)
        yield connection


def status(connection):
    """The status of an answer, which is read to its end."""
    data = b""
    while not data.endswith((b"\r\n\r\nok", b"length: 0\r\n\r\n", b"close\r\n\r\n")):
        part = connection.recv(65_536)
        assert part, f"cut off after {data!r}"
        data += part
    return data.split(b" ")[1]


def ended(connection):
    """Whether the server ends the connection: waits for it."""
    try:
        while connection.recv(65_536):
            pass
    except ConnectionResetError:
        pass
    return True


def test_whoever_has_the_token_gets_in_however_many_heads_are_half_sent(server):
    with ExitStack() as stack:
        known = stack.enter_context(connected(server, ASK % b"token"))
        assert status(known) == b"200"
        strangers = [stack.enter_context(connected(server, b"GET / HTTP/1.1\r\nHost:")) for _ in range(200)]
        assert status(stack.enter_context(connected(server, ASK % b"token"))) == b"200"
        assert all(map(ended, strangers[:100])), "the oldest strangers make room"
        known.sendall(ASK % b"token")
        assert status(known) == b"200", "whoever was answered is no stranger"


def test_a_head_that_never_ends_and_silence_have_a_deadline_and_a_refusal_ends_the_connection(server, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(listening, "HEAD_SECONDS", 0.2)
        with connected(server) as silent, connected(server, b"GET / HTTP/1.1\r\n") as slow:
            assert ended(silent)
            assert ended(slow)
    with connected(server, ASK % b"") as wrong:
        assert status(wrong) == b"401"
        assert ended(wrong)
    with connected(server, ASK % b"token") as known:
        assert status(known) == b"200"


def test_a_request_with_two_hosts_is_refused(server):
    with connected(server, (ASK % b"token").replace(b"Host: a", b"Host: a\r\nHost: a")) as connection:
        assert status(connection) == b"400"
