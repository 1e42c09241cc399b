"""A policy that PDCA can fall back on: the best of what the data show to stay within the limits.

    maximise  E_D[w(s, a) log pi(a|s) | cost-to-go of every cost <= its limit]
    w(s, a) = exp((R - V(s)) / (temperature * sigma)),  at most 20

The cost-to-go of a row is the discounted cost of what followed it in its episode, in the unit of tau; R is
the discounted reward that followed, times 1 - gamma: scaled reward per step. V is regressed on R over the
same rows, and sigma is the root mean square of R - V. So it is advantage-weighted regression (Peng et al.,
2019) on the safe rows: one step of improvement over the data's own policy, for which nothing is evaluated
that the data do not show. An infinite temperature gives the plain clone of those rows.

It is trained beside the warm start and the model, and is one more policy for the linear program of the
output. Where the game has not found anything better within its iterations, the mixture is then, by its
estimate, at least as good as this one (if that is itself within the limits). It is no guarantee: a clone
errs, what followed a row is weighed over some 1/(1-gamma) steps, and where the model cannot be trusted
nothing has judged the clone. Rows, not episodes, are chosen: no more than a minibatch is needed, so that
data larger than memory and several limits at once work as they do elsewhere.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from slater.deep.algorithms.base import Member
from slater.deep.batches import Batch
from slater.deep.nets.mlp import MLP
from slater.deep.nets.policy import PolicyNetwork, make_policy
from slater.deep.task import Task

__all__ = ["LEAST_SHARE", "Fallback", "NoFallback", "SafeClone", "SafeCloneState"]

#: share of rows below which a clone is not worth keeping: too few states to know what to do in all
LEAST_SHARE = 0.01
#: smallest log standard deviation in the clone's likelihood: actions that repeat exactly have no density
LOG_STD_MIN = -5.0
#: largest weight of a row, so that no few rows make up a minibatch
MOST_WEIGHT = 20.0
#: rate of the running mean of squared advantages, per iteration
SPREAD_RATE = 0.01


class Fallback(abc.ABC):
    """A policy that is trained before the game and kept as one more member, of kind "fallback"."""

    @abc.abstractmethod
    def init(self, task: Task, key: Array) -> Any:
        """Its state."""

    @abc.abstractmethod
    def update(self, task: Task, state: Any, batch: Batch, step: Array) -> tuple[Any, dict[str, Array]]:
        """Iteration `step` (from 0), and scalars to log."""

    @abc.abstractmethod
    def policy(self, state: Any) -> PolicyNetwork | None:
        """The policy to keep; None: nothing worth keeping."""

    @abc.abstractmethod
    def report(self, state: Any, members: Sequence[Member], weights: NDArray[np.float64]) -> dict[str, Any]:
        """What it adds to the run's result, as JSON."""


class NoFallback(Fallback):
    """None."""

    def init(self, task: Task, key: Array) -> tuple[()]:
        """Nothing."""
        del task, key
        return ()

    def update(self, task: Task, state: Any, batch: Batch, step: Array) -> tuple[Any, dict[str, Array]]:
        """Nothing moves."""
        del task, batch, step
        return state, {}

    def policy(self, state: Any) -> None:
        """None."""
        del state

    def report(self, state: Any, members: Sequence[Member], weights: NDArray[np.float64]) -> dict[str, Any]:
        """Nothing."""
        del state, members, weights
        return {}


class SafeCloneState(eqx.Module):
    """The clone, the value of the safe rows' states, and what training needs.

    value: V(s), in the unit of R, of shape (batch, 1)
    variance: () running mean of squared advantages, in the unit of V squared
    share: () share of the data's rows that it is a clone of, in [0, 1]
    """

    pi: PolicyNetwork
    value: MLP
    opt: Any
    variance: Array
    share: Array


@dataclass(frozen=True)
class SafeClone(Fallback):
    """The clone of the module's text.

    margin: share of every limit that is held back
    temperature: rows are preferred by exp(advantage / (this * the advantages' spread)); inf: all alike
    """

    hidden: tuple[int, ...]
    learning_rate: float
    log_std_max: float
    margin: float
    temperature: float = 1.0

    @property
    def _adam(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)

    def init(self, task: Task, key: Array) -> SafeCloneState:
        """A policy and a value at random."""
        pi = make_policy(task, self.hidden, key, (min(LOG_STD_MIN, self.log_std_max), self.log_std_max))
        value = MLP([task.obs_dim, *self.hidden, 1], jax.random.fold_in(key, 1))
        return SafeCloneState(pi, value, self._adam.init((pi, value)), jnp.zeros(()), jnp.zeros(()))

    def update(
        self, task: Task, state: SafeCloneState, batch: Batch, step: Array
    ) -> tuple[SafeCloneState, dict[str, Array]]:
        """One step of Adam on the rows within the limits less the margin."""
        tau = task.tightened_limits(self.margin)
        safe = jnp.all(batch.returns[:, 1:] <= tau, axis=1).astype(jnp.float32)
        reward = batch.returns[:, 0] * (1.0 - task.gamma)

        def mean(values: Array, weights: Array) -> Array:
            return jnp.sum(weights * values) / jnp.maximum(jnp.sum(weights), 1e-6)

        advantage = reward - state.value(batch.s)[:, 0]
        rate = jnp.where(jnp.sum(safe) > 0, jnp.maximum(SPREAD_RATE, 1.0 / (step + 1.0)), 0.0)
        variance = state.variance + rate * (mean(advantage**2, safe) - state.variance)
        scale = self.temperature * jnp.sqrt(variance) + 1e-9
        weight = safe * jnp.exp(jnp.minimum(advantage / scale, jnp.log(MOST_WEIGHT)))

        def loss(networks: tuple[PolicyNetwork, MLP]) -> tuple[Array, Array]:
            pi, value = networks
            clone = -mean(pi.log_prob(batch.s, batch.a), weight)
            return clone + mean((value(batch.s)[:, 0] - reward) ** 2, safe), clone

        networks = (state.pi, state.value)
        grads, clone = jax.grad(loss, has_aux=True)(networks)
        updates, opt = self._adam.update(grads, state.opt)
        pi, value = optax.apply_updates(networks, updates)
        share = state.share + (jnp.mean(safe) - state.share) / (step + 1.0)
        moved = SafeCloneState(pi, value, opt, variance, share)
        return moved, {"loss/fallback": clone, "fallback/share": share}

    def policy(self, state: SafeCloneState) -> PolicyNetwork | None:
        """The clone, where the data show enough of what is within the limits."""
        return state.pi if float(state.share) >= LEAST_SHARE else None

    def report(
        self, state: SafeCloneState, members: Sequence[Member], weights: NDArray[np.float64]
    ) -> dict[str, Any]:
        """`fallback`: the share of rows it clones, its step and its weight."""
        found = [
            {"step": m.step, "weight": float(w)}
            for m, w in zip(members, weights, strict=True)
            if m.kind == "fallback"
        ]
        place = found[0] if found else {"step": None, "weight": 0.0}
        return {"fallback": {"share": float(state.share), **place}}
