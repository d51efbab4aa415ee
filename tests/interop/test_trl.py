"""TRL's real GRPOTrainer learns on an environment of palaestra, by its rollout_func and by its environment_factory."""

import re

import numpy as np
import pytest
from commands import run

import palaestra
from palaestra.envs import Task, ToolEnv, tool
from palaestra.errors import Broken


class Letters(ToolEnv):
    """Look a number up; the server of 13 is gone."""

    max_turns = 3

    def task(self, rng):
        return Task(prompt=f"Look up {rng.integers(1000)} and say it.", answer="yes")

    @tool
    def look_up(self, number: int, loud: bool = False) -> str:
        """Look a number up.

        Args:
            number: The number.
        """
        if number == 13:
            raise Broken("the server is gone")
        return "yes"

    def reward(self, attempt):
        said = [message["content"] for message in attempt.messages if message["role"] == "assistant"]
        return float("e" in (attempt.answer or "".join(said[-1:])))


class Talk(ToolEnv):
    """Talk to somebody who wants to hear more, twice."""

    max_turns = 4

    def task(self, rng):
        return Task(prompt=f"Talk about {rng.integers(1000)}.")

    def user(self, attempt):
        return "Say more." if attempt.turns < 3 else None

    def reward(self, attempt):
        return float("e" in attempt.messages[-1]["content"])


@pytest.fixture(scope="module", autouse=True)
def environment():
    palaestra.register("test/Letters-v0", f"{__name__}:Letters")
    palaestra.register("test/Talk-v0", f"{__name__}:Talk")


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")

    def make(**changes):
        from trl import GRPOConfig

        return GRPOConfig(
            output_dir=str(tmp_path),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=16,
            num_generations=4,
            max_completion_length=400,
            generation_kwargs={"max_new_tokens": 24},
            max_steps=2,
            learning_rate=5e-3,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            **changes,
        )

    return make


def loaded(model):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(model, dtype="float32"), AutoTokenizer.from_pretrained(model)


def test_a_rollout_func_trains_on_the_very_tokens_that_were_sampled(model, config):
    from trl import GRPOTrainer

    from palaestra.agents.play import TokenLimits
    from palaestra.interop.trl_rollouts import TRLRollouts

    network, tokenizer = loaded(model)
    network.generation_config.eos_token_id = [0, *range(20, 512, 8)]  # A random model ends few turns with one token.
    rollouts = TRLRollouts("test/Talk-v0", tokenizer, limits=TokenLimits(12, 120))
    outputs = []

    def spied(prompts, trainer):
        outputs.append(rollouts(prompts, trainer))
        return outputs[-1]

    trainer = GRPOTrainer(
        network, rollouts.reward, config(), rollouts.dataset(8), rollout_func=spied, processing_class=tokenizer
    )
    before = network.get_input_embeddings().weight.detach().clone()
    scored, compute = {}, trainer._get_per_token_logps_and_entropies

    def spied_on(network, ids, mask, length, *more, **options):
        found = compute(network, ids, mask, length, *more, **options)
        for row, is_token, logprobs in zip(ids, mask.bool(), found[0].detach(), strict=True):
            scored.setdefault(tuple(row[is_token].tolist()), logprobs[is_token[-length:]].tolist())
        return found

    trainer._get_per_token_logps_and_entropies = spied_on
    trainer.train()
    assert not np.allclose(before, network.get_input_embeddings().weight.detach())
    rewards = [reward for output in outputs for reward in output["palaestra_reward"]]
    assert len(rewards) == 32
    assert 0 < np.mean(rewards) < 1
    columns, turns = ("prompt_ids", "completion_ids", "env_mask"), set()
    for output in outputs:
        for prompt, completion, chosen in zip(*(output[name] for name in columns), strict=True):
            assert tokenizer.decode(prompt).endswith("<|assistant|>")
            heard = tokenizer.decode([token for token, own in zip(completion, chosen, strict=True) if not own])
            turns.add(heard.count("Say more."))
            assert heard.replace("<|end|>", "") == "<|user|>Say more.<|assistant|>" * heard.count("Say more.")
    assert turns == {0, 1, 2}
    # The weights of the first step are those that sampled, so TRL's log-probs are ours.
    for prompt, completion, chosen, logprobs in zip(
        *(outputs[0][name] for name in (*columns, "logprobs")), strict=True
    ):
        theirs = scored[(*prompt, *completion)]
        assert len(theirs) == len(completion)
        assert max(abs(a - b) for a, b, own in zip(theirs, logprobs, chosen, strict=True) if own) < 1e-4


def test_in_an_environment_factory_tools_are_methods_and_broken_is_no_reward(model, config, monkeypatch):
    from trl import GRPOTrainer, chat_template_utils
    from trl.trainer import grpo_trainer

    from palaestra.interop.trl_environments import TRLEnvironments

    network, tokenizer = loaded(model)
    tokenizer.chat_template = chat_template_utils.qwen3_chat_template

    def parsed(tokenizer, ids, prefix=None, tools=None):
        """A random model calls no tool; so a turn is read as a call, and the next as the answer."""
        dialogue = tokenizer.decode(prefix)
        if "tool_response" in dialogue:
            return {"role": "assistant", "content": "yes"}
        number = int(re.findall(r"Look up (\d+)", dialogue)[-1])
        arguments = {"number": 13 if number % 4 == 0 else number}
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "look_up", "arguments": arguments}}],
        }

    monkeypatch.setattr(grpo_trainer, "parse_response", parsed)
    environments = TRLEnvironments("test/Letters-v0", tokenizer)
    seen = []

    def reward(completion_ids, **columns):
        """A random model hardly ends a turn; so every second one is ended here."""
        ids = [[*row, tokenizer.eos_token_id] if n % 2 else [*row, 5] for n, row in enumerate(completion_ids)]
        rewards = environments.reward(completion_ids=ids, **columns)
        endings = [environment._result[1] for environment in columns["environments"]]
        seen.extend(zip(columns["prompts"], rewards, endings, strict=True))
        return rewards

    trainer = GRPOTrainer(
        network,
        reward,
        config(),
        environments.dataset(8),
        environment_factory=environments,
        processing_class=tokenizer,
    )
    trainer.train()
    assert len(seen) == 32
    for number, (prompt, value, ending) in enumerate(seen):
        is_gone = int(re.findall(r"Look up (\d+)", prompt[-1]["content"])[0]) % 4 == 0
        expected = "broken" if is_gone else "answered" if number % 2 else "length_limit"
        assert (ending, value is None) == (expected, is_gone)
        assert value == 1.0 or ending != "answered"
    assert {ending for *_, ending in seen} == {"broken", "answered", "length_limit"}
    (schema,) = chat_schemas(trainer.tools)
    assert schema["function"]["parameters"]["required"] == ["number"]
    assert schema["function"]["parameters"]["properties"]["number"]["type"] == "integer"


def test_an_episode_that_cannot_begin_has_no_reward_and_ends_no_training(model, monkeypatch):
    from palaestra.interop.trl_environments import TRLEnvironments

    def gone(**_):
        raise Broken("the server is gone")

    _, tokenizer = loaded(model)
    environments = TRLEnvironments("test/Letters-v0", tokenizer)
    environment = environments()
    monkeypatch.setattr(environment._env, "reset", gone)
    environment.reset(task=0)
    assert environment.look_up(number=3) == "The episode is over."
    said = [{"role": "assistant", "content": "yes"}]
    assert environments.reward([environment], [said], [[tokenizer.eos_token_id]]) == [None]


def chat_schemas(tools):
    from transformers.utils import get_json_schema

    return map(get_json_schema, tools)


def test_exported_tokens_are_what_sfttrainer_learns_from_and_exported_texts_are_read(
    model, config, train_a_step, tmp_path, capsys
):
    from datasets import load_dataset
    from trl import SFTConfig, SFTTrainer

    records = train_a_step("test/Letters-v0")
    status, out, err = run(capsys, "export", tmp_path / "run", "--to", "trl", "--out", tmp_path / "rows.jsonl")
    assert status == 0, out + err
    rows = load_dataset("json", data_files=str(tmp_path / "rows.jsonl"), split="train", cache_dir=str(tmp_path))
    assert len(rows) == len(records)
    network, tokenizer = loaded(model)
    arguments = {"output_dir": str(tmp_path / "sft"), "use_cpu": True, "bf16": False, "report_to": "none"}
    trainer = SFTTrainer(
        network,
        SFTConfig(**arguments, max_steps=1, save_strategy="no", packing=False, gradient_checkpointing=False),
        train_dataset=rows,
        processing_class=tokenizer,
    )
    batch = next(iter(trainer.get_train_dataloader()))
    learned = {tuple(row[row != -100].tolist()) for row in batch["labels"]}
    sampled = {tuple(row.ids[row.sampled].tolist()) for record in records for row in record.episode.rows}
    assert learned <= sampled
    trainer.train()
    status, out, err = run(capsys, "collect", "two-hop", "--tasks", "6", "--out", tmp_path / "texts.jsonl")
    assert status == 0, out + err
    for form in ("trl", "messages"):
        out = tmp_path / f"texts.{form}"
        assert run(capsys, "export", tmp_path / "texts.jsonl", "--to", form, "--out", out)[0] == 0
        dialogues = load_dataset("json", data_files=str(out), split="train", cache_dir=str(tmp_path))
        assert len(dialogues) == 6
