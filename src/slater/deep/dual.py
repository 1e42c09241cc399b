"""The lambda-player: what a multiplier does when it is told by how much each cost exceeds its limit.

All players live on B Delta^I = {lambda >= 0, sum_i lambda_i <= B} (the box rule of Algorithm 2 on
[0, B]^I) and share one interface: `init(costs)` gives a state, `update(state, excess)` moves it, and
`state.lam`, shape (I,), is the multiplier now. `excess` is h - tau, shape (I,), in J-units divided by the
scale of the limit (`relative_excess`), so that one rate serves limits of any size and any discount.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

__all__ = [
    "DUALS",
    "PID",
    "Dual",
    "DualState",
    "ExponentiatedGradient",
    "Greedy",
    "GreedyBox",
    "ProjectedGradient",
    "ProportionalIntegral",
    "make_dual",
    "project_simplex",
    "relative_excess",
]


class DualState(eqx.Module):
    """The multipliers, shape (I,), and whatever the player remembers besides, shape (I,) or (2, I)."""

    lam: Array
    memory: Array


class Dual(Protocol):
    """A lambda-player."""

    def init(self, costs: int) -> DualState:
        """The state before the first move, for `costs` constraints."""
        ...

    def update(self, state: DualState, excess: Array) -> DualState:
        """One move, given the excess of each cost over its limit, shape (I,)."""
        ...


def relative_excess(h: Array, tau: Array, floor: float) -> Array:
    """(h - tau) / max(tau, floor), shape (I,), cut to [-1, 1]: 1 means twice the limit or more.

    `floor` > 0, in J-units. The cut keeps one estimate of a reckless policy from throwing lambda so far
    that many rounds of idle policies follow.
    """
    return jnp.clip((h - tau) / jnp.maximum(tau, floor), -1.0, 1.0)


def project_simplex(x: Array, B: float) -> Array:
    """The nearest point of {lambda >= 0, sum lambda <= B}, shape (I,)."""
    clipped = jnp.maximum(x, 0.0)
    descending = jnp.sort(clipped)[::-1]
    ranks = jnp.arange(1, x.shape[0] + 1)
    thresholds = (jnp.cumsum(descending) - B) / ranks
    support = jnp.sum(descending > thresholds)
    shifted = jnp.maximum(clipped - thresholds[support - 1], 0.0)
    return jnp.where(jnp.sum(clipped) <= B, clipped, shifted)


@dataclass(frozen=True)
class Greedy:
    """The minimiser of lambda.(tau - h) over B Delta^I: all of B on the worst cost, or nothing."""

    B: float

    def init(self, costs: int) -> DualState:
        """No penalty before the first estimate."""
        return DualState(jnp.zeros(costs), jnp.zeros(costs))

    def update(self, state: DualState, excess: Array) -> DualState:
        """Jump to the best response."""
        worst = jax.nn.one_hot(jnp.argmax(excess), excess.shape[0])
        return DualState(jnp.where(jnp.max(excess) > 0, self.B * worst, 0.0), state.memory)


@dataclass(frozen=True)
class GreedyBox:
    """Algorithm 2 as printed: B on every violated cost (over [0, B]^I; the same as greedy for I = 1)."""

    B: float

    def init(self, costs: int) -> DualState:
        """No penalty before the first estimate."""
        return DualState(jnp.zeros(costs), jnp.zeros(costs))

    def update(self, state: DualState, excess: Array) -> DualState:
        """Jump to the best response."""
        return DualState(jnp.where(excess > 0, self.B, 0.0), state.memory)


@dataclass(frozen=True)
class ProjectedGradient:
    """lambda <- projection of lambda + rate * excess onto B Delta^I."""

    B: float
    rate: float
    start: float = 0.0

    def init(self, costs: int) -> DualState:
        """Every multiplier at `start` / I."""
        return DualState(jnp.full(costs, self.start / costs), jnp.zeros(costs))

    def update(self, state: DualState, excess: Array) -> DualState:
        """One gradient step."""
        return DualState(project_simplex(state.lam + self.rate * excess, self.B), state.memory)


@dataclass(frozen=True)
class ExponentiatedGradient:
    """lambda_i proportional to exp(sum of rate * excess_i), beside a slack of weight 1; total B."""

    B: float
    rate: float
    start: float = 0.0

    def init(self, costs: int) -> DualState:
        """Every multiplier at `start` / I; a start of 0 is read as 1% of B, which the rule cannot leave."""
        share = min(max(self.start / self.B, 0.01), 0.99)
        memory = jnp.full(costs, jnp.log(share / costs) - jnp.log(1.0 - share))
        return DualState(self.B * self._weights(memory), memory)

    @staticmethod
    def _weights(logits: Array) -> Array:
        return jax.nn.softmax(jnp.append(logits, 0.0))[:-1]

    def update(self, state: DualState, excess: Array) -> DualState:
        """One mirror step; the exponents stay within +-20, so that no weight dies."""
        memory = jnp.clip(state.memory + self.rate * excess, -20.0, 20.0)
        return DualState(self.B * self._weights(memory), memory)


@dataclass(frozen=True)
class ProportionalIntegral:
    """PI control: lambda = projection of gain * excess + integral, the integral itself kept in B Delta^I."""

    B: float
    rate: float
    gain: float
    start: float = 0.0

    def init(self, costs: int) -> DualState:
        """Every multiplier, and the integral, at `start` / I."""
        integral = jnp.full(costs, self.start / costs)
        return DualState(integral, integral)

    def update(self, state: DualState, excess: Array) -> DualState:
        """Move the integral, then add the proportional part."""
        integral = project_simplex(state.memory + self.rate * excess, self.B)
        return DualState(project_simplex(integral + self.gain * excess, self.B), integral)


@dataclass(frozen=True)
class PID:
    """PID control (Stooke et al. 2020) of the excess e, with an integral that cannot wind up:

        I <- projection of I + ki e onto B Delta^I
        lambda <- projection of I + kp e + kd (e - e_before)_+ onto B Delta^I

    The integral is kept as a multiplier, inside the set that lambda lives in: after a long violation it
    starts to fall with the first e < 0. (A sum of errors without a bound would first have to be paid back.)
    The derivative brakes a rising cost only. Memory: row 0 is I, row 1 e_before.
    """

    B: float
    kp: float
    ki: float
    kd: float
    start: float = 0.0

    def init(self, costs: int) -> DualState:
        """Every multiplier, and the integral, at `start` / I."""
        integral = jnp.full(costs, self.start / costs)
        return DualState(integral, jnp.stack([integral, jnp.zeros(costs)]))

    def update(self, state: DualState, excess: Array) -> DualState:
        """Move the integral, then add the other two parts."""
        before, last = state.memory
        integral = project_simplex(before + self.ki * excess, self.B)
        rising = jnp.maximum(excess - last, 0.0)
        lam = project_simplex(integral + self.kp * excess + self.kd * rising, self.B)
        return DualState(lam, jnp.stack([integral, excess]))


DUALS = ("greedy", "greedy_box", "projected_gradient", "exponentiated_gradient", "pi")


def make_dual(name: str, *, B: float, rate: float, gain: float, start: float) -> Dual:
    """The player called `name` (one of `DUALS`)."""
    if name == "greedy":
        return Greedy(B)
    if name == "greedy_box":
        return GreedyBox(B)
    if name == "projected_gradient":
        return ProjectedGradient(B, rate, start)
    if name == "exponentiated_gradient":
        return ExponentiatedGradient(B, rate, start)
    assert name == "pi", name
    return ProportionalIntegral(B, rate, gain, start)
