"""Bring your agent: its loop asks a model over HTTP, as everybody's does, and is evaluated and trained as it stands.

PYTHONPATH=examples palaestra train bring_your_agent:me/MyAgent-v0      GRPO through the loop, in a minute
"""

import json
import urllib.request

import palaestra
from palaestra.envs import Harness
from palaestra.envs.suite.two_hop import TwoHop, demonstrate

QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
SEARCH = {"type": "function", "function": {"name": "search", "description": "Look up a fact.", "parameters": QUERY}}


class MyAgent(Harness):
    task, reward = TwoHop.task, TwoHop.reward  # What is asked, and what counts; write your own.

    def run(self, task, model):  # The agent's loop. With the package openai, `model.client()` is a ready client.
        messages = [{"role": "system", "content": TwoHop.system}, {"role": "user", "content": task.prompt}]
        while True:
            body = json.dumps({"messages": messages, "tools": [SEARCH]}).encode()
            with urllib.request.urlopen(f"{model.base_url}/chat/completions", body) as reply:
                messages.append(json.load(reply)["choices"][0]["message"])
            if not messages[-1].get("tool_calls"):
                return messages[-1]["content"]
            for call in messages[-1]["tool_calls"]:
                query = json.loads(call["function"]["arguments"]).get("query", "")
                result = task.data["facts"].get(query, "no result")
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


palaestra.register("me/MyAgent-v0", "bring_your_agent:MyAgent", demonstrator="palaestra.envs.suite.two_hop:demonstrate")
if __name__ == "__main__":
    from palaestra.agents import Agent, ScriptedPolicy, play

    starts = [palaestra.Start(task, seed=task) for task in range(4)]
    for episode in play(Agent(ScriptedPolicy(demonstrate)), palaestra.arena("me/MyAgent-v0", 4), starts):
        print(episode.attempt.task.prompt, "|", episode.attempt.answer, "|", episode.ending, episode.reward)
