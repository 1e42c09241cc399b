"""Algorithm 2 as printed ("Practical Version of PDCA"), alone: presets `paper` and `paper-rwrl`.

Hong, Li, Tewari, "A Primal-Dual-Critic Algorithm for Offline Constrained Reinforcement Learning". For
minibatches D and limits tau on discounted costs, with E_D and A_D of `slater.deep.game.bellman`:

    critics    f   minimises  2 E_D(f, pi; R)     + A_D(f, pi)      pessimistic about the reward
               g^i minimises  2 E_D(g^i, pi; C_i) - A_D(g^i, pi)    pessimistic about each cost
    OPE        h^i minimises    E_D(h^i, pi; C_i)
    pi-player  minimises      -A_D(f + sum_i lambda_i (tau_i - g^i), pi)
    lambda     B where h^i(s0, pi) > tau_i, else 0
    output     the uniform mixture of pi_1, ..., pi_K (of every `keep_every`-th of them)

(In the loss of OPE the listing writes g^i where its text means h^i.) What we recommend is in `default.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from slater.deep.algorithms.base import Algorithm, Config, Member
from slater.deep.batches import Batch
from slater.deep.game.bellman import advantage, bellman_error, bellman_halves, residual
from slater.deep.nets.critic import Critic, make_critics
from slater.deep.nets.policy import PolicyNetwork, make_policy
from slater.deep.task import Task
from slater.errors import InputError

__all__ = ["PaperConfig", "PaperPDCA", "PaperState"]


@dataclass(frozen=True)
class PaperConfig(Config):
    """Settings of Algorithm 2, from the appendix for Bullet Safety Gym; `paper-rwrl` has those for RWRL."""

    steps: int = 100_000
    """K, gradient iterations in all"""
    batch_size: int = 512
    """transitions in a minibatch"""
    hidden: tuple[int, ...] = (256, 256)
    """width of each hidden layer, of every network"""
    normalise_observations: bool = False
    """the paper takes observations as they are"""
    eta_fast: float = 1e-3
    """learning rate of f, g and h"""
    eta_slow: float = 1e-4
    """learning rate of pi"""
    C: float = 5.0
    """C_infinity, the bound on weights in W: weight of the Bellman error against pessimism"""
    multiplier_bound: float = 5.0
    """B, for rewards and costs scaled to [0, 1] (from {2, 5, 10})"""
    log_std_max: float = 2.0
    """largest log standard deviation of a Gaussian policy before the tanh"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("eta_fast", "eta_slow", "C", "multiplier_bound"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive, not {getattr(self, name)}.")


class PaperState(eqx.Module):
    """f_theta; g and h per cost; pi_psi; what Adam remembers; lambda (I,) and its mean over iterations."""

    f: Critic
    g: tuple[Critic, ...]
    h: tuple[Critic, ...]
    pi: PolicyNetwork
    opt_critics: Any
    opt_ope: Any
    opt_pi: Any
    lam: Array
    lam_mean: Array


class PaperPDCA(Algorithm[PaperConfig, PaperState]):
    """Algorithm 2, line by line."""

    name: ClassVar[str] = "pdca"
    label: ClassVar[str] = "PDCA"
    published_as: ClassVar[str | None] = "PDCA"
    search_space: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "multiplier_bound": ("2", "5", "10"), "C": ("5", "10")
    }  # fmt: skip
    limits_are_tau: ClassVar[bool] = True
    remedy: ClassVar[str] = "Lower eta_fast or eta_slow, or raise C."
    Config: ClassVar[type[Config]] = PaperConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "paper-rwrl": {"steps": 30_000, "batch_size": 1024, "eta_fast": 3e-4},
    }

    def __init__(self, config: PaperConfig) -> None:
        super().__init__(config)
        self.fast, self.slow = optax.adam(config.eta_fast), optax.adam(config.eta_slow)

    def init(self, task: Task, key: Array) -> PaperState:
        """Initialise: f_theta, g^i, h^i, pi_psi; lambda = 0."""
        key_f, key_g, key_h, key_pi = jax.random.split(key, 4)
        (f,) = make_critics(task, self.config.hidden, key_f, 1)
        keys = jax.random.split(key_g, task.costs)
        g = tuple(make_critics(task, self.config.hidden, k, 1)[0] for k in keys)
        h = make_critics(task, self.config.hidden, key_h, task.costs)
        pi = make_policy(task, self.config.hidden, key_pi, (-20.0, self.config.log_std_max))
        zero = jnp.zeros(task.costs)
        return PaperState(
            f, g, h, pi, self.fast.init((f, g)), self.fast.init(h), self.slow.init(pi), zero, zero
        )

    def update(
        self, task: Task, state: PaperState, batch: Batch, key: Array, step: Array, phase: str
    ) -> tuple[PaperState, dict[str, Array]]:
        """One pass of the loop; its minibatch D_mini has been drawn."""
        del phase
        C, tau, names = self.config.C, jnp.asarray(task.tau), task.cost_names
        key_s, key_next, key_first = jax.random.split(key, 3)
        pi_s, pi_next = state.pi.choice(batch.s, key_s), state.pi.choice(batch.s_next, key_next)

        def E_and_A(f: Critic, u: int) -> tuple[Array, Array, Array]:
            """E_D(f, pi; U), A_D(f, pi) and the residuals, for utility u."""
            f_sa = f(batch.s, batch.a)
            delta = residual(f_sa, batch.u[:, u], f(batch.s_next, pi_next), batch.discount)
            return bellman_error(delta, C), advantage(f(batch.s, pi_s), f_sa), delta

        # // Update critics
        def critics_loss(fg: tuple[Critic, tuple[Critic, ...]]) -> tuple[Array, dict[str, Array]]:
            f, g = fg
            E, A, delta = E_and_A(f, 0)
            total = 2.0 * E + A  # l_reward(theta) = 2 E_D(f_theta, pi_psi) + A_D(f_theta, pi_psi)
            parts = {"loss/f": total} | _halves("f", delta)
            for i, name in enumerate(names):
                E, A, delta = E_and_A(g[i], 1 + i)
                cost = 2.0 * E - A  # l_cost(theta^i) = 2 E_D(g^i, pi_psi) - A_D(g^i, pi_psi)
                total, parts = total + cost, parts | {f"loss/g_{name}": cost} | _halves(f"g_{name}", delta)
            return total, parts

        def ope_loss(h: tuple[Critic, ...]) -> tuple[Array, dict[str, Array]]:
            parts = {f"loss/h_{name}": E_and_A(h[i], 1 + i)[0] for i, name in enumerate(names)}
            return sum(parts.values(), jnp.zeros(())), parts  # l_ope(vartheta^i) = E_D(h^i, pi_psi)

        grads, metrics = jax.grad(critics_loss, has_aux=True)((state.f, state.g))
        updates, opt_critics = self.fast.update(grads, state.opt_critics)
        f, g = optax.apply_updates((state.f, state.g), updates)  # theta, theta^i <- Adam(..., eta_fast)
        grads_h, parts = jax.grad(ope_loss, has_aux=True)(state.h)
        updates_h, opt_ope = self.fast.update(grads_h, state.opt_ope)
        h = optax.apply_updates(state.h, updates_h)  # vartheta^i <- Adam(grad l_ope, eta_fast)
        metrics |= parts

        # // Update pi
        def actor_loss(pi: PolicyNetwork) -> Array:
            choice = pi.choice(batch.s, key_s)  # pi does not enter the second term of A_D
            z = f(batch.s, choice)
            for i in range(task.costs):
                z = z + state.lam[i] * (tau[i] - g[i](batch.s, choice))
            return -jnp.mean(z)  # l_actor(psi) = -A_D(f + sum_i lambda_i (tau_i - g^i), pi_psi)

        metrics["loss/pi"], grads_pi = jax.value_and_grad(actor_loss)(state.pi)
        updates_pi, opt_pi = self.slow.update(grads_pi, state.opt_pi)
        pi = optax.apply_updates(state.pi, updates_pi)  # psi <- Adam(l_actor, eta_slow)

        # // Update lambda
        choice = pi.choice(batch.s0, key_first)
        h0 = jnp.stack([jnp.mean(h_i(batch.s0, choice)) for h_i in h])
        z = tau - h0  # z_i <- tau_i - h^i(s_0, pi_psi)
        lam = jnp.where(z < 0, self.config.multiplier_bound, 0.0)  # lambda_i <- B if z_i < 0, else 0

        for i, name in enumerate(names):
            metrics[f"lambda/{name}"] = lam[i]
            metrics[f"ope/{name}"] = h0[i] / task.scale[1 + i]
            metrics[f"slack/{name}"] = z[i] / task.scale[1 + i]
        lam_mean = state.lam_mean + (state.lam - state.lam_mean) / (step + 1.0)  # of those that were played
        return PaperState(f, g, h, pi, opt_critics, opt_ope, opt_pi, lam, lam_mean), metrics

    def policy(self, state: PaperState) -> PolicyNetwork:
        """The policy pi_psi."""
        return state.pi

    def report(
        self, task: Task, state: PaperState, members: Sequence[Member], weights: NDArray[np.float64]
    ) -> dict[str, Any]:
        """`lambda_mean`, the mean of the multipliers, in reward per cost as they are in the data."""
        del members, weights
        lam = np.asarray(state.lam_mean, dtype=np.float64) * task.scale[1:] / task.scale[0]
        return {"lambda_mean": dict(zip(task.cost_names, lam.tolist(), strict=True))}


def _halves(name: str, delta: Array) -> dict[str, Array]:
    """Both sides of the maximum in E_D, to log."""
    plus, minus = bellman_halves(jax.lax.stop_gradient(delta))
    return {f"E_plus/{name}": plus, f"E_minus/{name}": minus}
