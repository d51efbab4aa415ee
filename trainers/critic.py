"""A critic: what is still to come after each token, from the policy's own last hidden states.

It is a head of two layers with an optimizer of its own. No gradient of its loss goes into the model: the policy is what
it would be with any other baseline, and neither memory nor the engine knows of the head. Left out: a critic that is a
model of its own, and one among several ranks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from palaestra.trainers.checked import COUNT, POSITIVE, check_fields

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class ValueHead:
    """The head, and how it learns."""

    critic_width: Annotated[int, COUNT] = 256
    """Units of its inner layer."""
    critic_learning_rate: Annotated[float, POSITIVE] = 1e-3
    """AdamW's, for the head alone; the run's schedule holds for it too."""
    cliprange_value: Annotated[float | None, POSITIVE] = 0.2
    """A value may move so far from what it was before the batch; the larger of both losses counts. None: no bound."""

    def __post_init__(self) -> None:
        check_fields(self)


class Critic:
    """A value head in training."""

    def __init__(self, options: ValueHead, model: Any, seed: int) -> None:
        import torch

        weight = model.get_input_embeddings().weight
        width = model.config.get_text_config().hidden_size
        self._options = options
        with torch.random.fork_rng(devices=[]):  # The run's own numbers stay where they were.
            torch.manual_seed(seed)
            inner, outer = torch.nn.Linear(width, options.critic_width), torch.nn.Linear(options.critic_width, 1)
        torch.nn.init.zeros_(outer.weight)  # It begins by expecting nothing, anywhere.
        torch.nn.init.zeros_(outer.bias)
        self._head = torch.nn.Sequential(torch.nn.LayerNorm(width), inner, torch.nn.GELU(), outer).to(weight.device)
        self._optimizer = torch.optim.AdamW(self._head.parameters(), options.critic_learning_rate, weight_decay=0.0)

    def values(self, hidden_SD: "Tensor") -> "Tensor":
        """What is still to come, before each token of these hidden states."""
        values_S: Tensor = self._head(hidden_SD.detach().float())[:, 0]
        return values_S

    def learn(self, hidden_SD: "Tensor", returns_S: "Tensor", old_S: "Tensor", weights_S: "Tensor") -> float:
        """Gather the gradient of a micro-batch; its share of the loss."""
        values_S = self.values(hidden_SD)
        loss_S = (values_S - returns_S).square()
        if (most := self._options.cliprange_value) is not None:
            bounded_S = old_S + (values_S - old_S).clamp(-most, most)
            loss_S = loss_S.maximum((bounded_S - returns_S).square())
        loss = 0.5 * (loss_S * weights_S).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def step(self, rate: float) -> None:
        """Take a step along what was gathered."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._options.critic_learning_rate * rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, "Tensor"]:
        """All that a checkpoint needs, by names of two parts."""
        found = {f"weight/{name}": weight.detach().contiguous() for name, weight in self._head.named_parameters()}
        for name, weight in self._head.named_parameters():
            found |= {f"{kind}/{name}": value for kind, value in self._optimizer.state.get(weight, {}).items()}
        return found

    def load(self, tensors: Mapping[str, "Tensor"]) -> None:
        """Go on where another critic stood."""
        import torch

        state: dict[int, dict[str, Any]] = {}
        with torch.no_grad():
            for place, (name, weight) in enumerate(self._head.named_parameters()):
                weight.copy_(tensors[f"weight/{name}"])
                own = {key.partition("/")[0]: value for key, value in tensors.items() if key.endswith(f"/{name}")}
                own.pop("weight")
                if own:
                    state[place] = own
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": state})
