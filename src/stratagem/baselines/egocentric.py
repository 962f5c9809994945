"""The value network of the DQN baseline: the grid as its own head sees it.

The network takes the grid observation of the Gymnasium view (``encode="grid"``): uint8 planes [5, H, W] of own head,
own body, enemy heads, enemy bodies and apples, top row first. Its first layer has no weights: it moves the board so
that the own head is in the middle of a window that holds the whole board wherever the head is, with four planes:

1. fatal cells: off the board, or covered by any snake;
2. own body;
3. enemy heads;
4. apples.

What the network learns about "an apple two to the left" then holds anywhere on any board that fits the window, which is
also how a network that was trained on Snake plays on the smaller board of Frozen Lake (:func:`snake_view`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from stratagem.errors import ConfigError

__all__ = ["PLANES", "Egocentric", "QNetwork", "snake_view"]

PLANES = 4
"""Planes of the window."""

_GRID_PLANES = 5


class Egocentric(nn.Module):
    """Grids [B, 5, H, W] -> windows [B, 4 * (2 * radius + 1) ** 2] around the own head.

    A grid without an own head (the end of an episode) is seen from its top left cell; nothing is decided there.
    """

    def __init__(self, radius: int) -> None:
        """Set the window.

        Args:
            radius: cells on each side of the head; 9 shows all of a 10x10 board wherever the head is.
        """
        super().__init__()
        if radius < 1:
            raise ConfigError(f"radius={radius!r} shows nothing beside the head; set it to 1 or more.")
        self.radius = radius
        self.side = 2 * radius + 1

    @property
    def num_features(self) -> int:
        """Numbers in a window."""
        return PLANES * self.side**2

    def forward(self, grids: Tensor) -> Tensor:
        """Return the windows, as float32."""
        grids = grids.float()
        count, planes, height, width = grids.shape
        if planes != _GRID_PLANES:
            raise ValueError(f"grids has {planes} planes; expected {_GRID_PLANES}, as Snake.grid_observation gives.")
        fatal = grids[:, :4].amax(dim=1)
        # Off the board is one more cell at the end: fatal, and nothing else.
        seen = torch.stack([fatal, grids[:, 1], grids[:, 2], grids[:, 4]], dim=1).flatten(2)
        outside = torch.tensor([1.0, 0.0, 0.0, 0.0], device=grids.device).expand(count, PLANES)
        seen = torch.cat([seen, outside[:, :, None]], dim=2)
        heads = grids[:, 0].flatten(1).argmax(dim=1)
        offsets = torch.arange(-self.radius, self.radius + 1, device=grids.device)
        rows = heads[:, None] // width + offsets
        columns = heads[:, None] % width + offsets
        good = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
        cells = torch.where(good, rows[:, :, None] * width + columns[:, None, :], height * width).flatten(1)
        return torch.gather(seen, 2, cells[:, None, :].expand(count, PLANES, cells.shape[1])).flatten(1)


class QNetwork(nn.Module):
    """Grids [B, 5, H, W] -> the value of each action [B, A]: the window, then fully connected layers with ReLU."""

    def __init__(self, radius: int, hidden: Sequence[int], num_actions: int) -> None:
        """Make the layers.

        Args:
            radius: of the window.
            hidden: widths of the hidden layers.
            num_actions: A.
        """
        super().__init__()
        self.window = Egocentric(radius)
        layers: list[nn.Module] = []
        width = self.window.num_features
        for next_width in hidden:
            layers += [nn.Linear(width, next_width), nn.ReLU()]
            width = next_width
        self.layers = nn.Sequential(*layers, nn.Linear(width, num_actions))

    def forward(self, grids: Tensor) -> Tensor:
        """Return the values."""
        values: Tensor = self.layers(self.window(grids))
        return values


def snake_view(grid: np.ndarray) -> np.ndarray:
    """Return a grid observation in the planes of Snake.

    Five planes are Snake's own. The three of Frozen Lake (player, holes, goal) become own head, enemy bodies (as fatal
    as holes) and apples; the lake's edge, which only stops the player there, looks like Snake's wall.
    """
    if len(grid) == _GRID_PLANES:
        return grid
    if len(grid) != 3:
        raise ConfigError(
            f"A grid of {len(grid)} planes cannot be shown to a network of Snake; play Snake (5 planes) or Frozen Lake "
            "(3 planes)."
        )
    player, holes, goal = grid
    nothing = np.zeros_like(player)
    return np.stack([player, nothing, nothing, holes, goal])
