"""Agents as users of five frameworks write them, each of them the `run` of a harness: one tool, one question."""

import json

import palaestra
from palaestra.envs import Harness, RewardPart, Task
from palaestra.episode import is_turn

WORDS = ("red", "green", "blue", "grey")
SYSTEM = "Look the number up, and answer with its word alone."
NAMES = ("OpenAIClient", "AgentsChat", "AgentsResponses", "AgentsStreamed", "Smolagents", "LangGraph", "PydanticAI")


def word_of(number: int) -> str:
    return WORDS[number % len(WORDS)]


class Words(Harness):
    """Find the word of a number."""

    max_turns = 6
    parts = {"success": RewardPart(), "brief": RewardPart(0.1)}  # noqa: RUF012

    def task(self, rng):
        number = int(rng.integers(100, 1000))
        return Task(prompt=f"Which word has {number}?", answer=word_of(number))

    def reward(self, attempt):
        said = sum(len(message["content"]) for message in attempt.messages if is_turn(message))
        return {"success": float(attempt.answer == attempt.task.answer), "brief": 1 / (1 + said)}


def demonstrate(messages, rng, tool_rate=1.0):
    """Calls the tool, and then says its result in the way that the framework wants."""
    texts = [message["content"].strip() for message in messages if message["role"] != "system"]
    found = [word for text in texts for word in WORDS if text.splitlines()[-1:] == [word]]
    number = next(text.split()[-1].rstrip("?") for text in texts if "Which word has" in text)
    if not found:
        name, arguments = "look_up", {"number": int(number)}
    elif "final_answer" in messages[0]["content"]:  # The tool by which an agent of smolagents ends.
        name, arguments = "final_answer", {"answer": found[-1]}
    else:
        return found[-1]
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class OpenAIClient(Words):
    async def run(self, task, model):
        from openai import AsyncOpenAI

        client = AsyncOpenAI(base_url=model.base_url, api_key=model.api_key)
        number = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
        tools = [{"type": "function", "function": {"name": "look_up", "description": "Look up.", "parameters": number}}]
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task.prompt}]
        while True:
            completion = await client.chat.completions.create(model="gpt-5", messages=messages, tools=tools)
            said = completion.choices[0].message
            if not said.tool_calls:
                return said.content
            messages.append(said)
            for call in said.tool_calls:
                try:
                    result = word_of(**json.loads(call.function.arguments))
                except TypeError as error:
                    result = f"Error: {error}"
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


class AgentsChat(Words):
    """The OpenAI Agents SDK over chat completions."""

    streams = False

    def model(self, client):
        from agents import OpenAIChatCompletionsModel  # noqa: TID251  (OpenAI's)

        return OpenAIChatCompletionsModel("gpt-5", client)

    async def run(self, task, model):
        from agents import Agent, Runner, function_tool, set_tracing_disabled  # noqa: TID251  (OpenAI's)

        @function_tool
        def look_up(number: int) -> str:
            """Look up."""
            return word_of(number)

        set_tracing_disabled(True)
        agent = Agent("words", instructions=SYSTEM, tools=[look_up], model=self.model(model.client()))
        if not self.streams:
            return (await Runner.run(agent, task.prompt)).final_output
        run = Runner.run_streamed(agent, task.prompt)
        async for _ in run.stream_events():
            pass
        return run.final_output


class AgentsResponses(AgentsChat):
    """The same over the Responses API, which this SDK prefers."""

    def model(self, client):
        from agents import OpenAIResponsesModel  # noqa: TID251  (OpenAI's)

        return OpenAIResponsesModel("gpt-5", client)


class AgentsStreamed(AgentsResponses):
    streams = True


class Smolagents(Words):
    """Its agents write their own calls as text in the next request, so each of its steps is a dialogue."""

    def run(self, task, model):
        from smolagents import OpenAIModel, ToolCallingAgent, tool

        @tool
        def look_up(number: int) -> str:
            """Look up.

            Args:
                number: The number.
            """
            return word_of(number)

        served = OpenAIModel("gpt-5", api_base=model.base_url, api_key=model.api_key)
        return ToolCallingAgent([look_up], served, instructions=SYSTEM, max_steps=3, verbosity_level=0).run(task.prompt)


class LangGraph(Words):
    async def run(self, task, model):
        from langchain_core.tools import tool
        from langchain_openai import ChatOpenAI
        from langgraph.graph import START, MessagesState, StateGraph
        from langgraph.prebuilt import ToolNode, tools_condition

        @tool
        def look_up(number: int) -> str:
            """Look up."""
            return word_of(number)

        chat = ChatOpenAI(model="gpt-5", base_url=model.base_url, api_key=model.api_key).bind_tools([look_up])

        async def ask(state):
            return {"messages": [await chat.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("ask", ask)
        graph.add_node("tools", ToolNode([look_up]))
        graph.add_edge(START, "ask")
        graph.add_conditional_edges("ask", tools_condition)
        graph.add_edge("tools", "ask")
        opening = [("system", SYSTEM), ("user", task.prompt)]
        return (await graph.compile().ainvoke({"messages": opening}))["messages"][-1].text


class PydanticAI(Words):
    async def run(self, task, model):
        from pydantic_ai import Agent
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        served = OpenAIChatModel("gpt-5", provider=OpenAIProvider(openai_client=model.client()))
        agent = Agent(served, instructions=SYSTEM)

        @agent.tool_plain
        def look_up(number: int) -> str:
            """Look up."""
            return word_of(number)

        return (await agent.run(task.prompt)).output


def register():
    for name in NAMES:
        palaestra.register(f"test/{name}-v0", f"framework_agents:{name}", demonstrator="framework_agents:demonstrate")
