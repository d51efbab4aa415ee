"""One evaluation of inspect_ai that runs as long as the process, for it allows one at a time; episodes are its samples.

Its first sample stays, and adds the samples of episodes as they begin. A sample's own task, dataset and model come from
its episode: solver, scorer and model of the evaluation only pass on. Left out: logs, for records are palaestra's.
"""

import asyncio
import tempfile
import threading
from collections.abc import Mapping
from contextvars import ContextVar
from itertools import count
from typing import Any

import anyio
import inspect_ai
from inspect_ai.dataset import Sample
from inspect_ai.model import Model as InspectModel
from inspect_ai.model import ModelAPI, ModelOutput, get_model, modelapi
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, value_to_float
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import apply_limits, message_limit, time_limit, token_limit

from palaestra.envs.harness import Model
from palaestra.errors import Broken

SAMPLES = 4096
"""Most episodes at once."""
START_SECONDS = 60.0
_EPISODE = "palaestra_episode"
_asked: ContextVar[InspectModel | None] = ContextVar("palaestra_model", default=None)
_to_float = value_to_float()


class _SampleEpisode:
    """An episode that a sample of the evaluation plays."""

    def __init__(self, task: inspect_ai.Task, model: Model) -> None:
        self.task, self.model = task, model
        self.outcome: asyncio.Future[tuple[str, Mapping[str, float]]] = asyncio.get_running_loop().create_future()
        self.home = asyncio.get_running_loop()
        self.scope: anyio.CancelScope | None = None

    def tell(self, outcome: Any) -> None:
        """Deliver the answer and grades, or the error, to the harness that waits."""
        settle = self.outcome.set_exception if isinstance(outcome, BaseException) else self.outcome.set_result
        self.home.call_soon_threadsafe(lambda: self.outcome.done() or settle(outcome))

    def cancel(self) -> None:
        """Stop the solver, if it still runs."""
        if self.scope is not None:
            self.scope.cancel()


class _Evaluation:
    """The evaluation of this process, in a thread of its own."""

    def __init__(self) -> None:
        self.episodes: dict[str, _SampleEpisode] = {}
        self._numbers, self._begun = count(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="palaestra-inspect", daemon=True)
        self._thread.start()

    def add(self, episode: _SampleEpisode, sample: Sample) -> str:
        """Let a sample be played, and return its id in the evaluation."""
        if not self._begun.wait(START_SECONDS) or not self._thread.is_alive():
            raise Broken("the evaluation of inspect did not begin, or has ended")
        name = f"{next(self._numbers)}"
        self.episodes[name] = episode
        metadata = {**(sample.metadata or {}), _EPISODE: name}
        sandbox = sample.sandbox or episode.task.sandbox
        copy = sample.model_copy(update={"id": name, "metadata": metadata, "sandbox": sandbox})
        self.loop.call_soon_threadsafe(self._arrivals.put_nowait, copy)
        return name

    def _run(self) -> None:
        keeper = inspect_ai.SampleSource.from_samples([Sample("", id="keeper")])
        task = inspect_ai.Task(keeper, solver=_passed_on(self), scorer=_graded(self), name="palaestra")
        with tempfile.TemporaryDirectory() as folder:
            inspect_ai.eval(
                task, model="palaestra/any", display="none", log_dir=folder, log_samples=False, log_realtime=False,
                fail_on_error=False, max_samples=SAMPLES, max_connections=SAMPLES, score=True,
            )  # fmt: skip

    async def keep(self) -> None:
        """Add samples as they arrive, for ever."""
        self.loop, self._arrivals = asyncio.get_running_loop(), asyncio.Queue[Sample]()
        self._begun.set()
        while True:
            inspect_ai.enqueue_sample(await self._arrivals.get())


@solver
def _passed_on(evaluation: _Evaluation) -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        if _EPISODE not in state.metadata:
            await evaluation.keep()
        episode = evaluation.episodes[state.metadata[_EPISODE]]
        limits = message_limit(episode.task.message_limit), token_limit(episode.task.token_limit)
        address = {"base_url": episode.model.base_url, "api_key": episode.model.api_key, "memoize": False}
        with anyio.CancelScope() as episode.scope, apply_limits([*limits, time_limit(episode.task.time_limit)], True):
            try:
                async with get_model("openai-api/palaestra/any", **address) as model:
                    _asked.set(model)
                    for step in (episode.task.setup, episode.task.solver):
                        state = state if step is None else await step(state, generate)
            except Exception as error:  # To inspect too, a sample with an error has no score.
                episode.tell(Broken(f"a solver of inspect failed: {type(error).__name__}: {error}"))
                raise
        return state

    return solve


@scorer(metrics=[mean()])
def _graded(evaluation: _Evaluation) -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        episode = evaluation.episodes[state.metadata[_EPISODE]]
        try:
            scores = [await each(state, target) for each in episode.task.scorer or ()]
            grades: dict[str, float] = {}
            for number, grade in enumerate(each for each in scores if each is not None):
                values = grade.value if isinstance(grade.value, dict) else {str(number): grade.value}
                grades |= {name: _to_float(value) for name, value in values.items()}
            episode.tell((state.output.completion, grades) if grades else Broken("its scorers gave no score"))
        except Exception as error:
            episode.tell(Broken(f"a scorer of inspect failed: {type(error).__name__}: {error}"))
            raise
        return Score(value=0)

    return score


@modelapi("palaestra")
class _Asked(ModelAPI):
    """The model of the episode whose solver asks."""

    async def generate(self, *request: Any, **options: Any) -> ModelOutput:
        """Ask it."""
        model = _asked.get()
        if model is None:
            raise Broken("a scorer asks the model that plays; name another one in the task, or leave that scorer out")
        return await model.api.generate(*request, **options)

    def max_connections(self) -> int:
        """Return how many requests run at once: as many as episodes."""
        return SAMPLES


_lock = threading.Lock()
_evaluations: list[_Evaluation] = []


async def evaluate(task: inspect_ai.Task, number: int, model: Model) -> tuple[str, Mapping[str, float]]:
    """Return the answer to a sample of a task, and its grades."""
    with _lock:
        evaluation = _evaluations[0] if _evaluations else _Evaluation()
        _evaluations[:] = [evaluation]
    episode = _SampleEpisode(task, model)
    name = await asyncio.to_thread(evaluation.add, episode, task.dataset[number])
    try:
        return await episode.outcome
    finally:
        del evaluation.episodes[name]
        evaluation.loop.call_soon_threadsafe(episode.cancel)
