"""The lambda-player: what a multiplier does when it is told by how much each cost exceeds its limit.

All players live on B Delta^I = {lambda >= 0, sum_i lambda_i <= B} and share one interface: `init(costs)`
gives a state, `respond(state, outcome, key)` moves it, and `state.lam`, shape (I,), is the multiplier now. Of
the outcome of a round most players hear the relative excess (h - tau) / tau, so that one rate serves limits
of any size and any discount; `EXP3` hears the value of the game.
"""

from __future__ import annotations

import abc
import itertools
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

__all__ = [
    "EXP3",
    "PID",
    "DualPlayer",
    "DualState",
    "ExcessPlayer",
    "ExponentiatedGradient",
    "Outcome",
    "ProjectedGradient",
    "project_simplex",
    "relative_excess",
]


class DualState(eqx.Module):
    """The multipliers, shape (I,), and whatever the player remembers besides, of a shape of its own."""

    lam: Array
    memory: Array


class Outcome(NamedTuple):
    """How a round ended, in J-units: estimates of the policy's reward () and costs (I,), and the limits (I,).

    floor: the smallest limit that excesses are measured by, > 0
    """

    reward: Array
    costs: Array
    limits: Array
    floor: float

    @property
    def excess(self) -> Array:
        """The difference h - tau, shape (I,)."""
        return self.costs - self.limits

    @property
    def relative_excess(self) -> Array:
        """See `relative_excess`, shape (I,)."""
        return relative_excess(self.costs, self.limits, self.floor)

    def lagrangian(self, multipliers: Array) -> Array:
        """J_R + lambda.(tau - J_C), a scalar."""
        return self.reward + jnp.sum(multipliers * (self.limits - self.costs))


class DualPlayer(Protocol):
    """A lambda-player of the game."""

    def init(self, costs: int) -> DualState:
        """The state before the first move, for `costs` constraints."""
        ...

    def respond(self, state: DualState, outcome: Outcome, key: Array) -> DualState:
        """One move, given how the round ended; `key` is for players that draw."""
        ...

    def restart(self, state: DualState, multipliers: Array) -> DualState:
        """The player at `multipliers`, shape (I,), or as near as it can be, with nothing remembered."""
        ...


class ExcessPlayer(abc.ABC):
    """A lambda-player that is told nothing but excesses, and draws nothing."""

    @abc.abstractmethod
    def init(self, costs: int) -> DualState:
        """The state before the first move, for `costs` constraints."""

    @abc.abstractmethod
    def update(self, state: DualState, excess: Array) -> DualState:
        """One move, given the excess of each cost over its limit, shape (I,)."""

    def respond(self, state: DualState, outcome: Outcome, key: Array) -> DualState:
        """One move by the relative excess."""
        del key
        return self.update(state, outcome.relative_excess)

    def restart(self, state: DualState, multipliers: Array) -> DualState:
        """At `multipliers`, with a memory of zeros."""
        return DualState(multipliers, jnp.zeros_like(state.memory))


def relative_excess(h: Array, tau: Array, floor: float) -> Array:
    """(h - tau) / max(tau, floor), shape (I,), cut to [-1, 1]: 1 means twice the limit or more.

    `floor` > 0, in J-units. The cut keeps one estimate of a reckless policy from throwing lambda so far
    that many rounds of idle policies follow.
    """
    return jnp.clip((h - tau) / jnp.maximum(tau, floor), -1.0, 1.0)


def project_simplex(x: Array, B: float) -> Array:
    """The nearest point of {lambda >= 0, sum lambda <= B}, shape (I,)."""
    clipped = jnp.maximum(x, 0.0)
    face: Array = optax.projections.projection_simplex(clipped, B)
    return jnp.where(jnp.sum(clipped) <= B, clipped, face)


@dataclass(frozen=True)
class ProjectedGradient(ExcessPlayer):
    """lambda <- projection of lambda + rate * excess onto B Delta^I."""

    multiplier_bound: float
    rate: float
    start: float = 0.0

    def init(self, costs: int) -> DualState:
        """Every multiplier at `start` / I."""
        return DualState(jnp.full(costs, self.start / costs), jnp.zeros(costs))

    def update(self, state: DualState, excess: Array) -> DualState:
        """One gradient step."""
        return DualState(project_simplex(state.lam + self.rate * excess, self.multiplier_bound), state.memory)


@dataclass(frozen=True)
class ExponentiatedGradient(ExcessPlayer):
    """lambda_i proportional to exp(sum of rate * excess_i), beside a slack of weight 1; total B."""

    multiplier_bound: float
    rate: float
    start: float = 0.0

    def init(self, costs: int) -> DualState:
        """Every multiplier at `start` / I; a start of 0 is read as 1% of B, which the rule cannot leave."""
        share = min(max(self.start / self.multiplier_bound, 0.01), 0.99)
        memory = jnp.full(costs, jnp.log(share / costs) - jnp.log(1.0 - share))
        return DualState(self.multiplier_bound * self._weights(memory), memory)

    @staticmethod
    def _weights(logits: Array) -> Array:
        return jax.nn.softmax(jnp.append(logits, 0.0))[:-1]

    def restart(self, state: DualState, multipliers: Array) -> DualState:
        """At `multipliers`, of which none is less than a millionth of B: the rule cannot leave 0."""
        del state
        shares = jnp.maximum(multipliers / self.multiplier_bound, 1e-6)
        memory = jnp.log(shares) - jnp.log(jnp.maximum(1.0 - jnp.sum(shares), 1e-6))
        return DualState(self.multiplier_bound * self._weights(memory), memory)

    def update(self, state: DualState, excess: Array) -> DualState:
        """One mirror step; the exponents stay within +-20, so that no weight dies."""
        memory = jnp.clip(state.memory + self.rate * excess, -20.0, 20.0)
        return DualState(self.multiplier_bound * self._weights(memory), memory)


@dataclass(frozen=True)
class PID(ExcessPlayer):
    """PID control (Stooke et al. 2020) of the excess e, with an integral that cannot wind up:

        I <- projection of I + ki e onto B Delta^I
        lambda <- projection of I + kp e + kd (e - e_before)_+ onto B Delta^I

    The integral is kept as a multiplier, inside the set that lambda lives in: after a long violation it
    starts to fall with the first e < 0. (A sum of errors without a bound would first have to be paid back.)
    The derivative brakes a rising cost only. Memory: row 0 is I, row 1 e_before.
    """

    multiplier_bound: float
    kp: float
    ki: float
    kd: float
    start: float = 0.0

    def init(self, costs: int) -> DualState:
        """Every multiplier, and the integral, at `start` / I."""
        integral = jnp.full(costs, self.start / costs)
        return DualState(integral, jnp.stack([integral, jnp.zeros(costs)]))

    def restart(self, state: DualState, multipliers: Array) -> DualState:
        """The integral at `multipliers`, no excess before."""
        del state
        return DualState(multipliers, jnp.stack([multipliers, jnp.zeros_like(multipliers)]))

    def update(self, state: DualState, excess: Array) -> DualState:
        """Move the integral, then add the other two parts."""
        before, last = state.memory
        integral = project_simplex(before + self.ki * excess, self.multiplier_bound)
        rising = jnp.maximum(excess - last, 0.0)
        lam = project_simplex(integral + self.kp * excess + self.kd * rising, self.multiplier_bound)
        return DualState(lam, jnp.stack([integral, excess]))


@dataclass(frozen=True)
class EXP3:
    """A bandit over a grid of multipliers (the lambda-player of O3SRL, Chemingui et al. 2025).

    arms    the points of B Delta^I whose entries are multiples of B / levels, `levels` + 1 of them for one
            cost, binomial(levels + I, I) in general; an arm is played until the next move
    loss    of the arm that was played, and of no other: the Lagrangian
            L = J_R(pi) + lambda.(tau - J_C(pi)) of the policy that answered it, in J-units, brought to
            [0, 1] by the smallest and the largest L heard so far
    move    log w_arm <- log w_arm - rate * loss / (p_arm + rate / 2), p = w / sum w; the next arm is drawn
            from the new p. The term rate / 2 keeps an unlikely arm's loss from blowing up (Neu 2015)

    Against a policy that answers with its best response L is the dual function, which is smallest at the
    multiplier of the saddle point; J_R must be in it, as the answers' rewards differ. One L per move says
    little: expect tens of moves per arm before the weights say anything.

    Memory, shape (arms + 3,): log w, the smallest and the largest L, the number of the arm being played.
    """

    multiplier_bound: float
    rate: float
    levels: int = 5
    start: float = 0.0

    def arms(self, costs: int) -> Array:
        """The grid, shape (arms, I)."""
        points = itertools.product(range(self.levels + 1), repeat=costs)
        return jnp.array([p for p in points if sum(p) <= self.levels]) * (self.multiplier_bound / self.levels)

    def init(self, costs: int) -> DualState:
        """Equal weights; the arm nearest to `start` / I for every cost."""
        arms = self.arms(costs)
        first = jnp.argmin(jnp.sum((arms - self.start / costs) ** 2, axis=1))
        memory = jnp.concatenate([jnp.zeros(len(arms)), jnp.array([jnp.inf, -jnp.inf]), first[None]])
        return DualState(arms[first], memory)

    def update(self, state: DualState, value: Array, key: Array) -> DualState:
        """One move, given the Lagrangian L of the arm played (a scalar); `key` draws the next arm."""
        arms = self.arms(state.lam.shape[0])
        log_w, played = state.memory[:-3], state.memory[-1].astype(jnp.int32)
        low, high = jnp.minimum(state.memory[-3], value), jnp.maximum(state.memory[-2], value)
        # the first L has nothing to be compared with
        loss = jnp.where(high > low, (value - low) / jnp.maximum(high - low, 1e-12), 0.5)
        step = self.rate * loss / (jax.nn.softmax(log_w)[played] + 0.5 * self.rate)
        log_w = jax.nn.log_softmax(log_w.at[played].add(-step))
        following = jax.random.categorical(key, log_w)
        memory = jnp.concatenate([log_w, jnp.stack([low, high, following.astype(log_w.dtype)])])
        return DualState(arms[following], memory)

    def respond(self, state: DualState, outcome: Outcome, key: Array) -> DualState:
        """One move by the Lagrangian of the arm played."""
        return self.update(state, outcome.lagrangian(state.lam), jax.random.fold_in(key, 1))

    def restart(self, state: DualState, multipliers: Array) -> DualState:
        """What it has heard of its arms is kept, and the arm nearest to `multipliers` is played."""
        arms = self.arms(state.lam.shape[0])
        nearest = jnp.argmin(jnp.sum((arms - multipliers) ** 2, axis=1))
        return DualState(arms[nearest], state.memory.at[-1].set(nearest.astype(state.memory.dtype)))
