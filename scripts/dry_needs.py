"""What the commands of a full-scale script need beside files: served models, hours of cards, and room on the disk.

Hours are those of `palaestra plan`: a simulation of a step on H100s with episodes that are assumed, times the steps.
Room is counted by three formulas:

model         2 bytes a weight of each model from the hub, which is fetched once
run           of `palaestra train`, its own count: checkpoints with float32 weights and moments, and its models; of
              `palaestra sft`, three checkpoints of 14 bytes a weight, and its model
episodes      30 bytes a token (ids, log-probs and text; a record of invented tokens and text took 24), for what a run
              records and for all that collect, curate and eval play

Left out: how long imitation, judging and measuring take, and other kinds of cards.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

SECONDS = 5.0
GPUS = (1, 8, 16)
CARD = "h100"
WEIGHT_BYTES, TRAINED_BYTES, TOKEN_BYTES = 2, 14, 30
DRAWN, LONGEST = 512, 32_768
"""Episodes that are drawn, and the most tokens of one that is played for a file."""
KEPT = 3
"""Checkpoints of a run of imitation: two are kept, and one more is there while it is written."""
NAMED = {"--base-url": "--model", "--teacher": "--teacher-model", "--critic": "--critic-model"}
NAMED |= {"--recipe.judge.url": "--recipe.judge.served-as"}
"""Options that name servers, and those that name the model that they are asked for."""
JUDGE = "rrm"
"""Name of a judge's model where none is given."""


def servers(arguments: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield each server that a command asks, with the model that it asks for; None for a server that has no models, and
    "" where any will do.
    """
    named = dict(pairwise(arguments))
    for option, model in NAMED.items():
        default = JUDGE if option in ("--critic", "--recipe.judge.url") else ""
        for url in values(arguments, option):
            yield url, named.get(model, default)
    for url in values(arguments, "--engine.urls"):
        yield f"{url.rstrip('/')}/v1", ""
    for text in re.findall(r"\{.*\}", "\n".join(arguments)):
        asked = json.loads(text)
        for url in filter(None, (asked.get("base_url"), asked.get("url"))):
            yield url, asked.get("model") if "base_url" in asked else None


def values(arguments: Sequence[str], option: str) -> list[str]:
    """Return all values of an option."""
    found = list[str]()
    for place in (place for place, word in enumerate(arguments) if word == option):
        for word in arguments[place + 1 :]:
            if word.startswith("--"):
                break
            found.append(word)
    return found


@cache
def served(url: str) -> tuple[str, ...] | str:
    """Return the models of a server, or why there are none to see."""
    try:
        with urlopen(f"{url.rstrip('/')}/models", timeout=SECONDS) as page:
            return tuple(str(one["id"]) for one in json.load(page)["data"])
    except HTTPError as error:
        if error.code in (401, 403):
            return ()  # It asks for a key. The command has one; this program reads none.
        return f"{url}/models answers {error.code}; expected the address of an OpenAI-compatible server, up to /v1"
    except (URLError, OSError):
        return f"nothing answers at {url}"
    except (ValueError, KeyError, TypeError):
        return f"{url}/models lists no models; expected the address of an OpenAI-compatible server, up to /v1"


def lacking(url: str, model: str) -> str:
    """Return what is wrong with a server that is asked for a model; "" if nothing is."""
    found = served(url)
    if isinstance(found, str):
        return found
    if model and found and model not in found:
        return f"no model {model} at {url}; it serves {', '.join(sorted(found))}"
    return ""


def hours(config: Any, model_config: Any, drawn: Sequence[Any]) -> str:
    """Return the hours of a run on each number of cards, as `palaestra plan` forecasts them."""
    from palaestra.errors import UsageError
    from palaestra.trainers.plan.card_costs import CARDS
    from palaestra.trainers.plan.card_plan import plan_cards

    told = []
    for count in GPUS:
        try:
            plans = plan_cards(count, config, model_config, CARDS[CARD], drawn)
        except UsageError:
            told.append(f"{count}: does not fit")
            continue
        seconds = min(plan.step.seconds for plan in plans)
        told.append(f"{count}: {seconds * config.steps / 3600:,.0f} h")
    return f"{config.steps} steps on {CARD}s, by number: {'; '.join(told)}"


class Ledger:
    """What the commands of one script need, added up as they come."""

    def __init__(self, config_of: Callable[[str], Any]) -> None:
        """`config_of` returns the config of a model by its name; None where it is not known."""
        from palaestra.trainers.plan.workload import AssumedEpisodes

        self.config_of, self.assumed, self.made = config_of, AssumedEpisodes(), dict[str, str]()
        drawn = self.assumed.draw(DRAWN, LONGEST)
        self.tokens = sum(one.tokens for one in drawn) / len(drawn)
        self.models, self.runs, self.episodes = dict[str, float](), 0.0, 0.0

    def add(self, command: Sequence[str]) -> Iterator[str]:
        """Count the needs of a command. Yield what a run takes."""
        name, *arguments = command
        named = dict(pairwise(arguments))
        model = "" if "--base-url" in named else self.base(named.get("--model", ""))
        if name in ("collect", "curate", "eval"):
            played = int(named.get("--tasks", 0)) * int(named.get("--samples", named.get("-k", 1)))
            self.episodes += played * self.tokens * TOKEN_BYTES
        weights = self.weights(model) if model else 0
        if name in ("train", "sft"):
            self.made[f"{named.get('--run', '')}/model"] = model
            yield from self._run(name, arguments, model, weights)

    def base(self, model: str) -> str:
        """Return the name of the model that a model of the script is made from."""
        while model in self.made:
            model = self.made[model]
        return model

    def weights(self, model: str) -> int:
        """Return the number of weights of a model, and count its file once; 0 for a model that is not known."""
        from palaestra.trainers.scale.memory_estimate import outline

        if model not in self.models:
            config = self.config_of(model)
            self.models[model] = 0 if config is None else outline(config).parameters
        return int(self.models[model])

    def told(self) -> Iterator[str]:
        """Yield what all commands need together."""
        models = sum(self.models.values()) * WEIGHT_BYTES
        parts = {"models": models, "runs": self.runs, "episodes": self.episodes}
        listed = ", ".join(f"{name} {size / 1e9:,.0f} GB" for name, size in parts.items())
        yield f"Room on the disk: {sum(parts.values()) / 1e9:,.0f} GB ({listed})"
        each = f"{self.assumed.turns} turns of {self.assumed.sampled} tokens, {self.tokens:,.0f} tokens in all"
        yield f"Episodes are assumed ({each}), none measured; of yours: palaestra plan MODEL --episodes FILE"

    def _run(self, name: str, arguments: Sequence[str], model: str, weights: int) -> Iterator[str]:
        if not weights:
            yield f"hours and room are not known without the config of {model or 'its model'}"
            return
        if name == "sft":
            kept = weights * (KEPT * TRAINED_BYTES + WEIGHT_BYTES)
        else:
            from palaestra.cli.train import parse
            from palaestra.trainers.scale.fit_memory import disk_bytes
            from palaestra.trainers.validation import changed

            config, shape = parse(arguments, "palaestra train").config, self.config_of(model)
            kept = disk_bytes(changed(config, {"precision": "bfloat16"}), shape)
            recorded = config.steps * config.save.recorded_groups * config.play.num_generations
            self.episodes += recorded * self.tokens * TOKEN_BYTES
            yield hours(config, shape, self.assumed.draw(DRAWN, config.longest_row))
        self.runs += kept
        yield f"{model}, {weights / 1e9:.1f} billion weights: up to {kept / 1e9:,.0f} GB of checkpoints and models"
