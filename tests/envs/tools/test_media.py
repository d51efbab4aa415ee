"""image2text and audio2text: what they send is what servers take; files that are no media never leave the machine."""

import asyncio
import base64

import made_files
import numpy as np
import pytest
from fake_server import FakeServer, Reply, error, nobody, said

from palaestra.endpoint import EndpointConfig
from palaestra.envs import Task
from palaestra.envs.tools.media import AudioToText, ImageToText
from palaestra.errors import Broken, ToolError, UsageError

FILES = {"a.txt": made_files.png(), "b.wav": made_files.wav(), "c.png": b"<svg/>", "d.png": made_files.png()[:-20]}


def opened(kind, url, patience=0.3, **settings):
    """A toolkit in an episode, with these files."""
    made = type("Kit", (kind,), {"files": lambda self, task: FILES, **settings})(
        EndpointConfig(url, "seer", api_key_env="", patience=patience, backoff=0.05)
    )
    asyncio.run(made.start(Task("q", "a"), np.random.default_rng(0)))
    return made


def heard(text):
    """A server that hears this."""
    return FakeServer(lambda seen: Reply({"data": []}) if seen.method == "GET" else Reply({"text": text}))


def seeing(*replies):
    left = [*replies]
    return FakeServer(lambda seen: Reply({"data": []}) if seen.method == "GET" else left.pop(0))


def test_an_image_is_a_part_of_the_question_and_its_bytes_say_what_it_is():
    with seeing(said("a red square")) as server:
        made = opened(ImageToText, server.url)
        assert asyncio.run(made.image2text("a.txt", "What colour?")) == "a red square"
        (asked,) = server.questions
    words, image = asked["messages"][0]["content"]
    assert words == {"type": "text", "text": "What colour?"}
    kind, _, data = image["image_url"]["url"].partition(",")
    assert (kind, base64.b64decode(data)) == ("data:image/png;base64", FILES["a.txt"])


def test_a_recording_is_a_form_that_speech_servers_take_and_is_sent_once_for_all_its_parts():
    words = " ".join(f"word{n}" for n in range(3000))
    with heard(words) as server:
        made = opened(AudioToText, server.url)
        first = asyncio.run(made.audio2text("b.wav"))
        second = asyncio.run(made.audio2text("b.wav", first_line=100))
        posted = [seen for seen in server.seen if seen.method == "POST"]
    assert first.startswith("lines 1-")
    assert second.startswith("lines 100-")
    (seen,) = posted
    assert seen.path == "/v1/audio/transcriptions"
    boundary = seen.headers["content-type"].partition("boundary=")[2].encode()
    parts = seen.data.split(b"--" + boundary)
    assert b'name="model"\r\n\r\nseer\r\n' in parts[1]
    assert b'filename="sound.wav"' in parts[4]
    assert parts[4].endswith(b"\r\n\r\n" + FILES["b.wav"] + b"\r\n")


def test_a_recording_may_be_a_part_of_a_question():
    with seeing(said("hello")) as server:
        made = opened(AudioToText, server.url, api="chat")
        assert asyncio.run(made.audio2text("b.wav")) == "hello"
        part = server.questions[0]["messages"][0]["content"][1]["input_audio"]
    assert (part["format"], base64.b64decode(part["data"])) == ("wav", FILES["b.wav"])


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("b.wav", "is no image but wav"),
        ("c.png", "is no image but something else"),
        ("d.png", "is a broken png"),
        ("../x.png", "leads out"),
        ("none.png", "there is no file"),
        ("a.txt/x", "nothing below it"),
    ],
)
def test_what_is_no_image_is_not_sent(path, says):
    with seeing() as server:
        made = opened(ImageToText, server.url)
        with pytest.raises(ToolError, match=says):
            asyncio.run(made.image2text(path))
        assert server.questions == []


def test_a_file_that_is_too_large_is_not_sent():
    with seeing() as server:
        made = opened(ImageToText, server.url, max_bytes=50)
        with pytest.raises(ToolError, match="which is more than file_bytes=50"):
            asyncio.run(made.image2text("a.txt"))


@pytest.mark.parametrize(
    "reply",
    [error(500, "no memory"), error(400, "bad"), Reply({"words": "x"}), Reply(b"<html>"), Reply({"text": 5})],
)
def test_a_server_that_fails_breaks_the_episode(reply):
    with FakeServer(lambda seen: Reply({"data": []}) if seen.method == "GET" else reply) as server:
        made = opened(AudioToText, server.url)
        with pytest.raises(Broken):
            asyncio.run(made.audio2text("b.wav"))


def test_a_server_that_is_not_there_and_a_missing_model_are_told_before_an_episode():
    with nobody() as url, pytest.raises(UsageError, match="cannot be reached"):
        opened(ImageToText, url)
    with pytest.raises(UsageError, match="has no model"):
        ImageToText()


def test_a_model_that_is_gone_is_broken_however_little_time_the_budget_leaves():
    with FakeServer(lambda seen: Reply({"data": []})) as server:
        made = opened(ImageToText, server.url, patience=60.0, max_seconds=1.0)
    with pytest.raises(Broken, match="no connection"):
        asyncio.run(made.image2text("a.txt"))


def test_a_model_that_says_nothing_in_time_breaks_the_episode_and_a_spent_budget_does_not():
    async def hang(writer):
        await asyncio.sleep(20)

    with FakeServer(lambda seen: Reply({"data": []}) if seen.method == "GET" else hang) as server:
        made = opened(ImageToText, server.url, call_seconds=0.2)
        with pytest.raises(Broken, match="call_seconds=0"):
            asyncio.run(made.image2text("a.txt"))
        made = opened(ImageToText, server.url, max_seconds=0.2)
        with pytest.raises(ToolError, match="max_seconds"):
            asyncio.run(made.image2text("a.txt"))
