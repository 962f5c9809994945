"""Direct preference optimization: one loss for each pair of a better and a worse answer or episode."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus

from stratagem.algorithms.losses import check_same_shape

__all__ = ["dpo_loss", "dpo_margin"]


def dpo_margin(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor) -> Tensor:
    r"""Return how much more the policy has moved towards the better one than towards the worse one.

    .. math:: m = \log\frac{\pi_\theta(y_w|x)}{\pi_{ref}(y_w|x)} - \log\frac{\pi_\theta(y_l|x)}{\pi_{ref}(y_l|x)}

    Args:
        chosen: [N] log pi_theta of the better ones; gradients flow through this and the next.
        rejected: [N] log pi_theta of the worse ones.
        ref_chosen: [N] log pi_ref of the better ones.
        ref_rejected: [N] log pi_ref of the worse ones.
    """
    check_same_shape(chosen=chosen, rejected=rejected, ref_chosen=ref_chosen, ref_rejected=ref_rejected)
    return (chosen - ref_chosen.detach()) - (rejected - ref_rejected.detach())


def dpo_loss(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, *, beta: float) -> Tensor:
    r"""Return the loss of each pair.

    .. math:: L = -\log\sigma(\beta m)

    with :func:`dpo_margin` m. At the reference m = 0, the loss is log 2, and its gradient is -beta / 2 in the better
    and beta / 2 in the worse one.

    Source: Rafailov et al. 2023, arXiv:2305.18290, eq. 7; of whole episodes, with the sum of log pi over their actions,
    Song et al. 2024 (ETO), arXiv:2403.02502, eq. 4.

    Args:
        chosen: [N] log pi_theta of the better ones; gradients flow through this and the next.
        rejected: [N] log pi_theta of the worse ones.
        ref_chosen: [N] log pi_ref of the better ones.
        ref_rejected: [N] log pi_ref of the worse ones.
        beta: how far the policy may go for it; smaller is farther.
    """
    return softplus(-beta * dpo_margin(chosen, rejected, ref_chosen, ref_rejected))
