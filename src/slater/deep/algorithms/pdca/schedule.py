"""When the parts of PDCA's default move: phases, and rounds of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jax import Array

__all__ = ["MOVES", "Schedule"]

#: phase -> the parts that move in it, in this order
#:   warm   before the game: critics on the data's returns, the policy a clone of the data's
#:   fit    before the game: what the estimator learns once, for every policy
#:   start  of a part of the game: the players are put at one of the log's candidates and its price
#:   play   of a round in the log model: episodes of the policy
#:   climb  of such a round: the policy, along the advantages of what was played, lambda fixed
#:   joint  of a round on the data: critics and policy, lambda fixed
#:   ope    of a round: the estimator on that policy; lambda moves after the last iteration
#:   game   without rounds: everything in every iteration, as in Algorithm 2
MOVES: dict[str, tuple[str, ...]] = {
    "warm": ("warm start",),
    "fit": ("fit",),
    "start": ("start",),
    "play": ("play",),
    "climb": ("climb",),
    "joint": ("critics", "primal"),
    "ope": ("estimator", "dual"),
    "game": ("critics", "estimator", "primal", "dual"),
}


#: iterations between episodes, the one that plays them among them
TURN = 25


@dataclass(frozen=True)
class Schedule:
    """Iterations of every phase; ope = 0: no rounds.

    start_rounds: rounds of a part of the game in the log model, which begins with a start of one iteration;
    0: the game is on the data, in one part without a start; starts: how many there are, later parts go on
    with the last
    """

    steps: int
    warm: int
    fit: int
    joint: int
    ope: int
    start_rounds: int = 0
    starts: int = 1

    @property
    def in_rounds(self) -> bool:
        """Whether the game is played in rounds."""
        return self.ope > 0

    @property
    def begins(self) -> int:
        """Iterations before the game."""
        return self.warm + self.fit

    @property
    def round_length(self) -> int:
        """Iterations of a round; 1 where everything moves in every iteration."""
        return self.joint + self.ope if self.in_rounds else 1

    @property
    def part_length(self) -> int:
        """Iterations of a part of the game, its start among them; 0: there are no parts."""
        return 1 + self.start_rounds * self.round_length if self.start_rounds else 0

    def part(self, step: Any) -> Any:
        """The number of the part of the game, from 0, that iteration `step` of it belongs to."""
        return (step - self.begins) // self.part_length if self.part_length else 0 * step

    def start(self, step: Any) -> Any:
        """The number of the start, from 0, that the part of iteration `step` began from or goes on with."""
        part, last = self.part(step), self.starts - 1
        return part - (part > last) * (part - last)

    def half(self, step: Any) -> Any:
        """The half of the log, 0 or 1, whose model the part of iteration `step` is played in: one for each
        start, so that the other half is to judge all that came of it.
        """
        return self.start(step) % 2

    def _in_game(self, step: Any) -> Any:
        """How many iterations of rounds come before iteration `step` in its part; -1: it is the start."""
        if not self.part_length:
            return step - self.begins
        return (step - self.begins) % self.part_length - 1

    def phase(self, step: int) -> tuple[str, int]:
        """The phase of iteration `step`, and the first iteration after it."""
        if step < self.warm:
            return "warm", self.warm
        if step < self.begins:
            return "fit", self.begins
        if not self.in_rounds:
            return "game", self.steps
        if (place := self._in_game(step)) < 0:
            return "start", step + 1
        start = step - place % self.round_length
        if step < start + self.joint:
            if not self.part_length:
                return "joint", start + self.joint
            turn = step - (step - start) % TURN
            return ("play", step + 1) if step == turn else ("climb", min(turn + TURN, start + self.joint))
        return "ope", start + self.round_length

    def ends_round(self, done: int) -> bool:
        """Whether the last of `done` iterations is the last one of a round."""
        if done <= self.begins:
            return False
        place = self._in_game(done - 1)
        return bool(place >= 0 and (place + 1) % self.round_length == 0)

    def place_in_ope(self, step: Array) -> Array:
        """How many iterations of its round's ope come before iteration `step`; negative before ope."""
        place: Array = self._in_game(step) % self.round_length - self.joint
        return place

    def moves_dual(self, step: Array) -> tuple[Array, Array]:
        """Whether lambda moves after iteration `step`, and how many rounds are over then."""
        place = self._in_game(step) + 1
        rounds = place // self.round_length + self.part(step) * self.start_rounds
        return place % self.round_length == 0, rounds
