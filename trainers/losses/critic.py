"""A critic: a value head that predicts the return from each token on, from the policy's last hidden states.

It is a head of two layers with its own optimizer. No gradient of its loss goes into the model, so the critic changes
the policy only through the advantages. The memory estimate does not count the head, and the engine does not use it. Not
supported: a critic with its own model. With several ranks each has the whole head, and the gradients are summed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from palaestra.trainers.validation import COUNT, POSITIVE, check_fields

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class ValueHead:
    """Settings of the value head and of its optimizer."""

    critic_width: Annotated[int, COUNT] = 256
    """Units of its inner layer."""
    critic_learning_rate: Annotated[float, POSITIVE] = 1e-3
    """Learning rate of AdamW for the head; the run's schedule and max_grad_norm apply to it too."""
    cliprange_value: Annotated[float | None, POSITIVE] = 0.2
    """Bound on the change of a value from its value before the batch; the larger of both losses counts.
    None: no bound."""

    def __post_init__(self) -> None:
        check_fields(self)


class Critic:
    """A value head with its optimizer."""

    def __init__(self, options: ValueHead, model: Any, seed: int) -> None:
        import torch

        weight = model.get_input_embeddings().weight
        width = model.config.get_text_config().hidden_size
        self._options = options
        with torch.random.fork_rng(devices=[]):  # This does not advance the run's random numbers.
            torch.manual_seed(seed)
            inner, outer = torch.nn.Linear(width, options.critic_width), torch.nn.Linear(options.critic_width, 1)
        torch.nn.init.zeros_(outer.weight)  # All values are 0 at first.
        torch.nn.init.zeros_(outer.bias)
        self._head = torch.nn.Sequential(torch.nn.LayerNorm(width), inner, torch.nn.GELU(), outer).to(weight.device)
        self._optimizer = torch.optim.AdamW(self._head.parameters(), options.critic_learning_rate, weight_decay=0.0)

    def values(self, hidden_SD: "Tensor") -> "Tensor":
        """Return the predicted return from each token on, given the hidden state before it."""
        values_S: Tensor = self._head(hidden_SD.detach().float())[:, 0]
        return values_S

    def learn(self, hidden_SD: "Tensor", returns_S: "Tensor", old_S: "Tensor", weights_S: "Tensor") -> float:
        """Add the gradient of a micro-batch. Return the loss of the micro-batch, weighted by `weights_S`."""
        values_S = self.values(hidden_SD)
        loss_S = (values_S - returns_S).square()
        if (max_change := self._options.cliprange_value) is not None:
            bounded_S = old_S + (values_S - old_S).clamp(-max_change, max_change)
            loss_S = loss_S.maximum((bounded_S - returns_S).square())
        loss = 0.5 * (loss_S * weights_S).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def gradients(self) -> "list[Tensor]":
        """Return the gradients of this process, which several ranks must sum before `clip_gradient`."""
        return [weight.grad for weight in self._head.parameters() if weight.grad is not None]

    def clip_gradient(self, max_norm: float) -> float:
        """Clip the gradient to this norm. Return the norm before clipping."""
        import torch

        return float(torch.nn.utils.clip_grad_norm_(self._head.parameters(), max_norm))

    def drop_gradient(self) -> None:
        """Discard the gradient."""
        self._optimizer.zero_grad(set_to_none=True)

    def step(self, rate: float) -> None:
        """Take an optimizer step along the gradient."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._options.critic_learning_rate * rate
        self._optimizer.step()
        self.drop_gradient()

    def tensors(self) -> dict[str, "Tensor"]:
        """Return all tensors that a checkpoint needs, named `kind/parameter`."""
        tensors_by_name = {
            f"weight/{name}": weight.detach().contiguous() for name, weight in self._head.named_parameters()
        }
        for name, weight in self._head.named_parameters():
            tensors_by_name |= {
                f"{kind}/{name}": value for kind, value in self._optimizer.state.get(weight, {}).items()
            }
        return tensors_by_name

    def load(self, tensors: Mapping[str, "Tensor"]) -> None:
        """Load tensors that `tensors` of another critic returned."""
        import torch

        state: dict[int, dict[str, Any]] = {}
        with torch.no_grad():
            for place, (name, weight) in enumerate(self._head.named_parameters()):
                weight.copy_(tensors[f"weight/{name}"])
                optimizer_state = {
                    key.partition("/")[0]: value for key, value in tensors.items() if key.endswith(f"/{name}")
                }
                optimizer_state.pop("weight")
                if optimizer_state:
                    state[place] = optimizer_state
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": state})
