"""The live viewer: new episodes come by themselves, and nobody else gets anything."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from viewer_records import record

from palaestra.errors import UsageError
from palaestra.record import write
from palaestra.trainers.view.pages import viewer_server as server
from palaestra.trainers.view.pages.viewer_server import ViewerServer

Make = Callable[..., Path]
SECONDS = 60.0


@pytest.fixture
def serve() -> Iterator[Callable[[Path], ViewerServer]]:
    running: list[tuple[ViewerServer, threading.Thread]] = []

    def start(path: Path) -> ViewerServer:
        viewer = ViewerServer([path])
        thread = threading.Thread(target=viewer.run)
        thread.start()
        running.append((viewer, thread))
        return viewer

    yield start
    for viewer, thread in running:
        viewer.close()
        thread.join(SECONDS)
        assert not thread.is_alive()


def ask(viewer: ViewerServer, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """One request, its path behind the secret word unless it begins with a slash."""
    connection = http.client.HTTPConnection("127.0.0.1", viewer.port, timeout=SECONDS)
    try:
        where = path if path.startswith("/") else f"/{viewer.word}/{path}"
        connection.request(method, where, headers=headers)
        reply = connection.getresponse()
        return reply.status, dict(reply.getheaders()), reply.read()
    finally:
        connection.close()


def state_with(viewer: ViewerServer, episodes: int) -> dict[str, Any]:
    """The state as soon as it has so many episodes."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        state: dict[str, Any] = json.loads(ask(viewer, "state")[2])
        if len(state["episodes"]) == episodes:
            return state
        time.sleep(0.05)
    raise AssertionError(f"{len(state['episodes'])} episodes came, not {episodes}")


def test_new_steps_appear_and_each_page_gets_what_it_lacks(
    make_run: Make, serve: Callable[[Path], ViewerServer]
) -> None:
    run = make_run(steps=1)
    viewer = serve(run)
    first = state_with(viewer, 8)
    write(run / "episodes" / "step-000002.jsonl", [record(5, 0, step=2)])
    state_with(viewer, 9)
    query = f"state?generation={first['generation']}&episodes=8&metrics=1&vocabulary=0"
    later = json.loads(ask(viewer, query)[2])
    assert [one["stage"] for one in later["episodes"]] == ["2"]
    assert later["metrics"] == []
    assert later["live"] is True


def test_a_run_that_began_anew_is_read_anew(make_run: Make, serve: Callable[[Path], ViewerServer]) -> None:
    run = make_run(steps=1)
    viewer = serve(run)
    old = state_with(viewer, 8)["generation"]
    write(run / "episodes" / "step-000001.jsonl", [record(0, 0)])
    state = state_with(viewer, 1)
    assert state["generation"] > old
    assert ask(viewer, f"episode/{old}/0")[0] == 404
    known = json.loads(ask(viewer, f"state?generation={old}&episodes=8")[2])
    assert len(known["episodes"]) == 1


def test_an_episode_is_read_from_its_file_and_found_by_its_text(
    make_run: Make, serve: Callable[[Path], ViewerServer]
) -> None:
    viewer = serve(make_run(steps=1))
    generation = state_with(viewer, 8)["generation"]
    status, _, body = ask(viewer, f"episode/{generation}/5")
    assert status == 200
    assert json.loads(body)["messages"][1]["text"] == "What is 2 * 3, in group 1?"
    assert ask(viewer, f"episode/{generation}/8")[0] == 404
    found, at, until = [], 0, time.monotonic() + SECONDS
    while at < 8 and time.monotonic() < until:  # It searches for a moment only, and says how far it came.
        part = json.loads(ask(viewer, f"search/{generation}/{at}?q=GROUP%201")[2])
        assert part["next"] >= at
        found, at = found + part["found"], part["next"]
    assert (found, at) == ([4, 5, 6, 7], 8)


def test_a_file_that_changed_under_an_episode_is_said(make_run: Make, serve: Callable[[Path], ViewerServer]) -> None:
    run = make_run(steps=1)
    viewer = ViewerServer([run])
    collection, generation = viewer._reading
    list(collection.news())
    (run / "episodes" / "step-000001.jsonl").write_bytes(b"x" * 100_000)
    with pytest.raises(ValueError, match="whole JSON"):
        viewer.episode(str(generation), "0")
    viewer._server.server_close()


def test_a_request_under_another_name_gets_nothing(make_run: Make, serve: Callable[[Path], ViewerServer]) -> None:
    viewer = serve(make_run(steps=1))
    for host in ("evil.example", "127.0.0.1", "127.0.0.1.evil.example", "localhost:1", "", "[::1]"):
        status, _, body = ask(viewer, "", Host=host)
        assert (status, b"<" in body) == (421, False), host


OTHERS = """
    / /favicon.ico /state /wrong/state // /%2e%2e/ /é/ ../ ../../etc/passwd state/ ..%2f..%2fetc%2fpasswd
    episode/1/../../config.json episode/1/-1 episode/1/1e3 episode/1/² episode/../0 config.json
"""


def test_no_path_but_its_own_leads_anywhere(make_run: Make, serve: Callable[[Path], ViewerServer]) -> None:
    viewer = serve(make_run(steps=1))
    state_with(viewer, 8)
    for path in OTHERS.split():
        with socket.create_connection(("127.0.0.1", viewer.port), SECONDS) as raw:
            where = path if path.startswith("/") else f"/{viewer.word}/{path}"
            raw.sendall(f"GET {where} HTTP/1.1\r\nHost: 127.0.0.1:{viewer.port}\r\n\r\n".encode())
            said = b"".join(iter(lambda raw=raw: raw.recv(65536), b""))
        assert said.split(b" ", 2)[1] == b"404", path


def test_only_get_is_answered(make_run: Make, serve: Callable[[Path], ViewerServer]) -> None:
    viewer = serve(make_run(steps=1))
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "<b>"):
        status, headers, body = ask(viewer, "", method)
        assert (status, b"<" in body, "Access-Control-Allow-Origin" in headers) == (405, False, False), method


def test_every_answer_carries_the_policy(make_run: Make, serve: Callable[[Path], ViewerServer]) -> None:
    viewer = serve(make_run(steps=1))
    for path in ("", "state", "nothing", "/"):
        _, headers, _ = ask(viewer, path)
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'sha256-")
        assert "connect-src 'self'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert not [name for name in headers if name.lower().startswith("access-control")]
        assert "Python" not in headers["Server"]


def test_it_listens_on_this_machine_alone(make_run: Make, serve: Callable[[Path], ViewerServer]) -> None:
    viewer = serve(make_run(steps=1))
    assert viewer._server.socket.getsockname()[0] == "127.0.0.1"
    assert len(viewer.word) >= 20
    other = ViewerServer(viewer.paths)
    other._server.server_close()
    assert viewer.word != other.word


def test_a_slow_client_is_cut_off_and_blocks_nobody(
    make_run: Make, serve: Callable[[Path], ViewerServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 10 * SECONDS)
    monkeypatch.setattr(server._Handler, "timeout", 10 * SECONDS)
    viewer = serve(make_run(steps=1))

    def slowly() -> socket.socket:
        one = socket.create_connection(("127.0.0.1", viewer.port), SECONDS)
        one.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
        return one

    patient = [slowly() for _ in range(5)]
    assert ask(viewer, "state")[0] == 200, "nobody was cut off yet"
    monkeypatch.setattr(server, "REQUEST_SECONDS", 1.0)
    slow = [slowly() for _ in range(5)]
    try:
        cut, until = 0, time.monotonic() + SECONDS
        for one in slow:
            one.settimeout(0.1)
            while time.monotonic() < until:
                try:
                    one.sendall(b"x")  # A letter now and then keeps a timeout between reads from ever passing.
                    if not one.recv(1000):
                        cut += 1
                        break
                except TimeoutError:
                    continue
                except OSError:
                    cut += 1
                    break
        assert cut == len(slow)
    finally:
        for one in (*patient, *slow):
            one.close()


def test_more_connections_than_anyone_needs_are_refused_until_some_end(
    make_run: Make, serve: Callable[[Path], ViewerServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 3)
    monkeypatch.setattr(server, "REQUEST_SECONDS", 10 * SECONDS)  # Nobody is cut off for being slow here.
    monkeypatch.setattr(server._Handler, "timeout", 10 * SECONDS)
    viewer = serve(make_run(steps=1))
    held = [socket.create_connection(("127.0.0.1", viewer.port), SECONDS) for _ in range(4)]
    assert held[3].recv(1) == b""
    for one in held:
        one.close()
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        try:
            assert ask(viewer, "state")[0] == 200
            return
        except (http.client.HTTPException, ConnectionError):
            time.sleep(0.05)
    raise AssertionError("it does not answer again")


def test_a_port_that_is_taken_is_explained(make_run: Make) -> None:
    run = make_run(steps=1)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError, match=r"port \d+ cannot be used"):
        ViewerServer([run], port=taken.getsockname()[1])


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_the_command_ends_when_it_is_told_to(make_run: Make, ending: signal.Signals) -> None:
    command = [sys.executable, "-m", "palaestra", "view", str(make_run(steps=1)), "--serve"]
    said_at_once = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=said_at_once)
    try:
        assert process.stdout is not None
        url = urlsplit(process.stdout.readline())
        connection = http.client.HTTPConnection("127.0.0.1", url.port or 0, timeout=SECONDS)
        connection.request("GET", url.path)
        assert connection.getresponse().status == 200, "it is at work, not on its way there"
        connection.close()
        process.send_signal(ending)
        out, err = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert "Traceback" not in err
    assert process.returncode == (0 if ending is signal.SIGINT else -ending)
    assert out.endswith("ended\n") is (ending is signal.SIGINT)
