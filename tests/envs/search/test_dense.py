"""Search by meaning, with a tiny model whose vectors mean little: the same words make the same vector."""

import asyncio

import numpy as np
import pytest

from palaestra.cli import main
from palaestra.envs.search import dense
from palaestra.envs.search.dense import DenseIndex, add_vectors
from palaestra.envs.search.embedded import EmbeddedIndex
from palaestra.envs.search.embedding import Embedder
from palaestra.envs.search.hybrid import HybridIndex, fuse
from palaestra.envs.search.index import Hit
from palaestra.errors import UsageError

WORDS = ("red", "green", "blue", "cat", "dog", "fox", "runs", "sleeps", "query", ":", "passage")


class Fake(Embedder):
    """Vectors by a text's letters, without a model."""

    calls = 0

    def _rows(self, texts):
        type(self).calls += 1
        rows = [np.random.default_rng(list(text.encode())).standard_normal(16) for text in texts]
        return np.stack([row / np.linalg.norm(row) for row in rows]).astype(np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A BERT of one layer, as a folder."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
    BertTokenizerFast(vocab=vocabulary).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(vocabulary), **sizes)).save_pretrained(folder)
    return folder


@pytest.fixture
def built(tmp_path):
    """A folder of texts, and an index of words."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    texts = [f"{colour} {animal} {does}" for colour in WORDS[:3] for animal in WORDS[3:6] for does in WORDS[6:8]]
    for number, text in enumerate(texts):
        (corpus / f"{number}.txt").write_text(text)
    assert main(["index", "build", str(corpus), "--to", str(tmp_path / "index")]) == 0
    return tmp_path / "index", texts


def ids(index, query, k=3):
    return [hit.id for hit in asyncio.run(index.search_many([query], k))[0]]


@pytest.mark.prove
def test_a_local_model_makes_vectors_that_are_found_from_the_command_line_on(built, model, capsys):
    path, texts = built
    prefixes = ["--query-prefix", "query: ", "--passage-prefix", "query: "]
    build = ["index", "build", str(path.parent / "corpus"), "--to", str(path), "--dense", str(model), *prefixes]
    assert main(build) == 0
    assert "16 dimensions" in capsys.readouterr().out
    for index in (DenseIndex(path), HybridIndex(path)):
        index.check()
        assert ids(index, f"7\n{texts[7]}")[0] == "7.txt"
    assert main(["index", "search", str(path), f"7\n{texts[7]}", "--engine", "dense"]) == 0
    assert capsys.readouterr().out.startswith("7.txt")
    assert main(build) == 2
    assert "has vectors already" in capsys.readouterr().err
    embedder = Embedder(str(model), batch=2)
    rows = embedder.queries(["red cat", "red cat runs blue fox sleeps", "red cat", "\ud800"])
    assert np.allclose(np.linalg.norm(rows, axis=1), 1) and np.allclose(
        rows[0], rows[2], atol=1e-6
    )  # Padding is not seen.
    with pytest.raises(UsageError, match="no embedding model could be read"):
        Embedder(str(path)).queries(["x"])


def test_embedding_that_was_cut_off_goes_on_and_other_settings_begin_anew(built, monkeypatch):
    path, _ = built
    with pytest.raises(UsageError, match="has no vectors"):
        DenseIndex(path)
    monkeypatch.setattr(dense, "_ROWS", 5)
    monkeypatch.setattr(Fake, "calls", 0)

    def cut_off(done, of):
        if done >= 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        add_vectors(path, Fake("a"), cut_off)
    assert ids(EmbeddedIndex(path), "fox")  # Words are found meanwhile.
    add_vectors(path, Fake("a"))
    assert Fake.calls == 3 + 1 + 2  # Sizes are asked for twice; five rows at a time, ten of eighteen before.
    assert not list(path.glob("vectors.raw"))


@pytest.mark.parametrize("flat", [100_000, 4])
def test_lists_of_vectors_find_what_all_vectors_find(built, monkeypatch, flat):
    path, texts = built
    add_vectors(path, Fake("a"), flat=flat)
    monkeypatch.setattr(dense, "Embedder", Fake)
    index = DenseIndex(path)
    for number, text in enumerate(texts):
        assert ids(index, f"{number}\n{text}")[0] == f"{number}.txt"
    assert len(ids(index, "x", 100)) == len(texts)


def test_two_rankings_are_fused_by_ranks_alone():
    first = [Hit(id, id, "", score) for id, score in (("a", 900.0), ("b", 2.0), ("c", 1.0))]
    second = [Hit(id, id, "", score) for id, score in (("c", 0.9), ("d", 0.8), ("b", 0.7))]
    hits = fuse([first, second], 3)
    assert [hit.id for hit in hits] == ["c", "b", "a"]
    assert hits[0].score == pytest.approx(1 / 63 + 1 / 61)
    assert fuse([[], []], 5) == [] == fuse([first], 0)
