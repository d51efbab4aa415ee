"""One training step, held to the papers' formula: padded rows, loops over episodes and tokens, double precision.

Every number of the step stands in `Settings`. What the trainer's interfaces look like is known to `learned` and
`training_reward` alone.
"""

import copy
import math
from collections import Counter
from dataclasses import dataclass, replace

import families
import numpy as np
import pytest
import torch

from palaestra.agents import Agent
from palaestra.agents.policies.tiny import tiny_model
from palaestra.trainers.batch import Batch, Sample, Scored
from palaestra.trainers.config.grpo_config import grpo_config
from palaestra.trainers.config.recipes import find_recipe
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.learn.score_batch import score_batch
from palaestra.trainers.learn.update import update


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Defaults in which whatever is ignored, or replaced by the trainer's own default, changes the weights."""

    epsilon: float = 0.2
    epsilon_high: float = 0.35
    dual_clip: float | None = 2.0
    level: str = "token"
    aggregation: str = "token"
    beta: float = 0.3
    estimator: str = "k3"
    temperature: float = 0.7
    learning_rate: float = 2e-3
    schedule: str = "constant"
    steps: int = 7
    step: int = 3
    beta2: float = 0.6
    weight_decay: float = 0.5
    max_norm: float = 1e9
    micro_batch_tokens: int = 40
    bounds: tuple[float, float] | None = None
    """Of importance weights: lower ones and higher ones are rejected; of (0, cap) higher ones are cut to it."""
    corrected: str = "token"


def learned(model, reference, episodes, terms, advantages, settings):
    """What the trainer makes of the episodes: the model after the step, figures, one lesson an episode."""
    correction = None
    if settings.bounds is not None:
        low, high = settings.bounds
        named = {"name": "masked", "lowest_weight": low, "highest_weight": high}
        correction = {**(named if low else {"name": "truncated", "cap": high}), "correction_level": settings.corrected}
    config = grpo_config(
        "palaestra/TwoHop-v0",
        "grpo-t",
        epsilon=settings.epsilon,
        epsilon_high=settings.epsilon_high,
        dual_clip=settings.dual_clip,
        importance_sampling_level=settings.level,
        aggregation=settings.aggregation,
        correction=correction,
        beta=settings.beta,
        kl_estimator=settings.estimator,
        temperature=settings.temperature,
        learning_rate=settings.learning_rate,
        lr_schedule=settings.schedule,
        steps=settings.steps,
        adam_beta2=settings.beta2,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_norm,
        num_mini_batches=len(PARTS),
        micro_batch_tokens=settings.micro_batch_tokens,
    )
    model = copy.deepcopy(model)
    learner = Learner(Agent(families.Echo()), model, config, step=settings.step, reference=reference)
    groups = sorted({episode.start.group for episode in episodes})
    batch = Batch(
        number=settings.step,
        rollouts=tuple(Scored(episode, term) for episode, term in zip(episodes, terms, strict=True)),
        samples=tuple(Sample(i, groups.index(episode.start.group)) for i, episode in enumerate(episodes)),
    )
    found, lessons = update(learner, batch, advantages, score_batch(learner, batch))
    names = {
        "loss": "loss",
        "norm": "grad_norm",
        "kl": "kl",
        "low": "clip_ratio/low_mean",
        "high": "clip_ratio/high_mean",
        "gap": "sampling/sampling_logp_difference/max",
        "gap_mean": "sampling/sampling_logp_difference/mean",
        **({"kept": "correction/kept_share", "effective": "correction/effective_share"} if correction else {}),
        "rate": "learning_rate",
        "updates": "optimizer_steps",
    }
    return model, {ours: found.get(theirs, 0.0) for ours, theirs in names.items()}, lessons


def training_reward(episode):
    """What the trainer compares within a group."""
    return sum(find_recipe("grpo-t").shaping(episode).values())


# The formula.


def formula(model, reference, episodes, advantages, settings):
    """The model after one optimizer step a mini-batch, a tally of figures, and what was said: by episode, row by row.

    The model is scored anew after each step; the engine's log-probs stay those of the batch.
    """
    began, model, tally, said, every = model, copy.deepcopy(model).double(), Counter(), {}, []
    tally["rate"] = settings.learning_rate
    if settings.schedule == "linear":
        tally["rate"] *= 1 - 0.95 * settings.step / (settings.steps - 1)
    optimizer = torch.optim.AdamW(
        model.parameters(), tally["rate"], betas=(0.9, settings.beta2), weight_decay=settings.weight_decay
    )
    for part in PARTS:
        inside = [i for i, episode in enumerate(episodes) if episode.start.group in part]
        rows = [(i, row) for i in inside for row in episodes[i].rows]
        new_RL = padded_logprobs(model, [row for _, row in rows], settings.temperature)
        if reference is not None:
            reference_RL = padded_logprobs(reference, [row for _, row in rows], settings.temperature).detach()
        old_RL = [torch.tensor(row.logprobs) for _, row in rows]
        if settings.bounds is not None:
            old_RL = padded_logprobs(copy.deepcopy(began).double(), [row for _, row in rows], settings.temperature)
        weights = [importance(old_RL[r].tolist(), row, settings) for r, (_, row) in enumerate(rows)]
        every += [weight for row in weights for weight in row.values()]
        tokens = {
            i: sum(w > 0 for row, (j, _) in zip(weights, rows, strict=True) if j == i for w in row.values())
            for i in inside
        }
        share = {i: 1 / sum(tokens.values()) for i in inside}
        if settings.aggregation == "sample":
            share = {i: 1 / (tokens[i] * np.count_nonzero(list(tokens.values()))) for i in inside if tokens[i]}
        loss = torch.zeros((), dtype=torch.float64)
        for r, (i, row) in enumerate(rows):
            if not tokens[i] or (advantages[i] == 0 and reference is None):
                continue  # Counts in the shares; has no gradient.
            new_L, places = new_RL[r, : len(row)], np.flatnonzero(row.sampled)
            said.setdefault(i, (tally["updates"], []))[1].append(np.where(row.sampled, new_L.detach(), 0))
            loss = loss - share[i] * objective(new_L, old_RL[r], weights[r], row, advantages[i], settings, tally)
            if reference is not None and len(places):
                kl = [ESTIMATES[settings.estimator](new_L[t] - reference_RL[r, t]) for t in places]
                loss = loss + settings.beta * share[i] * sum(weights[r][t] * k for t, k in zip(places, kl, strict=True))
                tally["kl"] += sum(kl).item()
        loss.backward()
        norm = math.sqrt(sum((parameter.grad**2).sum().item() for parameter in model.parameters()))
        for parameter in model.parameters():
            parameter.grad *= min(1.0, settings.max_norm / norm)
        optimizer.step()
        optimizer.zero_grad()
        tally.update(updates=1, loss=loss.item() / len(PARTS), norm=norm / len(PARTS))
    tally["kept"] = sum(weight > 0 for weight in every) / len(every)
    tally["effective"] = sum(every) ** 2 / len(every) / sum(weight**2 for weight in every)
    tally["most"], tally["least"] = max(every), min(every)
    return model, tally, said


def importance(old_L, row, settings):
    """The weight of each sampled token, by its place: the learner's probability of it over the engine's."""
    places = np.flatnonzero(row.sampled)
    if settings.bounds is None:
        return dict.fromkeys(places, 1.0)
    weights = {t: math.exp(old_L[t]) / math.exp(row.logprobs[t]) for t in places}
    if settings.corrected == "sequence":
        weights = dict.fromkeys(places, math.prod(weights.values()))
    low, high = settings.bounds
    if not low:
        return {t: min(weight, high) for t, weight in weights.items()}
    return {t: weight if low <= weight <= high else 0.0 for t, weight in weights.items()}


def padded_logprobs(model, rows, temperature):
    """What the model's own forward pass says of each token, given those before it; all rows padded to one length."""
    ids_RL = torch.zeros(len(rows), max(len(row) for row in rows), dtype=torch.long)
    mask_RL = torch.zeros_like(ids_RL)
    for r, row in enumerate(rows):
        ids_RL[r, : len(row)] = torch.tensor(row.ids)
        mask_RL[r, : len(row)] = 1
    logits_RLV = model(input_ids=ids_RL, attention_mask=mask_RL).logits.double() / temperature
    said_RL = torch.log_softmax(logits_RLV, dim=-1)[:, :-1].gather(2, ids_RL[:, 1:, None])[:, :, 0]
    return torch.nn.functional.pad(said_RL, (1, 0))


def objective(new_L, old_L, weights, row, advantage, settings, tally):
    """Sum over the row's sampled tokens of `min(ratio A, clip(ratio) A)`, where A < 0 not below `dual_clip * A`, each
    times its importance weight. Without a correction the ratio is to what the engine said.
    """
    total, places = 0.0, np.flatnonzero(row.sampled)
    log_ratios = [new_L[t] - old_L[t].item() for t in places]
    for t, log_ratio in zip(places, log_ratios, strict=True):
        if row.versions[t] == settings.step and not tally["updates"]:
            gap = abs(new_L[t].item() - float(row.logprobs[t]))
            tally["gap"] = max(tally["gap"], gap)
            tally.update(current=1, gap_mean=gap)
        ratio = torch.exp(sum(log_ratios) / len(log_ratios) if settings.level == "sequence" else log_ratio)
        value = min(ratio * advantage, ratio.clamp(1 - settings.epsilon, 1 + settings.epsilon_high) * advantage)
        if advantage < 0 and settings.dual_clip and value < settings.dual_clip * advantage:
            value = settings.dual_clip * advantage
            tally["dual"] += 1
        tally["tokens"] += 1
        tally["low"] += advantage < 0 and ratio.item() < 1 - settings.epsilon
        tally["high"] += advantage > 0 and ratio.item() > 1 + settings.epsilon_high
        total = total + weights[t] * value
    return total


ESTIMATES = {"k1": lambda d: d, "k2": lambda d: d**2 / 2, "k3": lambda d: torch.exp(-d) - 1 + d}


# The episodes.

PARTS = ({3, 5}, {8})
"""The groups of each mini-batch."""
ADVANTAGES = [1.3, -0.8, -1.1, 0.7, 0.9, 0.0, -1.5, 0.4, -0.6]


def a_batch(model, settings):
    """Episodes of three groups by turns, most of them played with weights that are two steps old."""
    specs = [  # group, turns of each row, and by how much the engine's log-probs are off: as a row, and each token
        (3, [([4, 3], -0.5)]),
        (5, [([5], 0.6), ([2, 3], -0.9)]),  # rows so alike that they share a micro-batch
        (3, [([6], None)]),  # played with the weights of this step
        (8, [([], 0.0)]),
        (8, [([5, 2, 3], -0.7), ([2], 0.4)]),
        (5, [([7], 0.3)]),
        (8, [([9, 4], 0.5), ([], 0.0), ([3], -0.9)]),
        (3, [([1], 0.1)]),
        (8, [([6], -0.3), ([2], None)]),
    ]
    episodes, rng = [], np.random.default_rng(5)
    for number, (group, rows) in enumerate(specs):
        made = []
        for turns, off in rows:
            row = families.token_row(3 + number, turns, version=settings.step, seed=int(rng.integers(1000)))
            errors = np.linspace(-4e-4, 3e-4, int(row.sampled.sum()))
            if off is not None:
                row.versions[row.sampled] -= 2
                errors = off + rng.uniform(-0.5, 0.5, int(row.sampled.sum()))
            row.logprobs[row.sampled] = families.fresh_logprobs(model, row, settings.temperature) + errors
            made.append(row)
        episodes.append(families.an_episode(*made, reward=0.5, group=group))
    return episodes


NEAR = {"epsilon": 0.04, "epsilon_high": 0.05, "dual_clip": 1.1, "learning_rate": 5e-3}
"""Where the ratio is to the learner's own log-probs, it is 1 until the first step."""
CASES = {
    "tokens": Settings(),
    "sequences": Settings(level="sequence", aggregation="sample", estimator="k2", temperature=1.4, dual_clip=1.5),
    "k1, one of two gradients too long": Settings(
        aggregation="sample", estimator="k1", epsilon=0.2, epsilon_high=0.3, dual_clip=None, max_norm=5.2
    ),
    "no KL, a falling rate": Settings(level="sequence", beta=0.0, schedule="linear", micro_batch_tokens=10_000),
    "tokens of large weight cut": Settings(bounds=(0, 1.4), **NEAR),
    "rows of large weight cut": Settings(bounds=(0, 5.0), corrected="sequence", aggregation="sample", **NEAR),
    "tokens rejected": Settings(bounds=(0.6, 1.7), **NEAR),
    "tokens rejected, samples alike": Settings(bounds=(0.6, 1.7), aggregation="sample", beta=0.0, **NEAR),
    "rows rejected": Settings(bounds=(0.1, 60.0), corrected="sequence", **NEAR),
    "every gradient too long": Settings(beta=1.5, estimator="k2", max_norm=0.3, temperature=1.2, beta2=0.99),
}


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_a_step_is_that_of_the_formula(settings):
    model = tiny_model(40, layers=1, seed=5)
    reference = tiny_model(40, layers=1, seed=6) if settings.beta else None
    episodes = a_batch(model, settings)
    terms = [{"outcome": value + 1} for value in ADVANTAGES]
    expected, tally, said = formula(model, reference, episodes, ADVANTAGES, settings)
    cases, seen = ("low", "high", *["dual"] * bool(settings.dual_clip)), 6 if settings.bounds is None else 2
    assert min(tally[case] for case in cases) >= seen, tally
    if settings.bounds is not None:
        assert tally["effective"] < 0.9, "the correction changes much"
        assert tally["most"] == settings.bounds[1] if not settings.bounds[0] else 0.2 < tally["kept"] < 0.8
    after, figures, lessons = learned(model, reference, episodes, terms, ADVANTAGES, settings)

    start, found, right = (
        torch.cat([p.detach().flatten() for p in each.parameters()]) for each in (model, after, expected)
    )
    assert (found - right).norm() < 1e-3 * (start - right).norm()
    tally["gap_mean"] /= tally["current"]
    for name in ("kl", "low", "high"):
        tally[name] /= tally["tokens"]
    assert figures == pytest.approx({name: tally[name] for name in figures}, rel=1e-4, abs=2e-6)
    for i, lesson in enumerate(lessons):
        updates, logprobs = said.get(i, (0, []))
        assert (lesson.step, lesson.terms, lesson.advantage) == (settings.step + 1, terms[i], ADVANTAGES[i])
        assert lesson.updates == updates
        for ours, theirs in zip(logprobs, lesson.trainer_logprobs, strict=True):
            np.testing.assert_allclose(theirs, ours, atol=1e-4)


def test_what_is_learned_is_the_reward_and_not_the_part_called_success():
    episode = replace(families.an_episode(), reward=0.25, parts={"success": 1.0, "manners": -0.75})
    assert training_reward(episode) == pytest.approx(2 * 0.25 - 1)
