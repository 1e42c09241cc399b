"""When the players of PDCA's default move: parts of the game, rounds of them, and phases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Schedule"]

#: iterations between episodes, the one that plays them among them
TURN = 25


@dataclass(frozen=True)
class Schedule:
    """The game in parts: a start of one iteration, then rounds, of the phases

        play   episodes of the policy, every `TURN` iterations
        climb  the policy, along the advantages of what was played, lambda fixed
        ope    one iteration: an estimate of the policy, and lambda

    joint: iterations of a round before its ope; rounds: of a part; starts: how many there are, later parts go
    on with the last
    """

    joint: int
    rounds: int
    starts: int = 1

    @property
    def round_length(self) -> int:
        """Iterations of a round."""
        return self.joint + 1

    @property
    def part_length(self) -> int:
        """Iterations of a part, its start among them."""
        return 1 + self.rounds * self.round_length

    def part(self, step: Any) -> Any:
        """The number of the part, from 0, that iteration `step` belongs to."""
        return step // self.part_length

    def start(self, step: Any) -> Any:
        """The number of the start, from 0, that the part of iteration `step` began from or goes on with."""
        part, last = self.part(step), self.starts - 1
        return part - (part > last) * (part - last)

    def half(self, step: Any) -> Any:
        """The half of the log, 0 or 1, whose model the part of iteration `step` is played in: one for each
        start, so that the other half is to judge all that came of it.
        """
        return self.start(step) % 2

    def _place(self, step: Any) -> Any:
        """How many iterations of rounds come before iteration `step` in its part; -1: it is the start."""
        return step % self.part_length - 1

    def phase(self, step: int) -> tuple[str, int]:
        """The phase of iteration `step`, and the first iteration after it."""
        if (place := self._place(step)) < 0:
            return "start", step + 1
        ope = step - place % self.round_length + self.joint
        if step == ope:
            return "ope", step + 1
        turn = (place % self.round_length) % TURN
        return ("play", step + 1) if turn == 0 else ("climb", min(step - turn + TURN, ope))

    def ends_round(self, done: int) -> bool:
        """Whether the last of `done` iterations is the last one of a round."""
        return done > 0 and self.phase(done - 1)[0] == "ope"

    def rounds_over(self, step: Any) -> Any:
        """How many rounds of the game are over after iteration `step`, the last one of a round."""
        return (self._place(step) + 1) // self.round_length + self.part(step) * self.rounds
