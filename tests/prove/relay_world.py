"""A game for two tiny agents: what one finds out, the other needs.

A task:      Where was Bado born, and what is the mayor of that city?
A game:      scout_0 is asked "Where was Bado born?", searches, and says Kemu.
             guide_0 is asked "What is the mayor of Kemu?", searches, and says Tila.

The guide is asked about whatever the scout has said, and rewarded for the right name alone: it cannot succeed where the
scout has guessed. Facts and search are TwoHop's.
"""

import re

import palaestra
from palaestra.envs import Game, Task, ToolError, tool
from palaestra.envs.suite.two_hop import NAMES, RELATIONS, TwoHop
from palaestra.formats import ParsedCall, hermes

SCOUT, GUIDE = SEATS = ("scout_0", "guide_0")
GAME = "prove/relay_v0"
ASKS = (
    re.compile(r"Where was (?P<name>\w+) (?P<relation>born)\?"),
    re.compile(r"What is the (?P<relation>\w+) of (?P<name>\w+)\?"),
)


class Relay(Game):
    """Find a name for the other, and one with the other's."""

    seats = SEATS
    seat_tools = {SCOUT: ("search",), GUIDE: ("search",)}  # noqa: RUF012
    max_turns = 2

    def task(self, rng):
        facts = TwoHop().task(rng).data["facts"]
        person, relation = next(iter(facts)).split()[0], str(rng.choice(RELATIONS))
        city = facts[f"{person} born"]
        prompt = f"Where was {person} born, and what is the {relation} of that city?"
        data = {"facts": facts, "person": person, "relation": relation, "city": city}
        return Task(prompt, answer=facts[f"{city} {relation}"], data=data)

    @tool
    def search(self, query: str) -> str:
        """Look up one fact: "Name relation"."""
        found = self.problem.data["facts"].get(query)
        if found is None:
            raise ToolError("no result")
        return found

    def rounds(self, task, rng):
        found = (yield {SCOUT: f"Where was {task.data['person']} born?"})[SCOUT]
        name = found if found in NAMES else NAMES[rng.integers(len(NAMES))]
        fact = (yield {GUIDE: f"What is the {task.data['relation']} of {name}?"})[GUIDE]
        return {SCOUT: float(found == task.data["city"]), GUIDE: float(fact == task.answer)}


def demonstrate(messages, rng, tool_rate=1.0):
    """Search, and say what was found; with probability 1 - tool_rate, guess."""
    if messages[-1]["role"] == "tool":
        return messages[-1]["content"]
    asked = next((found for ask in ASKS if (found := ask.fullmatch(messages[-1]["content"]))), None)
    if asked is None or rng.random() >= tool_rate:
        return NAMES[rng.integers(len(NAMES))]
    return hermes.render([ParsedCall("search", {"query": f"{asked['name']} {asked['relation']}"})])


palaestra.register_game(GAME, "relay_world:Relay", demonstrator="relay_world:demonstrate")
