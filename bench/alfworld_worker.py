"""The original ALFWorld engine, timed in its own environment: ``alfworld_worker.py STEPS FILE...``."""

from __future__ import annotations

import json
import random
import sys
import time

import textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
from textworld.envs import PddlEnv


def main() -> None:
    """Play at random and print the steps per second without loading and resetting."""
    steps, files = int(sys.argv[1]), sys.argv[2:]
    rng, done, seconds = random.Random(0), 0, 0.0
    for file in files:
        infos = textworld.EnvInfos(admissible_commands=True, won=True, extras=["gamefile"])
        env = AlfredInfos(AlfredDemangler(PddlEnv(infos), shuffle=False))
        env.load(file)
        state = env.reset()
        started = time.process_time()
        for _ in range(steps):
            state, _, ended = env.step(rng.choice(sorted(state["admissible_commands"])))
            done += 1
            if ended:
                break
        seconds += time.process_time() - started
    print(json.dumps({"steps_per_second": done / seconds}))


if __name__ == "__main__":
    main()
