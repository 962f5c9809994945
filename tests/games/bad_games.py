"""Games that fail in their own ways; imported by the game's process, so they are in a file of their own."""

import os
import time

from stratagem.games.frozen_lake import FrozenLake


class Raises(FrozenLake):
    def step(self, actions):
        raise ValueError("a bug")


class Exits(FrozenLake):
    def step(self, actions):
        os._exit(3)


class Sleeps(FrozenLake):
    def step(self, actions):
        time.sleep(60)


class SleepsOnClose(FrozenLake):
    def close(self):
        time.sleep(60)


def fails_to_start():
    raise RuntimeError("no such file")


def exits_at_start():
    os._exit(4)
