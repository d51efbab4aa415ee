"""Opening an environment: the same options whoever does it, and in an error all that there are."""

import copy
import pickle

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

import palaestra
from palaestra import EnvironmentDefect, UsageError
from palaestra.envs import Task, TextEnv, ToolEnv
from palaestra.envs.arena.opening import make_author
from palaestra.envs.suite.two_hop import TwoHop
from palaestra.plain import as_pair, from_pairs


class Sized(ToolEnv):
    """Takes what it needs and nothing of ours."""

    def __init__(self, size):
        self.size = size

    def task(self, rng):
        return Task(prompt=f"{rng.integers(100)}")


class Smaller(Sized):
    """Hands on to its parent."""

    def __init__(self, by=1):
        super().__init__(10 - by)


class Misled(Sized):
    """Calls its parent wrongly."""

    def __init__(self):
        super().__init__(length=3)


class Mixin:
    """A constructor from elsewhere."""

    def __init__(self, colour="red"):
        self.colour = colour


class Mixed(Mixin, TwoHop):
    """Has the constructor of a class that is no environment."""


class Own(TwoHop):
    """Its option of the same name is its own."""

    def __init__(self, format="json"):
        super().__init__()
        self.output = format


def built(author, **options):
    """An object of a class, as its id would give it."""
    return make_author(f"{__name__}:{author.__name__}", options)


def test_every_environment_takes_a_format_from_gymnasium_and_its_spec_keeps_it():
    for env_id in [known for known in palaestra.registered() if known.startswith("palaestra/")]:
        env = gymnasium.make(env_id, format="llama3")
        again = gymnasium.make(EnvSpec.from_json(env.spec.to_json())).unwrapped.author
        assert env.unwrapped.author.format == again.format == "llama3", env_id
        assert gymnasium.make(env_id).unwrapped.author.format == type(again).format, env_id


@pytest.mark.parametrize("author", [Smaller, Mixed], ids=lambda author: author.__name__)
def test_a_constructor_that_knows_nothing_of_formats_takes_one(author):
    found = built(author, format="llama3")
    assert (found.format, built(author).format) == ("llama3", "hermes")
    assert TextEnv(built(author)).reset(seed=1)[0]
    for copied in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert copied.format == "llama3"
    with pytest.raises(UsageError, match="unknown call format 'lama'"):
        built(author, format="lama")


def test_what_an_author_takes_and_gets_wrong_stays_the_authors():
    found = Own(format="yaml")
    assert (found.output, found.format) == ("yaml", "hermes")
    with pytest.raises(TypeError, match="unexpected keyword argument 'length'"):
        built(Misled)


@pytest.mark.parametrize("vector", [False, True])
def test_an_option_that_there_is_not_is_told_with_those_that_there_are(vector):
    opening = gymnasium.make_vec if vector else gymnasium.make
    with pytest.raises(UsageError, match=r"'fromat'; it takes split, tasks, format; did you mean 'format'"):
        opening("palaestra/TwoHop-v0", fromat="llama3")
    with pytest.raises(UsageError, match="Sized: missing a required argument: 'size'"):
        built(Sized)
    with pytest.raises(UsageError, match=r"takes no option 'tasks'; it takes by, format$"):
        built(Smaller, tasks="a.jsonl")
    with pytest.raises(EnvironmentDefect, match=r"has no problems: write .*, or name a file of them, tasks=FILE"):
        TextEnv(type("Bare", (ToolEnv,), {})()).reset(seed=0)


class Strict(TwoHop):
    def __init__(self, loud: bool = False, name: str = "", size: int = 3, share: float = 0.5, **kwargs):
        super().__init__(**kwargs)
        self.loud, self.called, self.size = loud, name, size


def test_a_boolean_option_is_one_as_python_or_json_writes_it_and_no_other_text():
    entry = f"{__name__}:Strict"
    for text, value in (("False", False), ("false", False), ("True", True), ("true", True)):
        assert make_author(entry, from_pairs([f"loud={text}"], "env_options")).loud is value
    for text in ("FALSE", "no", '"False"'):
        with pytest.raises(UsageError, match=r"the option loud is '.*'; expected true or false"):
            make_author(entry, from_pairs([f"loud={text}"], "env_options"))
    assert make_author(entry, from_pairs(['name="False"'], "env_options")).called == "False"
    for value in ("False", "FALSE", False, None, "5", 5, '"a"'):
        assert from_pairs([as_pair("name", value)], "env_options") == {"name": value}


@pytest.mark.parametrize(("given", "expected"), [("size=three", "a whole number"), ('share="half"', "a number")])
def test_a_text_in_place_of_a_number_is_refused_by_the_name_of_its_option(given, expected):
    name = given.partition("=")[0]
    assert make_author(f"{__name__}:Strict", from_pairs(["size=4"], "env_options")).size == 4
    with pytest.raises(UsageError, match=f"the option {name} is '.*'; expected {expected}"):
        make_author(f"{__name__}:Strict", from_pairs([given], "env_options"))
