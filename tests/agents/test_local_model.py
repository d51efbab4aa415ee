"""A model that is written and read again is the same model, and a folder that will not do says why."""

import families
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from palaestra import UsageError
from palaestra.agents import TokenLimits, local_model, play
from palaestra.agents.local_model import find_device, load, open_tokenizer, serve
from palaestra.agents.model_folder import export
from palaestra.agents.policies.tiny import tiny_model

LIMITS = TokenLimits(max_turn_tokens=16, max_episode_tokens=300)


def greedy(local, temperature=0.0):
    found = play(local.agent, families.Talk(4), families.starts(6), limits=LIMITS, temperature=temperature)
    episodes = sorted(found, key=lambda episode: episode.start.task)
    return [[row.ids.tolist() for row in episode.rows] for episode in episodes]


@pytest.fixture(scope="module")
def tiny():
    tokenizer = families.TOKENIZERS["tiny"]
    return serve(tiny_model(len(tokenizer), layers=2, seed=3), tokenizer, slots=4)


@pytest.fixture
def folder(tiny, tmp_path):
    export(tiny.model, tiny.tokenizer, tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_plays_alike_after_export_and_load(tiny, folder, temperature):
    again = load(str(folder), slots=2, device="cpu")
    assert greedy(again, temperature) == greedy(tiny, temperature)
    for (name, one), (other_name, other) in zip(
        tiny.model.named_parameters(), again.model.named_parameters(), strict=True
    ):
        assert name == other_name
        assert one.equal(other)


@pytest.mark.parametrize("family", ["qwen2.5", "llama3"])
def test_a_stock_model_and_its_template_survive_export_and_load(family, tmp_path):
    tokenizer = families.TOKENIZERS[family]
    model = families.stock_model("llama", len(tokenizer))
    local = serve(model, tokenizer, slots=3)
    export(model, tokenizer, tmp_path)
    again = load(str(tmp_path), slots=3, device="cpu")
    assert again.agent.chat.end_of_turn == local.agent.chat.end_of_turn
    assert again.agent.chat.stops == local.agent.chat.stops
    assert greedy(again) == greedy(local)


def test_a_folder_without_a_template_says_what_to_pass(tiny, folder, tmp_path):
    bare = PreTrainedTokenizerFast(tokenizer_object=tiny.tokenizer.backend_tokenizer, eos_token="<|end|>")
    other = tmp_path / "bare"
    export(tiny.model, bare, other)
    with pytest.raises(UsageError, match=r"instruct model.*chat_template\.jinja"):
        load(str(other), slots=1)


def test_what_is_no_whole_model_is_a_usage_error(folder, tmp_path):
    def refused(name, said):
        with pytest.raises(UsageError, match=said):
            load(str(name), slots=1)

    refused(tmp_path / "nowhere", "pass a model folder")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    refused(folder, "weights")
    weights.unlink()
    refused(folder, "weights")
    (folder / "config.json").unlink()
    refused(folder, "pass a model folder")
    refused(folder / "tokenizer.json", "is a file")


def test_every_stop_of_the_model_ends_a_turn_and_is_no_part_of_its_text():
    """Qwen2.5 may end on <|endoftext|>, Llama 3 on <|eom_id|>: only the generation config says so."""
    tokenizer = families.TOKENIZERS["qwen2.5"]
    model = families.stock_model("llama", len(tokenizer))
    text_end, turn_end = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
    model.generation_config.eos_token_id = [turn_end, text_end]
    chat = serve(model, tokenizer, slots=2).agent.chat
    word = tokenizer.encode("Answer: Kemu", add_special_tokens=False)
    assert chat.decode([*word, text_end]) == chat.decode([*word, turn_end]) == "Answer: Kemu"


def test_an_unknown_device_is_a_usage_error():
    with pytest.raises(UsageError, match="device"):
        find_device("gpu")


@pytest.fixture
def hub(monkeypatch):
    """A hub that gives `answer` where it is asked for a file; `tried` are the names that were then looked for."""

    class Hub:
        answer = False

    def ask(name, file):
        if isinstance(Hub.answer, Exception):
            raise Hub.answer
        return Hub.answer

    def from_pretrained(name, **_):
        Hub.tried.append(name)
        raise OSError("no file")

    Hub.tried = []
    monkeypatch.setattr(local_model, "has_file", ask)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", from_pretrained)
    return Hub


@pytest.mark.parametrize(
    "answer",
    [False, OSError("is not a valid repository name"), ValueError("Repo id must use"), RuntimeError("no route")],
    ids=repr,
)
def test_a_name_that_is_no_folder_and_that_the_hub_does_not_give_fails_at_once(hub, answer):
    hub.answer = answer
    with pytest.raises(UsageError, match=f"there is no folder 'nosuch/dir'.*{answer or 'cannot be reached'}"):
        open_tokenizer("nosuch/dir")
    assert hub.tried == []


def test_a_model_that_the_hub_gives_is_loaded_and_a_folder_is_not_asked_for(hub, folder):
    hub.answer = True
    with pytest.raises(UsageError, match="no model could be read"):
        open_tokenizer("an/other")
    hub.answer = False
    with pytest.raises(UsageError, match="no model could be read"):
        open_tokenizer(str(folder))
    assert hub.tried == ["an/other", str(folder)]
