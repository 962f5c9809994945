"""Dynamic sampling: groups that teach nothing are replaced by groups from freshly drawn starts.

Source: Yu et al. 2025, "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", arXiv:2503.14476, dynamic
sampling. A group whose episodes all end alike has advantage 0, so the more of them there are, the fewer episodes a step
is made of and the noisier its direction.

Departures, ours: what counts is whether the group has a signal (returns instead of right answers, and step-level credit
where there is any), and so many groups more are drawn at most; what still lacks a signal then stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stratagem.algorithms.samples import GroupSamples
from stratagem.types import Trajectory, TrajectoryGroup

__all__ = ["Collected", "collect", "places_to_learn_from"]

Play = Callable[[int, int], tuple[list[TrajectoryGroup], list[Trajectory]]]
"""(number of the first group, how many) -> groups, and the episodes whose game failed."""

Learn = Callable[[int, TrajectoryGroup], GroupSamples]
"""(place among the groups, group) -> what is learnt from it."""


@dataclass
class Collected:
    """What was played in an iteration."""

    groups: list[TrajectoryGroup] = field(default_factory=list)
    """All of them, those that were replaced too."""
    samples: list[GroupSamples] = field(default_factory=list)
    """What each group would teach."""
    failed: list[Trajectory] = field(default_factory=list)
    num_drawn: int = 0
    """Groups that were begun."""

    def learnt_from(self, num_groups: int) -> list[GroupSamples]:
        """Return what the groups teach that are learnt from, ``num_groups`` of them at most."""
        places = places_to_learn_from([samples.has_signal for samples in self.samples], num_groups)
        return [self.samples[place] for place in places]


def places_to_learn_from(has_signal: Sequence[bool], num_groups: int) -> list[int]:
    """Return the places of the groups to learn from, ascending: those with a signal, and others up to ``num_groups``.

    Groups without a signal take part where there are too few others, since KL and entropy hold on them too.

    >>> places_to_learn_from([False, True, False, True], 3)
    [0, 1, 3]
    """
    silent = [place for place, signal in enumerate(has_signal) if not signal]
    loud = [place for place, signal in enumerate(has_signal) if signal]
    return sorted([*loud, *silent[: max(0, num_groups - len(loud))]])


def collect(play: Play, learn: Learn, *, num_groups: int, max_extra: int) -> Collected:
    """Play ``num_groups`` groups, and others for those without a signal.

    A round draws as many groups as lack a signal, so no group with one is thrown away. Groups are numbered through, and
    the draws of a group depend on its number alone: what is played does not depend on how many play at once.

    Args:
        play: plays groups by their numbers.
        learn: says what a group teaches.
        num_groups: with a signal that are wanted.
        max_extra: groups that are drawn for others at most; 0 replaces none.
    """
    found = Collected()
    wanted = num_groups
    while wanted > 0:
        groups, failed = play(found.num_drawn, wanted)
        found.num_drawn += wanted
        found.samples += [learn(place, group) for place, group in enumerate(groups, start=len(found.groups))]
        found.groups += groups
        found.failed += failed
        lacking = num_groups - sum(samples.has_signal for samples in found.samples)
        wanted = min(lacking, num_groups + max_extra - found.num_drawn)
    return found
