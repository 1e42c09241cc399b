"""What the games that start at a clone of the log share (WSAC, PDOCRL): settings, phases, the pi-player."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from slater.deep.algorithms.base import Algorithm, Config, State
from slater.deep.game.primal import AnchoredGradient, NaturalGradient, Primal, PrimalState
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.task import Task
from slater.errors import InputError


@dataclass(frozen=True)
class FromCloneConfig(Config):
    """Settings that they share; defaults are those of PDCA where it has the same part."""

    eta_fast: float = 1e-3
    """learning rate of critics, and of what else is not the policy (pdocrl released: 3e-4)"""
    eta_slow: float = 1e-4
    """learning rate of the policy (pdocrl released: 3e-4)"""
    warm_steps: int = 5_000
    """first iterations: cloning, and critics of the clone; at most two thirds of all (pdocrl released: 0)"""
    polyak: float = 0.005
    """rate of the target networks, per iteration"""
    anchor_weight: float = 0.003
    """weight of the divergence from the clone, relative to the size of f (continuous actions)"""
    temperature: float = 0.02
    """of the natural gradient (discrete actions)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("eta_fast", "eta_slow", "polyak", "temperature")
        if self.warm_steps < 0 or self.anchor_weight < 0:
            raise InputError("warm_steps and anchor_weight must be at least 0.")


FromCloneT = TypeVar("FromCloneT", bound=FromCloneConfig)


class FromClone(Algorithm[FromCloneT, State]):
    """A game whose pi-player, `primal` in the state, starts at a clone and ends as the mixture of its second
    half.
    """

    limits_are_tau: ClassVar[bool] = True
    preparation: ClassVar[tuple[str, str, str] | None] = ("warm_steps", "warm", "train")

    def keeps(self, done: int) -> bool:
        """The second half of the game, and the last policy."""
        c = self.config
        return done == c.steps or (done % c.keep_every == 0 and done > (c.steps + c.warm_steps) / 2)

    def primal(self, task: Task) -> Primal:
        """The pi-player for the task's actions: natural gradient, or mirror descent from a clone."""
        c = self.config
        if task.discrete:
            return NaturalGradient(c.hidden, c.eta_slow, c.eta_fast, temperature=c.temperature)
        return AnchoredGradient(
            c.hidden, c.eta_slow, c.eta_fast, 0.0, log_std_min=-5.0, anchor_weight=c.anchor_weight
        )

    def policy(self, state: Any) -> PolicyNetwork:
        """The policy now."""
        own: PolicyNetwork = state.primal.policy
        return own


def anchored_at(state: PrimalState) -> PrimalState:
    """The player held to where it is now, if it is of a kind that is held."""
    if hasattr(state, "anchor"):
        held: PrimalState = eqx.tree_at(lambda s: s.anchor, state, jax.tree.map(jnp.copy, state.policy))
        return held
    return state
