"""Model folders of strangers: weights, settings and names are read; code in them, or named by them, is never run."""

import json
import shutil
import sys
from pathlib import Path

import huggingface_hub
import pytest
import torch
from test_adapters import TOKENIZER, base, moved

from palaestra import UsageError
from palaestra.agents.adapters import save_adapter
from palaestra.agents.local_model import load, open_tokenizer
from palaestra.agents.model_folder import export
from palaestra.envs.search.embedding import Embedder
from palaestra.trainers.view.pages.token_text import Pieces

MARK = "import pathlib\npathlib.Path('imported').touch()\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model's folder, in a folder with a module that tells of its import."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    (tmp_path / "megatron").mkdir()
    for name in ("evilmod.py", "megatron/__init__.py", "megatron/core.py"):
        (tmp_path / name).write_text(MARK)
    export(base(), TOKENIZER, tmp_path / "model")
    return tmp_path / "model"


def changed(path: Path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_code_in_a_model_folder_is_neither_run_nor_asked_about(folder, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # What transformers would ask a person.
    (folder / "configuration_evil.py").write_text(MARK)
    (folder / "tokenization_evil.py").write_text(MARK)
    changed(folder / "config.json", model_type="evil", auto_map={"AutoConfig": "configuration_evil.Evil"})
    changed(
        folder / "tokenizer_config.json",
        tokenizer_class="Evil",
        auto_map={"AutoTokenizer": ["tokenization_evil.Evil", "tokenization_evil.Evil"]},
    )
    for read in (
        lambda: load(str(folder), slots=1),
        lambda: open_tokenizer(str(folder)),
        lambda: Embedder(str(folder)).queries(["a"]),
    ):
        with pytest.raises(UsageError):
            read()
    Pieces([], str(folder)).texts([1])
    assert not Path("imported").exists()


def test_pickled_weights_are_refused(folder):
    weights = base().state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(UsageError, match="safetensors"):
        load(str(folder), slots=1)
    with pytest.raises(UsageError, match="safetensors"):
        Embedder(str(folder)).queries(["a"])


@pytest.mark.parametrize("setting", ["attn_implementation", "_attn_implementation", "experts_implementation"])
def test_a_config_that_names_code_on_the_hub_is_refused_by_name(folder, setting):
    changed(folder / "config.json", **{setting: "kernels-community/evil"})
    with pytest.raises(UsageError, match="kernels-community/evil"):
        load(str(folder), slots=1)


@pytest.fixture
def adapter(folder):
    """An adapter of that model."""
    model = moved(base_from=load(str(folder), slots=1).model)
    save_adapter(model, TOKENIZER, folder.parent / "adapter")
    return folder.parent / "adapter"


def test_an_adapter_is_loaded_on_the_model_that_it_names(adapter):
    assert load(str(adapter), slots=1).model.name_or_path == str(adapter)


@pytest.mark.parametrize(
    "settings",
    [
        {"megatron_config": {"tensor_model_parallel_size": 1}, "megatron_core": "megatron.core"},
        {"corda_config": {"cache_file": "evil.pt"}},
        {"a_setting_of_tomorrow": "evilmod"},
    ],
)
def test_settings_of_an_adapter_that_name_modules_or_files_are_refused(adapter, settings):
    changed(adapter / "adapter_config.json", **settings)
    with pytest.raises(UsageError, match=f"sets {next(iter(settings))}"):
        load(str(adapter), slots=1)
    assert not Path("imported").exists()


def test_an_adapter_over_itself_is_refused(adapter):
    changed(adapter / "adapter_config.json", base_model_name_or_path=str(adapter))
    (adapter / "tokenizer_config.json").unlink()
    for read in (lambda: load(str(adapter), slots=1), lambda: open_tokenizer(str(adapter))):
        with pytest.raises(UsageError, match="its own base"):
            read()


def test_a_header_that_claims_more_than_the_file_holds_is_refused(folder):
    for size in (2**40, 2**63):
        (folder / "model.safetensors").write_bytes(size.to_bytes(8, "little") + b"{}")
        with pytest.raises(UsageError, match="could not be loaded"):
            load(str(folder), slots=1)


def test_an_adapter_on_the_hub_is_refused_before_its_settings_are_read(adapter, monkeypatch):
    changed(adapter / "adapter_config.json", megatron_config={"a": 1}, megatron_core="megatron.core")
    cache = adapter.parent / "hub" / "models--evil--adapter"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("b" * 40)
    shutil.copytree(adapter, cache / "snapshots" / ("b" * 40))
    shutil.copy(adapter.parent / "model" / "config.json", cache / "snapshots" / ("b" * 40))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache.parent))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match="is an adapter on the hub"):
        load("evil/adapter", slots=1)
    assert not Path("imported").exists()


def test_an_adapter_beside_an_embedding_model_is_refused(folder, adapter):
    changed(adapter / "adapter_config.json", megatron_config={"a": 1}, megatron_core="megatron.core")
    for path in adapter.glob("adapter_*"):
        shutil.copy(path, folder)
    with pytest.raises(UsageError, match="it holds an adapter"):
        Embedder(str(folder)).queries(["a"])
    assert not Path("imported").exists()
