"""`palaestra demo`: a whole training in two minutes. A tiny agent learns to use its tool instead of guessing.
`palaestra demo --model NAME` does the same with a pretrained model, in a few minutes for 135 million weights.

First it imitates demonstrations with a bad habit (they use the tool in three episodes of ten). Then GRPO trains it with
real tool calls, and it is compared with two controls that start from the same weights.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich.console import Console

from palaestra.agents.dialect import template_format
from palaestra.agents.local_model import open_tokenizer
from palaestra.cli.blame import blaming
from palaestra.cli.display import display
from palaestra.cli.output import reporting
from palaestra.cli.results import result_table
from palaestra.cli.train import parse
from palaestra.episode import Episode, Status
from palaestra.errors import PalaestraError, UsageError
from palaestra.mixture import read_mixture
from palaestra.record import read
from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.evaluation.during_training import evaluations_summary, measure, recalled
from palaestra.trainers.evaluation.evaluate import Both
from palaestra.trainers.experiments.controls import Background, Control
from palaestra.trainers.grpo import train
from palaestra.trainers.run.folder import Run, fresh_folder
from palaestra.trainers.run.tracking import require_trackers
from palaestra.trainers.setup.open_learner import new_learner, start_cold
from palaestra.trainers.setup.open_run import check
from palaestra.trainers.view.report import need_matplotlib, save_curve, transcript

_ABOUT = (
    "Let an agent imitate a demonstrator with a bad habit, train it with GRPO, and compare the result with two "
    "controls. Without --model it is the built-in tiny agent."
)
_DEMONSTRATIONS = 96
"""Number of demonstrations for a pretrained model, which can write already."""
_GREEDY_TOOL_SHARE = 0.1
"""Limit on the tool use of a greedy pretrained model before GRPO; beyond it less is left to learn."""
_SHORT_CALLS = "format=tags"
"""Call format for a model whose chat template writes none: short, and easy to learn."""
_SMALL_TASKS = {"palaestra/SearchQA-v0": ("world=plain", "kinds=single")}
"""Options for a pretrained model, by environment, where rows are too long for a laptop otherwise."""
_EXPLANATION = (
    "What kind of learning this is: the demonstrations already show how to use the tool, but mostly show guessing. "
    "GRPO finds that using the tool pays, and does it every time. It selects and polishes a skill that is there; it "
    "does not discover one. 'Cloning successes' imitates, step by step, what has just succeeded: a simpler lesson to "
    "compare with. 'Shuffled rewards' keeps everything but the link between an episode and its reward: three runs of a "
    "third of the steps, since one run drifts where chance takes it. A share of tool use near 0 cannot fall, so on "
    "average chance alone raises it: compare with the rise of GRPO."
)


def run(arguments: Sequence[str]) -> int:
    """Train an agent by imitation, then by GRPO beside the controls, and show the success before and after."""
    options = parse(arguments or ["two-hop"], "palaestra demo", _ABOUT, default_preset="laptop")
    config = _for_pretrained(options.config)
    if options.resume is not None:
        raise UsageError("a demo cannot be resumed; to continue training use: palaestra train --resume FOLDER")
    if not config.eval_tasks:
        raise UsageError("the demo shows what it measured before and after; eval_tasks must be at least 1")
    if not config.save.recorded_groups:
        raise UsageError("the demo shows an episode of before and after; save.recorded_groups must be at least 1")
    need_matplotlib()
    check(config)
    require_trackers(config.track)
    folder = options.run or fresh_folder(f"demo-{config.env.title}-seed{config.seed}")
    with reporting(options.json) as figures, Run.create(folder, config) as record:
        try:
            with blaming():
                _play(record, config)
            figures |= {"run": str(record.folder), **record.summary}
        except PalaestraError:
            record.withdraw()
            raise
    return 0


def _for_pretrained(config: GRPOConfig) -> GRPOConfig:
    """Return the config of a demo, in which a pretrained model imitates demonstrations too, of small tasks. Options
    that the user has named are left as they are.
    """
    if config.model == "tiny":
        return config
    env, cold_start = config.env, config.cold_start
    writes_calls = template_format(open_tokenizer(config.model)) is not None
    added = _SMALL_TASKS.get(env.env_id, ())
    if not writes_calls and read_mixture(env.env_id) is None:
        added = (*added, _SHORT_CALLS)
    unnamed = (option for option in added if option.partition("=")[0] not in env.options)
    env = replace(env, env_options=(*env.env_options, *unnamed))
    if cold_start.demonstrations is None:
        cold_start = replace(cold_start, demonstrations=_DEMONSTRATIONS)
    if cold_start.max_greedy_tool_share is None:
        cold_start = replace(cold_start, max_greedy_tool_share=_GREEDY_TOOL_SHARE)
    return replace(config, env=env, cold_start=cold_start)


def _play(record: Run, config: GRPOConfig) -> None:
    with Background() as background:
        config, before, imitation = _train(record, config, background)
        Console(stderr=True).print("[bold]3. The controls, from the same start[/bold]")
        controls = background.results()
    _show(record, config, before, controls, imitation)


def _train(record: Run, config: GRPOConfig, background: Background) -> tuple[GRPOConfig, Both, dict[str, int]]:
    """Imitate, start the controls, and train with GRPO. Return the config, the evaluation before GRPO, and figures of
    the imitation: the model is freed, since this process may train controls next.
    """
    env_id, console = config.env.env_id, Console(stderr=True)
    console.print(f"[bold]1. A demonstrator with a bad habit is imitated[/bold] ({env_id}, seed {config.seed})")
    with display() as on_progress:
        config, pupil = start_cold(record, config, None, on_progress)
    beside = background.start(record.folder / "start", config)
    before = measure(record, config, pupil.local.agent, "before")
    assert before is not None, "the demo has held-out tasks"
    console.print(
        f"   it uses its tool in {before.sampled.tool_share:.0%} of its episodes and is right in "
        f"{before.sampled.success_with_tool:.0%} of those; over all in {before.sampled.success:.0%}. Without "
        f"randomness it uses the tool in {before.greedy.tool_share:.0%} and is right in {before.greedy.success:.0%}"
    )
    controls = "beside it" if beside else "after it, for memory is too small for both at once"
    console.print(f"[bold]2. GRPO, with real tool calls[/bold] (the controls train {controls})")
    with display() as on_progress:
        deque(train(record, learner=new_learner(pupil.local, config), on_progress=on_progress), 0)
    return config, before, {"imitation_steps": pupil.steps, "initial_weights_tried": pupil.attempts}


def _show(
    record: Run,
    config: GRPOConfig,
    before: Both,
    controls: Sequence[Control],
    imitation: Mapping[str, int],
) -> None:
    console = Console()
    guess = _guessed(before.sampled_episodes)
    after = [line.episode for line in read(record.folder / "episodes" / "eval-after.jsonl")]
    use = _same_task(after, guess)
    text = f"before\n{transcript(guess)}\n\nafter, the same task\n{transcript(use)}\n"
    (record.folder / "transcripts.txt").write_text(text, encoding="utf-8")
    console.print("[bold]4. One task, before and after[/bold]")
    console.print(text, markup=False, highlight=False)
    measured = {"before": before, "after GRPO": recalled(record.summary["after"])} | {
        c.name: c.measured for c in controls
    }
    console.print(result_table(f"Success on {before.sampled.tasks} held-out tasks of {config.env.env_id}", measured))
    curves = {"GRPO": record.curve} | {control.name: control.curve for control in controls}
    save_curve(record.folder / "curve.png", f"{config.env.env_id}, seed {config.seed}", curves)
    summary = record.finish(
        {
            **imitation,
            **{name: both.figures() for name, both in measured.items()},
            **evaluations_summary(record),
            "curves": curves,
        }
    )
    console.print(_EXPLANATION, highlight=False)
    console.print(
        f"\n{summary['wall_seconds']:.0f} s wall, {summary['cpu_seconds']:.0f} s CPU; "
        f"{record.folder}: summary.json, curve.png, transcripts.txt, metrics.jsonl, model/",
        highlight=False,
        soft_wrap=True,
    )


def _guessed(episodes: Sequence[Episode]) -> Episode:
    """Return an episode that guessed wrong, without a call; if there is none, the first episode."""
    return next((e for e in episodes if not e.attempt.calls and not e.parts.get("success")), episodes[0])


def _same_task(episodes: Sequence[Episode], other: Episode) -> Episode:
    """Return the episode of the same task as `other`; if there is none, one that used its tool, or else the first."""
    worked = [e for e in episodes if any(call.status is Status.OK for call in e.attempt.calls)]
    return next((e for e in episodes if e.start.key[:2] == other.start.key[:2]), (worked or list(episodes))[0])
