"""What each player of PDCA minimises, in the paper's letters; `pdca.algorithm` plays the game.

The critics: 2 E_D(f, pi; R) + A_D(f, pi) and 2 E_D(g^i, pi; C_i) - A_D(g^i, pi). OPE: E_D(h^i, pi; C_i)
as printed (FQE and the model are in `estimators` and `model`). The policy:
-A_D(f + sum_i lambda_i (tau_i - g^i), pi), or the natural gradient on logits. The warm start: regression on
the data's returns, and cloning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from slater.deep.algorithms.pdca.config import PDCAConfig
from slater.deep.batches import Batch
from slater.deep.game.bellman import (
    advantage,
    bellman_error,
    bellman_halves,
    residual,
    sized_loss,
    squared_bellman_error,
)
from slater.deep.nets.critic import Critic
from slater.deep.nets.policy import Categorical, PolicyNetwork
from slater.deep.task import Task

__all__ = ["actor_loss", "clone_loss", "critics_loss", "printed_ope_loss", "returns_loss", "target_values"]

#: the copies of f, then those of every g^i
Critics = tuple[tuple[Critic, ...], tuple[tuple[Critic, ...], ...]]


def target_values(
    task: Task, targets: Sequence[tuple[Critic, ...]], batch: Batch, pi_next: Array
) -> list[Array]:
    """What the target networks of each utility say of s', `(batch,)`, within what a value can be.

    Pessimistic over the copies: the smallest reward, the largest cost.
    """
    return [
        jnp.clip(
            _pessimist(u)(jnp.stack([t(batch.s_next, pi_next) for t in copies]), axis=0),
            task.value_low[u], task.value_high[u],
        )
        for u, copies in enumerate(targets)
    ]  # fmt: skip


def _pessimist(u: int) -> Callable[..., Array]:
    """The smaller value of a reward, the larger one of a cost."""
    return jnp.min if u == 0 else jnp.max


def critics_loss(
    config: PDCAConfig, task: Task, fg: Critics, batch: Batch, pi_s: Array, pi_next: Array,
    futures: Sequence[Array],
) -> tuple[Array, dict[str, Array]]:  # fmt: skip
    """The sum over all critics, and each one's loss and halves of E_D; `futures` are `target_values`."""
    total, parts = jnp.zeros(()), {}
    for u, copies in enumerate((fg[0], *fg[1])):
        name = "f" if u == 0 else f"g_{task.cost_names[u - 1]}"
        for critic in copies:
            future = futures[u] if futures else None
            value, halves = _critic_loss(config, critic, u, batch, pi_s, pi_next, future)
            total += value
        parts[f"loss/{name}"] = value
        parts[f"E_plus/{name}"], parts[f"E_minus/{name}"] = halves
    return total, parts


def _critic_loss(
    config: PDCAConfig, f: Critic, u: int, batch: Batch, pi_s: Array, pi_next: Array, future: Array | None
) -> tuple[Array, tuple[Array, Array]]:
    """2 E_D(f, pi; U) +- A_D(f, pi): plus for the reward (u = 0), minus for a cost; and E's halves."""
    f_sa, f_pi = f(batch.s, batch.a), f(batch.s, pi_s)
    delta = residual(f_sa, batch.u[:, u], f(batch.s_next, pi_next), batch.discount)
    A = advantage(f_pi, f_sa) * (1.0 if u == 0 else -1.0)
    halves = bellman_halves(jax.lax.stop_gradient(delta))
    size, C = config.critic_loss, config.C
    if future is None and size in ("auto", "printed"):
        return 2.0 * bellman_error(delta, C) + A, halves
    if future is None:
        E = bellman_error(delta, 1.0)
    else:
        E = squared_bellman_error(delta, residual(f_sa, batch.u[:, u], future, batch.discount))
    return sized_loss(E, A, 2.0 * C, "bellman" if size == "auto" else size), halves


def printed_ope_loss(
    config: PDCAConfig, h: Sequence[Critic], names: Sequence[str], utilities: Sequence[int], batch: Batch,
    pi_next: Array,
) -> tuple[Array, dict[str, Array]]:  # fmt: skip
    """The sum of E_D(h, pi; U) over networks h of `utilities`, and each one by its name."""
    parts = {}
    for critic, name, u in zip(h, names, utilities, strict=True):
        h_next = critic(batch.s_next, pi_next)
        delta = residual(critic(batch.s, batch.a), batch.u[:, u], h_next, batch.discount)
        parts[name] = bellman_error(delta, config.C)
    return sum(parts.values(), jnp.zeros(())), parts


def actor_loss(
    config: PDCAConfig, task: Task, pi: PolicyNetwork, fg: Critics, lam: Array, batch: Batch, key: Array
) -> Array:
    """-A_D(f + sum_i lambda_i (tau_i - g^i), pi), by the first copy of every critic."""
    f, g = fg

    def z(choice: Array) -> Array:
        values = f[0](batch.s, choice)
        for i, copies in enumerate(g):
            values = values + lam[i] * (task.tau[i] - copies[0](batch.s, choice))
        return values

    if isinstance(pi, Categorical) and config.temperature > 0:
        value = _natural_gradient(config, task, pi, batch, z)
    else:
        # A_D without its second term, which pi does not enter
        value = -jnp.mean(z(pi.choice(batch.s, key)))
    if config.clone_weight > 0:
        size = jax.lax.stop_gradient(jnp.mean(jnp.abs(f[0](batch.s, batch.a))))
        value -= config.clone_weight * size * jnp.mean(pi.log_prob(batch.s, batch.a))
    return value


def _natural_gradient(
    config: PDCAConfig, task: Task, pi: Categorical, batch: Batch, z: Callable[[Array], Array]
) -> Array:
    """Exponential weights on networks: logits move along z(s,.) - z(s,pi), pulled towards uniform.

    The stationary point is softmax(A(s,.) / (temperature H)). The gradient in the logits does not
    vanish with pi(a|s), so an action that was given up can come back.
    """
    logits = pi.mlp(batch.s)
    actions = jnp.eye(task.action_dim)
    every = jnp.stack([z(jnp.broadcast_to(a, batch.a.shape)) for a in actions], axis=-1)
    gain = every - jnp.sum(jax.nn.softmax(logits) * every, axis=-1, keepdims=True)
    gain = jax.lax.stop_gradient(gain * (1.0 - task.gamma))
    centred = logits - jnp.mean(logits, axis=-1, keepdims=True)
    pull = 0.5 * config.temperature * centred**2
    return jnp.mean(jnp.sum(pull - gain * centred, axis=-1))


def returns_loss(fg: Critics, batch: Batch) -> Array:
    """Squared error of every critic against the data's returns, summed over critics."""
    pairs = ((critic, u) for u, copies in enumerate((fg[0], *fg[1])) for critic in copies)
    losses = (jnp.mean((critic(batch.s, batch.a) - batch.returns[:, u]) ** 2) for critic, u in pairs)
    return sum(losses, jnp.zeros(()))


def clone_loss(pi: PolicyNetwork, batch: Batch) -> Array:
    """-E_D[log pi(a|s)]."""
    return -jnp.mean(pi.log_prob(batch.s, batch.a))
