"""CUDA graphs of decode steps: all kernels of a step are launched at once instead of one by one from Python.

A key describes a step: its width, its span and how it samples. The first step of each key is captured as a graph, which
later steps of that key replay after their inputs were copied into the graph's input tensors. Call `clear` when another
tensor that the step reads has a new address, such as a cache that has grown.

If a model's step cannot be captured, it runs without a graph, and a warning says so once.
"""

import warnings
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

DecodeStep = Callable[..., tuple[Tensor, ...]]


class Graphs:
    """The captured CUDA graphs of decode steps, by key."""

    def __init__(self) -> None:
        self._captured: dict[Hashable, tuple[Callable[[], None], tuple[Tensor, ...], tuple[Tensor, ...]]] = {}
        self._refused = False

    def run(self, key: Hashable, step: DecodeStep, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the outputs of the step for these inputs: from the key's graph, which is captured if it is missing."""
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
        """Drop all graphs. Call this when a tensor that they read has a new address."""
        self._captured.clear()

    def _capture(
        self, step: DecodeStep, inputs: tuple[Tensor, ...]
    ) -> tuple[Callable[[], None], tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Run the step twice on another CUDA stream, then capture it. Return a replay function, inputs and outputs."""
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
    """Round a span up, a long one by at most a quarter, so that few different spans (and CUDA graphs) occur."""
    step = 1 << max(span.bit_length() - 3, 6)
    return -(-span // step) * step
