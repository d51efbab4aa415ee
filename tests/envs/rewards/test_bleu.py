"""Length-aware BLEU: its check values, and that nothing is gained by saying more than is known."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.envs.rewards.bleu import length_aware_bleu, words

WORDS = st.lists(st.sampled_from(["a", "b", "c", "d", "e"]), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("answer", "expected", "score"),
    [
        ("paris paris", "paris", 0.5),
        # Words 2 of 4, pairs (1 + 1) / (3 + 1), triples (0 + 1) / (2 + 1), and a penalty for two words where three are.
        ("a b a b", "a b c", math.exp(1 - 3 / 2) * (1 / 2 * 2 / 4 * 1 / 3) ** (1 / 3)),
    ],
)
def test_f40_what_is_said_again_matches_no_oftener_than_the_reference_has_it(answer, expected, score):
    assert length_aware_bleu(answer, expected) == pytest.approx(score)


@given(WORDS, st.integers(1, 4))
def test_f40_an_exact_match_is_1_at_every_length(reference, repeats):
    assert length_aware_bleu(" ".join(reference * repeats), " ".join(reference * repeats)) == 1


@given(WORDS, WORDS)
def test_f40_a_wrong_word_never_raises_the_score(said, wanted):
    before = length_aware_bleu(" ".join(said), " ".join(wanted))
    for place in range(len(said) + 1):
        padded = [*said[:place], "wrong", *said[place:]]
        assert length_aware_bleu(" ".join(padded), " ".join(wanted)) <= before + 1e-12


def test_f40_in_the_plain_form_it_does_and_a_penalty_for_verbosity_is_there():
    assert length_aware_bleu("new x x", "new york city", plain=True) == pytest.approx(0.382, abs=1e-3)
    assert length_aware_bleu("new", "new york city", plain=True) == pytest.approx(0.135, abs=1e-3)
    long = "paris " + "x " * 9
    assert length_aware_bleu(long, "paris", verbosity=2) < length_aware_bleu(long, "paris") == pytest.approx(0.1)
    assert length_aware_bleu("in paris", "paris", verbosity=2) == pytest.approx(0.5)


def test_several_references_count_by_the_best_and_letters_without_spaces_are_words():
    assert length_aware_bleu("NYC", ["new york city", "nyc"]) == 1
    assert words("東京タワー is, 333m!") == ["東", "京", "タ", "ワ", "ー", "is", "333m"]
    assert 0 < length_aware_bleu("東京", "東京都") < 1


@pytest.mark.parametrize(
    ("said", "expected"), [("no idea", "no"), ("not true", "true"), ("yes or no", "yes"), ("-5", "5"), ("314", "3.14")]
)
def test_sharing_words_with_yes_and_no_or_digits_with_a_number_is_worth_nothing(said, expected):
    assert length_aware_bleu(said, expected) == 0
    assert length_aware_bleu(f"{expected}.", expected) == 1
