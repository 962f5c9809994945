"""Settings of POAD, NTPO and TWOSOME: the papers', and beside them what :mod:`stratagem.algorithms.poad` adds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from stratagem.algorithms.checks import check_at_least_one, check_max_steps, check_positive
from stratagem.algorithms.credit import NextValue
from stratagem.algorithms.schedule import Decay
from stratagem.errors import ConfigError
from stratagem.models.head_config import HeadConfig

__all__ = ["Credit", "POADConfig"]

Credit = Literal["poad", "ntpo", "twosome"]
"""What gets credit: tokens without, tokens with a discount inside an action, or whole actions."""


@dataclass(frozen=True)
class POADConfig:
    """Settings of POAD and its two baselines. "Authors' code" is that of POAD unless TWOSOME's is named."""

    credit: Credit = "poad"
    """"poad": every token, without a discount inside an action. "ntpo": every token, with ``gamma_w``. "twosome": the
    action as a whole."""
    num_iterations: int = 300
    """Rounds of playing and learning; ours. The papers count steps: 40k on Overcooked, 6k on VirtualHome."""
    num_groups: int = 4
    """Starts in an iteration; the authors' code plays 4 games at once."""
    group_size: int = 1
    """Episodes from each start; 1 as in PPO."""
    gamma_a: float = 0.95
    """Discount between actions; 0.95 on VirtualHome, 0.99 on Overcooked."""
    gamma_w: float = 1.0
    """Discount between the tokens of an action. POAD is 1. NTPO's in the authors' code is gamma_a; the paper tries
    0.95, 0.9, 0.8 and 0.5."""
    gae_lambda: float = 0.95
    """lambda; 0.95."""
    macro_discount: bool = False
    """Discount by the time that an action took, gamma_a^duration, as TWOSOME's code on Overcooked; POAD's does not."""
    next_value: NextValue = "first"
    """The value that an action's last token looks ahead to; "last" is a variant in the authors' code."""
    bootstrap_truncated: bool = True
    """Whether an episode that a step limit cut off counts the value of what comes after. The authors' code ends it
    with 0. Where it does, the last step serves as what comes after and is not learnt from."""
    normalise_advantages: bool = True
    """Mean 0 and standard deviation 1 over the iteration, as in the authors' code."""
    clip_range: float = 0.2
    """epsilon of the policy's ratio; 0.2."""
    value_clip: float | None = 0.2
    """epsilon of the value's change; 0.2. None is off."""
    vf_coef: float = 0.5
    """Weight of the value loss; 0.5."""
    ent_coef: float = 0.01
    """Weight of the entropy bonus; 0.01, and 1e-4 in the authors' Overcooked script."""
    target_kl: float | None = 0.02
    """Mean KL to the policy that played, above which the policy rests until the next iteration; 0.02. None is off."""
    learning_rate: float = 1e-6
    """AdamW, of the policy; 1e-6, for a 7B model with LoRA."""
    critic_learning_rate: float = 5e-5
    """Of the heads; 5e-5."""
    adam_eps: float = 1e-5
    """Of both; 1e-5."""
    decay: Decay = "linear"
    """Of both rates to zero over ``num_iterations``."""
    critic_warmup: int = 0
    """Iterations at the start in which only the critic learns; ours."""
    max_grad_norm: float = 0.5
    """Gradients of the policy, and those of the critic, are scaled down to this norm; 0.5."""
    num_epochs: int = 1
    """Passes over the steps of an iteration; 1, and 5 in the authors' Overcooked script."""
    num_minibatches: int = 1
    """Optimizer steps in a pass; 1, and 2 in the authors' scripts."""
    max_tokens_per_pass: int = 2048
    """Distinct tokens in one forward and backward pass; bounds memory, never changes the gradient."""
    max_steps: int | None = None
    """Step limit of an episode besides the game's own."""
    critic: HeadConfig = field(default_factory=HeadConfig)
    """The value head."""

    def __post_init__(self) -> None:
        """Refuse values and combinations that cannot learn."""
        counts = ("num_iterations", "num_groups", "group_size", "num_epochs", "num_minibatches", "max_tokens_per_pass")
        check_at_least_one(self, *counts)
        for name in ("gamma_a", "gamma_w"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"{name}={getattr(self, name)!r} is not in (0, 1]; use 1 for no discount.")
        if self.credit != "ntpo" and self.gamma_w != 1:
            raise ConfigError(
                f"gamma_w={self.gamma_w!r} has no effect with credit={self.credit!r}, which does not discount inside "
                'an action; leave it out, or set credit = "ntpo".'
            )
        if self.credit == "ntpo" and self.gamma_w == 1:
            raise ConfigError(
                'gamma_w=1.0 makes credit="ntpo" the same as "poad"; set gamma_w below 1, such as gamma_a, or credit '
                '= "poad".'
            )
        if not 0 <= self.gae_lambda <= 1:
            raise ConfigError(f"gae_lambda={self.gae_lambda!r} is not in [0, 1]; the papers use 0.95.")
        check_positive(self, "clip_range", "learning_rate", "critic_learning_rate", "adam_eps", "max_grad_norm")
        for name in ("value_clip", "target_kl"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name}={value!r} lets nothing through; set it above 0, or switch it off.")
        for name in ("vf_coef", "ent_coef", "critic_warmup"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)!r} must be 0 or more.")
        check_max_steps(self.max_steps)
