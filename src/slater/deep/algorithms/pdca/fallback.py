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

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from slater.deep.batches import Batch
from slater.deep.nets.mlp import MLP
from slater.deep.nets.policy import PolicyNetwork, make_policy
from slater.deep.task import Task

__all__ = ["LEAST_SHARE", "Fallback", "clone_safe", "make_fallback"]

#: share of rows below which a clone is not worth keeping: too few states to know what to do in all
LEAST_SHARE = 0.01
#: smallest log standard deviation in the clone's likelihood: actions that repeat exactly have no density
LOG_STD_MIN = -5.0
#: largest weight of a row, so that no few rows make up a minibatch
MOST_WEIGHT = 20.0
#: rate of the running mean of squared advantages, per iteration
SPREAD_RATE = 0.01


class Fallback(eqx.Module):
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

    @property
    def usable(self) -> bool:
        """Whether the data show enough of what is within the limits."""
        return float(self.share) >= LEAST_SHARE


def make_fallback(
    task: Task, hidden: tuple[int, ...], log_std_max: float, adam: optax.GradientTransformation,
    key: Array,
) -> Fallback:  # fmt: skip
    """A policy and a value at random."""
    pi = make_policy(task, hidden, key, (min(LOG_STD_MIN, log_std_max), log_std_max))
    value = MLP([task.obs_dim, *hidden, 1], jax.random.fold_in(key, 1))
    return Fallback(pi, value, adam.init((pi, value)), jnp.zeros(()), jnp.zeros(()))


def clone_safe(
    fallback: Fallback, batch: Batch, task: Task, tau: Array, temperature: float,
    adam: optax.GradientTransformation, step: Array,
) -> tuple[Fallback, dict[str, Array]]:  # fmt: skip
    """Iteration `step` (from 0) on the rows within `tau`, shape (I,), in J-units."""
    safe = jnp.all(batch.returns[:, 1:] <= tau, axis=1).astype(jnp.float32)
    reward = batch.returns[:, 0] * (1.0 - task.gamma)

    def mean(values: Array, weights: Array) -> Array:
        return jnp.sum(weights * values) / jnp.maximum(jnp.sum(weights), 1e-6)

    advantage = reward - fallback.value(batch.s)[:, 0]
    rate = jnp.where(jnp.sum(safe) > 0, jnp.maximum(SPREAD_RATE, 1.0 / (step + 1.0)), 0.0)
    variance = fallback.variance + rate * (mean(advantage**2, safe) - fallback.variance)
    scale = temperature * jnp.sqrt(variance) + 1e-9
    weight = safe * jnp.exp(jnp.minimum(advantage / scale, jnp.log(MOST_WEIGHT)))

    def loss(networks: tuple[PolicyNetwork, MLP]) -> tuple[Array, Array]:
        pi, value = networks
        clone = -mean(pi.log_prob(batch.s, batch.a), weight)
        return clone + mean((value(batch.s)[:, 0] - reward) ** 2, safe), clone

    networks = (fallback.pi, fallback.value)
    grads, clone = jax.grad(loss, has_aux=True)(networks)
    updates, opt = adam.update(grads, fallback.opt)
    pi, value = optax.apply_updates(networks, updates)
    share = fallback.share + (jnp.mean(safe) - fallback.share) / (step + 1.0)
    return Fallback(pi, value, opt, variance, share), {"loss/fallback": clone, "fallback/share": share}
