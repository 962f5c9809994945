"""Named heads on the hidden states of a language model: V, Q, and slow copies of them.

A head is a small multi-layer perceptron that reads the final hidden state at a token. TWOSOME (Tan et al. 2024,
arXiv:2401.14151) and POAD (Wen et al. 2024, arXiv:2405.15821) use C -> 1024 -> 512 -> 1 with ReLU and no bias, which is
the default. What the state belongs to decides what the head means: before the first token of a completion it is the
value of the prompt, before token j that of the prompt and the j - 1 tokens so far. The value *after* a completion is
read off a row with one token more, which is then not trained.

Where the states come from is the :data:`stratagem.models.head_config.Trunk`:

- ``shared``: the trained model, and the value loss changes it too;
- ``detached``: the trained model, which the value loss does not touch;
- ``base``: the model without its adapter, which never changes. TWOSOME and POAD do this. It takes a second pass.

Departure: the last layer starts at zero, so that every value starts at exactly 0 instead of at a random function of
the prompt, which a first advantage would be made of.

Heads compute in float32 whatever the dtype of the model.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from stratagem.errors import ConfigError
from stratagem.models.base import CriticModel, LabelHidden, TokenRow
from stratagem.models.head_config import HeadConfig, Trunk

__all__ = ["HeadConfig", "Heads", "Trunk", "check_trunk", "trunk_states"]


class Heads:
    """Heads by name, each with a slow copy where one is asked for.

    >>> heads = Heads(4, {"value": 1}, HeadConfig(layers=(8,)), targets=["value"])
    >>> heads("value", torch.ones(3, 4)).tolist()
    [0.0, 0.0, 0.0]
    """

    def __init__(
        self,
        width: int,
        outputs: Mapping[str, int],
        config: HeadConfig,
        *,
        targets: Sequence[str] = (),
        device: torch.device | str = "cpu",
    ) -> None:
        """Make the heads.

        Args:
            width: C, of a hidden state.
            outputs: numbers that each head gives, by its name: 1 for a value, V for one number for each next token.
            config: settings.
            targets: heads with a slow copy.
            device: where they live.
        """
        self.config = config
        self._outputs = dict(outputs)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            made = {name: _perceptron(width, config.layers, count) for name, count in self._outputs.items()}
        self._heads = nn.ModuleDict(made).to(device)
        self._targets = nn.ModuleDict(
            {name: _perceptron(width, config.layers, self._outputs[name]) for name in targets}
        ).to(device)
        self._targets.requires_grad_(False)
        self.update_targets(1.0)

    def __call__(self, name: str, hidden: Tensor) -> Tensor:
        """Return [T] for a head with one output, [T, outputs] for another.

        Args:
            name: of the head.
            hidden: [T, C].
        """
        return self._read(self._heads[name], name, hidden)

    @torch.no_grad()
    def target(self, name: str, hidden: Tensor) -> Tensor:
        """Return what the slow copy of a head says, without gradients."""
        return self._read(self._targets[name], name, hidden)

    def _read(self, head: nn.Module, name: str, hidden: Tensor) -> Tensor:
        found: Tensor = head(hidden.float())
        return found.squeeze(-1) if self._outputs[name] == 1 else found

    @torch.no_grad()
    def update_targets(self, tau: float) -> None:
        """Move the slow copies: target <- (1 - tau) target + tau head."""
        for name, module in self._targets.items():
            for slow, fast in zip(module.parameters(), self._heads[name].parameters(), strict=True):
                slow.lerp_(fast, tau)

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that train, by name; slow copies are not among them."""
        return dict(self._heads.named_parameters())

    def state(self) -> dict[str, Tensor]:
        """Return everything that a checkpoint must hold, slow copies included."""
        slow = {f"target.{name}": tensor for name, tensor in self._targets.state_dict().items()}
        return {**self._heads.state_dict(), **slow}

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what :meth:`state` gave.

        Raises:
            ConfigError: names or shapes are those of other heads.
        """
        mine = self.state()
        wrong = sorted(
            name
            for name in mine.keys() | tensors.keys()
            if name not in mine or name not in tensors or mine[name].shape != tensors[name].shape
        )
        if wrong:
            raise ConfigError(
                f"{len(wrong)} tensors of the saved heads are missing or have another shape, the first is "
                f"{wrong[0]!r}; expected those of heads {', '.join(self._outputs)} with layers="
                f"{list(self.config.layers)!r}. Use the settings that they were saved with."
            )
        for name, tensor in mine.items():
            tensor.copy_(tensors[name])


def check_trunk(model: CriticModel, config: HeadConfig) -> None:
    """Refuse heads that read weights which do not exist.

    Raises:
        ConfigError: they ask for a model without its adapter, and there is no adapter.
    """
    if config.trunk == "base" and not model.has_base:
        raise ConfigError(
            "algorithm.critic.trunk='base' reads weights that do not train, and this model has none; add "
            "[model.lora], or set trunk to 'detached' or 'shared'."
        )


def _perceptron(width: int, layers: Sequence[int], outputs: int) -> nn.Sequential:
    widths = [width, *layers]
    modules: list[nn.Module] = []
    for inner, outer in itertools.pairwise(widths):
        modules += [nn.Linear(inner, outer, bias=False), nn.ReLU()]
    last = nn.Linear(widths[-1], outputs, bias=False)
    nn.init.zeros_(last.weight)
    return nn.Sequential(*modules, last)


def trunk_states(model: CriticModel, rows: Sequence[TokenRow], batch: LabelHidden, trunk: Trunk) -> Tensor:
    """Return [T, C] what the heads read for rows whose pass through the trained model is ``batch``."""
    if trunk == "base":
        return model.hidden_states(rows, base=True)
    return batch.hidden if trunk == "shared" else batch.hidden.detach()
