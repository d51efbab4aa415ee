"""CUDA graphs of decode steps: the step's kernels are launched at once instead of one by one from Python.

A step is captured for each key (its width, its span, how it samples) when it first comes, and replayed from then on.
Its inputs are copied into the tensors that it was captured with. Whoever moves a tensor that the step reads elsewhere,
as a cache that grows, must `clear`.

Where a model's step cannot be captured, it runs as it is, and a warning says so once.
"""

import warnings
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

Step = Callable[..., tuple[Tensor, ...]]


class Graphs:
    """The captured steps."""

    def __init__(self) -> None:
        self._captured: dict[Hashable, tuple[Callable[[], None], tuple[Tensor, ...], tuple[Tensor, ...]]] = {}
        self._refused = False

    def run(self, key: Hashable, step: Step, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What the step gives for these inputs."""
        if self._refused:
            return step(*inputs)
        if key not in self._captured:
            held = tuple(tensor.clone() for tensor in inputs)
            try:
                self._captured[key] = (*self._capture(step, held),)
            except RuntimeError as error:
                self._refused = True
                self.clear()
                warnings.warn(f"decode steps run without CUDA graphs, so slower: {error}", stacklevel=2)
                return step(*inputs)
        replay, held, outputs = self._captured[key]
        for place, tensor in zip(held, inputs, strict=True):
            place.copy_(tensor)
        replay()
        return tuple(output.clone() for output in outputs)

    def clear(self) -> None:
        """Forget all: the tensors that they read have moved."""
        self._captured.clear()

    def _capture(
        self, step: Step, held: tuple[Tensor, ...]
    ) -> tuple[Callable[[], None], tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Run the step some times aside, so that what it makes once is made, and record it; how to replay it."""
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):
                step(*held)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = step(*held)
        return graph.replay, held, outputs
