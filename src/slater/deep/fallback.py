"""A policy that PDCA can fall back on: a clone of what the data show to stay within the limits.

    maximise  E_D[log pi(a|s) | cost-to-go of every cost <= its limit]

The cost-to-go of a row is the discounted cost of what followed it in its episode, in the unit of tau. The
clone is trained beside the warm start and the model, and is one more policy for the linear program of the
output. Where the game has not found anything better within its iterations, the mixture is then, by its
estimate, at least as good as imitating the safe part of the log (if that clone is itself within the limits).
It is no guarantee: a clone errs, what followed a row is weighed over some 1/(1-gamma) steps, and where the
model cannot be trusted nothing has judged the clone. Rows, not episodes, are chosen: no more than
a minibatch is needed, so that data larger than memory and several limits at once work as they do elsewhere.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from slater.deep.networks import PolicyNetwork, make_policy
from slater.deep.problem import Batch, Problem

__all__ = ["LEAST_SHARE", "Fallback", "clone_safe", "make_fallback"]

#: share of rows below which a clone is not worth keeping: too few states to know what to do in all
LEAST_SHARE = 0.01
#: smallest log standard deviation in the clone's likelihood: actions that repeat exactly have no density
LOG_STD_MIN = -5.0


class Fallback(eqx.Module):
    """The clone, its optimiser, and the share of the data's rows that it is a clone of, in [0, 1]."""

    pi: PolicyNetwork
    opt: Any
    share: Array

    @property
    def usable(self) -> bool:
        """Whether the data show enough of what is within the limits."""
        return float(self.share) >= LEAST_SHARE


def make_fallback(
    problem: Problem, hidden: tuple[int, ...], log_std_max: float, adam: optax.GradientTransformation,
    key: Array,
) -> Fallback:  # fmt: skip
    """A policy at random."""
    pi = make_policy(problem, hidden, key, (min(LOG_STD_MIN, log_std_max), log_std_max))
    return Fallback(pi, adam.init(pi), jnp.zeros(()))


def clone_safe(
    fallback: Fallback, batch: Batch, tau: Array, adam: optax.GradientTransformation, step: Array
) -> tuple[Fallback, dict[str, Array]]:
    """Iteration `step` (from 0) of cloning the rows within `tau`, shape (I,), in J-units."""
    safe = jnp.all(batch.returns[:, 1:] <= tau, axis=1).astype(jnp.float32)

    def loss(pi: PolicyNetwork) -> Array:
        return -jnp.sum(safe * pi.log_prob(batch.s, batch.a)) / jnp.maximum(jnp.sum(safe), 1.0)

    value, grads = jax.value_and_grad(loss)(fallback.pi)
    updates, opt = adam.update(grads, fallback.opt)
    share = fallback.share + (jnp.mean(safe) - fallback.share) / (step + 1.0)
    moved = Fallback(optax.apply_updates(fallback.pi, updates), opt, share)
    return moved, {"loss/fallback": value, "fallback/share": share}
