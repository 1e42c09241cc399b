"""When the parts of PDCA's default move: phases, and rounds of them."""

from __future__ import annotations

from dataclasses import dataclass

from jax import Array

__all__ = ["MOVES", "Schedule"]

#: phase -> the parts that move in it, in this order
#:   warm   before the game: critics on the data's returns, the policy a clone of the data's
#:   fit    before the game: what the estimator learns once, for every policy
#:   joint  of a round: critics and policy, lambda fixed
#:   ope    of a round: the estimator on that policy; lambda moves after the last iteration
#:   game   without rounds: everything in every iteration, as in Algorithm 2
#: The output's own policies, if it has any, are trained beside warm and fit.
MOVES: dict[str, tuple[str, ...]] = {
    "warm": ("warm start", "output"),
    "fit": ("fit", "output"),
    "joint": ("critics", "primal"),
    "ope": ("estimator", "dual"),
    "game": ("critics", "estimator", "primal", "dual"),
}


@dataclass(frozen=True)
class Schedule:
    """Iterations of every phase; ope = 0: no rounds."""

    steps: int
    warm: int
    fit: int
    joint: int
    ope: int

    @property
    def in_rounds(self) -> bool:
        """Whether the game is played in rounds."""
        return self.ope > 0

    @property
    def start(self) -> int:
        """Iterations before the game."""
        return self.warm + self.fit

    @property
    def round_length(self) -> int:
        """Iterations of a round; 1 where everything moves in every iteration."""
        return self.joint + self.ope if self.in_rounds else 1

    def phase(self, step: int) -> tuple[str, int]:
        """The phase of iteration `step`, and the first iteration after it."""
        if step < self.warm:
            return "warm", self.warm
        if step < self.start:
            return "fit", self.start
        if not self.in_rounds:
            return "game", self.steps
        start = self.start + (step - self.start) // self.round_length * self.round_length
        if step < start + self.joint:
            return "joint", start + self.joint
        return "ope", start + self.round_length

    def ends_round(self, done: int) -> bool:
        """Whether the last of `done` iterations is the last one of a round."""
        rounds, rest = divmod(done - self.start, self.round_length)
        return rest == 0 and rounds >= 1

    def place_in_ope(self, step: Array) -> Array:
        """How many iterations of its round's ope come before iteration `step`; negative before ope."""
        return (step - self.start) % self.round_length - self.joint

    def moves_dual(self, step: Array) -> tuple[Array, Array]:
        """Whether lambda moves after iteration `step`, and how many rounds are over then."""
        rounds = (step + 1 - self.start) // self.round_length
        return (step + 1 - self.start) % self.round_length == 0, rounds
