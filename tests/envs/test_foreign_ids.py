"""Ids of other packages' environments: what they say where the package is missing, which options are services."""

import sys

import pytest

import palaestra
from palaestra.cli import main
from palaestra.errors import MissingExtra
from palaestra.registry import adapters, services

LIBRARIES = {"foreign/Gem-v0": "gem", "foreign/SkyRL-v0": "skyrl_gym", "foreign/TextArena-v0": "textarena"}
LIBRARIES |= {"foreign/OpenEnv-v0": "openenv", "foreign/Verifiers-v0": "verifiers", "foreign/Inspect-v0": "inspect_ai"}
PACKAGES = {"foreign/Gem-v0": "gem-llm", "foreign/SkyRL-v0": "skyrl-gym", "foreign/TextArena-v0": "textarena"}
PACKAGES |= {"foreign/OpenEnv-v0": "openenv-core", "foreign/Verifiers-v0": "verifiers"}
PACKAGES |= {"foreign/Inspect-v0": "inspect-ai"}


def test_there_is_an_id_for_each():
    assert set(adapters) == set(LIBRARIES)


@pytest.mark.parametrize("env_id", LIBRARIES)
def test_without_its_package_it_names_what_to_install(env_id, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == LIBRARIES[env_id]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, LIBRARIES[env_id], None)
    with pytest.raises(MissingExtra, match=f"{env_id} needs .*: pip install {PACKAGES[env_id]}$"):
        palaestra.arena(env_id, 1)


def test_a_file_may_say_which_game_is_played_and_not_which_server_is_asked():
    assert services("foreign/Gem-v0", {"game": "game:Wordle-v0-hard", "max_turns": 3}) == {}
    assert services("foreign/SkyRL-v0", {"tasks": "rows.jsonl", "game": "aime"}) == {}
    config = {"config": {"search_url": "http://a.test"}}
    assert services("foreign/SkyRL-v0", {"tasks": "rows.jsonl", **config}) == config
    address = {"address": "http://a.test"}
    assert services("foreign/OpenEnv-v0", {"says": "text", **address}) == address


@pytest.mark.parametrize(
    ("env_id", "option"), [("foreign/Verifiers-v0", "environment"), ("foreign/Inspect-v0", "task")]
)
def test_a_file_names_no_module_to_import_and_no_text_for_it(env_id, option):
    given = {option: "antigravity", "where": "http://a.test"}
    assert services(env_id, {**given, "rows": 3, "chance": 0.25, "split": "eval"}) == given
    assert env_id not in palaestra.registered(), "it is listed with the other packages' environments"


def test_each_is_shown_with_its_options_also_where_its_package_is_missing(capsys):
    assert main(["list", "foreign/OpenEnv-v0"]) == 0
    assert "address=''" in capsys.readouterr().out


def test_an_id_with_the_same_beginning_imports_nothing():
    before = set(sys.modules)
    with pytest.raises(palaestra.UnknownId):
        palaestra.arena("foreign/antigravity-v0", 1)
    assert "antigravity" not in set(sys.modules) - before
