"""The two formulas that every critic here is made of: E_D and A_D.

    delta(s,a,s') = f(s,a) - U(s,a) - gamma f(s',pi)                       Bellman residual of a sample
    E_D(pi,f;U)   = max_{w in W} |E_D[w delta]|                            for W = [0, C]^{S x A}:
                  = C max{ E_D[delta_+], E_D[(-delta)_+] }                 (the paper's formula)
    A_D(pi,f)     = E_D[f(s,pi) - f(s,a)]

The reward critic minimises 2 E_D + A_D, a cost critic 2 E_D - A_D. On networks the printed E_D is one
choice; `squared_bellman_error` is the other one, a squared residual with half its weight on a target
network (the double-Q residual of ATAC), which learns where the printed form stalls.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

__all__ = ["advantage", "bellman_error", "bellman_halves", "residual", "squared_bellman_error"]


def residual(f_sa: Array, utility: Array, f_next: Array, discount: Array) -> Array:
    """delta(s,a,s') per sample; `discount` is gamma, or 0 where the process ended. All `(batch,)`."""
    return f_sa - utility - discount * f_next


def bellman_halves(delta: Array) -> tuple[Array, Array]:
    """(E_D[delta_+], E_D[(-delta)_+]): both sides of the maximum in E_D."""
    return jnp.mean(jax.nn.relu(delta)), jnp.mean(jax.nn.relu(-delta))


def bellman_error(delta: Array, C: float) -> Array:
    """E_D = C max{E_D[delta_+], E_D[(-delta)_+]}, a scalar; `delta` from `residual`."""
    return C * jnp.maximum(*bellman_halves(delta))


def squared_bellman_error(delta: Array, delta_target: Array) -> Array:
    """(E_D[delta^2] + E_D[delta_target^2]) / 2; the second residual has a target network at s'."""
    return 0.5 * (jnp.mean(delta**2) + jnp.mean(delta_target**2))


def advantage(f_pi: Array, f_sa: Array) -> Array:
    """A_D = E_D[f(s,pi) - f(s,a)], a scalar."""
    return jnp.mean(f_pi - f_sa)
