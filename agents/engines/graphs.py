"""CUDA graphs of decode steps: the step's kernels are launched at once instead of one by one from Python.

A step is captured for each key (its width, its span, how it samples) when it first comes, and replayed from then on.
Its inputs are copied into the tensors that it was captured with. Call `clear` when another tensor that the step reads
has moved, such as a cache that has grown.

If a model's step cannot be captured, it runs without a graph, and a warning says so once.
"""

import warnings
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

DecodeStep = Callable[..., tuple[Tensor, ...]]


class Graphs:
    """Captures decode steps as CUDA graphs and replays them."""

    def __init__(self) -> None:
        self._captured: dict[Hashable, tuple[Callable[[], None], tuple[Tensor, ...], tuple[Tensor, ...]]] = {}
        self._refused = False

    def run(self, key: Hashable, step: DecodeStep, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the outputs of the step for these inputs."""
        if self._refused:
            return step(*inputs)
        if key not in self._captured:
            graph_inputs = tuple(tensor.clone() for tensor in inputs)
            try:
                self._captured[key] = (*self._capture(step, graph_inputs),)
            except RuntimeError as error:
                self._refused = True
                self.clear()
                warnings.warn(f"decode steps run without CUDA graphs, so slower: {error}", stacklevel=2)
                return step(*inputs)
        replay, graph_inputs, outputs = self._captured[key]
        for graph_input, tensor in zip(graph_inputs, inputs, strict=True):
            graph_input.copy_(tensor)
        replay()
        return tuple(output.clone() for output in outputs)

    def clear(self) -> None:
        """Drop all graphs, because the tensors that they read have moved."""
        self._captured.clear()

    def _capture(
        self, step: DecodeStep, inputs: tuple[Tensor, ...]
    ) -> tuple[Callable[[], None], tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Warm the step up on a side stream and record it; return its replay function, inputs and outputs."""
        side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(2):
                step(*inputs)
        torch.cuda.current_stream().wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = step(*inputs)
        return graph.replay, inputs, outputs


def graph_span(span: int) -> int:
    """Round a span up by at most a quarter, so that there are few spans: each has a CUDA graph of its own."""
    step = 1 << max(span.bit_length() - 3, 6)
    return -(-span // step) * step
