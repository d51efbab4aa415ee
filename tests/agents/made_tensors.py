"""Counts the memory of the tensors that a piece of work makes."""

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Made(TorchDispatchMode):
    """Counts the bytes of the tensors that are made in a `with` block: of all, and of the largest."""

    def __init__(self):
        super().__init__()
        self.all, self.largest = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not any(each.alias_info for each in func._schema.returns):  # A view, which may be one of a mapped file.
            for tensor in tree_leaves(result):
                # A sharded tensor has the size of the whole one; its shard is made in an operation below.
                if isinstance(tensor, torch.Tensor) and not (tensor.is_meta or isinstance(tensor, DTensor)):
                    self.all += tensor.nbytes
                    self.largest = max(self.largest, tensor.nbytes)
        return result
