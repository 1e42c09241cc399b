"""COptiDICE (Lee et al., 2022): corrections w = d^pi / d^D of the data's distribution, then weighted cloning.

    max_d  E_d[R] - alpha D_f(d || d^D)   s.t.  E_d[C_i] <= chat_i,  d an occupancy measure

chat_i = (1-gamma) tau_i: an occupancy sums to 1, so its costs are *normalised*. Dual, with nu for the flow
equations and lambda >= 0 for the costs:

    e         = R - lambda.C + gamma nu(s') - nu(s);     w = max(0, (f')^{-1}(e / alpha))
    nu        minimises  (1-gamma) E nu(s0) + E_D[w e - alpha f(w)]
    lambda    minimises  lambda.(chat - cost)            cost_i = E_D[w C_i], or an upper bound of it:
    chi, t    minimise   t log E_D exp(ell / t) + t epsilon,
              ell = (1-gamma) E chi(s0) + w (C + gamma chi(s') - chi(s));   v = softmax of ell / t
              cost_i = E_D[v w C_i]: the worst model within KL epsilon of the data
    pi        maximises  E_D[w log pi(a|s)] / E_D[w]     density of the squashed action

    softchi   f(x) = x log x - x + 1 for x < 1, (x-1)^2/2 above;  (f')^{-1}(y) = exp(y) for y < 0, y + 1 above
    kl        f(x) = x log x;                                     (f')^{-1}(y) = exp(y - 1)

With expectation = "network" a network m(s,a) stands for E[nu(s')|s,a] inside w: a single s' makes w(s,a)
depend on luck, which is wrong for stochastic dynamics (and costs nothing for deterministic ones).

Preset `released`: published code compares E_D[w C], which is normalised, with a limit in J-units, some
hundred times larger, so its limit never binds; it clones without the tanh that it acts with, stops at
timeouts, and takes the smaller of two networks for nu and chi.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.lax import stop_gradient
from numpy.typing import NDArray

from slater.data import Dataset
from slater.deep.algorithms.base import Config, LastIterate, Member
from slater.deep.algorithms.registry import register
from slater.deep.batches import Batch, Data
from slater.deep.game.thresholds import thresholds
from slater.deep.nets.critic import Critic, make_critic
from slater.deep.nets.mlp import MLP, descend, polyak
from slater.deep.nets.policy import Gaussian, PolicyNetwork, make_policy
from slater.deep.task import Task
from slater.errors import InputError


@dataclass(frozen=True)
class COptiDICEConfig(Config):
    """Settings of COptiDICE. "released" marks what the preset changes, and to what."""

    eta: float = 3e-4
    """learning rate of nu, chi and m (its authors: 3e-4; released: 1e-4)"""
    eta_scalars: float = 3e-3
    """learning rate of lambda and t, before the softplus (released: 1e-4)"""
    eta_pi: float = 3e-4
    """learning rate of the policy (its authors: 3e-4; released: 1e-4)"""
    alpha: float = 0.01
    """strength of D_f, in units of the scaled reward of a step (its authors: .01; released: .5)"""
    f: Literal["softchi", "kl"] = "softchi"
    """the divergence D_f"""
    epsilon: float = 0.0
    """radius of the KL ball of the cost's upper bound; 0: the plain estimate (its authors, released: .01)"""
    expectation: Literal["sample", "network"] = "sample"
    """nu(s') in w: of the sampled s', or its mean given (s,a) by a network"""
    exact_gradient: bool = True
    """chi: the gradient of the dual; False lets it pass through v too (its authors, released: False)"""
    copies: int = 1
    """networks of nu and of each chi; their smallest value counts (released: 2)"""
    limit_in: Literal["normalised", "discounted"] = "normalised"
    """unit of the limit in lambda's loss; the estimate is normalised (released: discounted, a mistake)"""
    clone: Literal["squashed", "before-tanh"] = "squashed"
    """likelihood in the extraction (released: before-tanh, a mistake)"""
    stop_at_timeouts: bool = False
    """no bootstrap through timeouts (released: True)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("eta", "eta_scalars", "eta_pi", "alpha", "copies")
        if self.epsilon < 0:
            raise InputError(f"epsilon must be at least 0, not {self.epsilon}.")


Copies = tuple[MLP, ...]


class DualNetworks(eqx.Module):
    """What one optimiser moves: nu, chi_i (empty without the upper bound), and m (one, or none)."""

    nu: Copies
    chi: tuple[Copies, ...]
    m: tuple[Critic, ...]


class COptiDICEState(eqx.Module):
    """scalars: (2, I), lambda and t before the softplus; moments: (2+I,) running E[w], E[w^2], E[w C_i]."""

    dual: DualNetworks
    scalars: Array
    pi: PolicyNetwork
    opt_dual: Any
    opt_scalars: Any
    opt_pi: Any
    moments: Array


@register
class COptiDICE(LastIterate[COptiDICEConfig, COptiDICEState]):
    """COptiDICE; see the module's text."""

    name: ClassVar[str] = "coptidice"
    label: ClassVar[str] = "COptiDICE"
    imitates: ClassVar[bool] = True
    published_as: ClassVar[str | None] = "COptiDICE"
    search_space: ClassVar[Mapping[str, tuple[str, ...]]] = {"alpha": ("0.001", "0.01", "0.1", "1")}
    Config: ClassVar[type[Config]] = COptiDICEConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "released": {
            "steps": 100_000, "eta": 1e-4, "eta_scalars": 1e-4, "eta_pi": 1e-4, "alpha": 0.5, "epsilon": 0.01,
            "exact_gradient": False, "copies": 2, "limit_in": "discounted", "clone": "before-tanh",
            "stop_at_timeouts": True, "reward_scale": 0.1, "normalise_observations": False,
        },
    }  # fmt: skip

    def __init__(self, config: COptiDICEConfig) -> None:
        super().__init__(config)
        self.adam, self.adam_pi = optax.adam(config.eta), optax.adam(config.eta_pi)
        self.adam_scalars = optax.adam(config.eta_scalars)

    def data(self, dataset: Dataset, task: Task, data: Data) -> Data:
        """The transitions; with `stop_at_timeouts`, nothing follows a timeout."""
        if not self.config.stop_at_timeouts:
            return data
        return data._replace(discount=data.discount * (1.0 - dataset.timeouts[dataset.next_known]))

    def limits(self, task: Task) -> Array:
        """chat, shape (I,), for scaled costs, in the unit `limit_in` and with the mask of the data."""
        return thresholds(task, self.config.limit_in, stop_at_timeouts=self.config.stop_at_timeouts)

    def init(self, task: Task, key: Array) -> COptiDICEState:
        """All networks at random; lambda and t at softplus(1) = 1.31."""
        config = self.config
        key_nu, key_chi, key_m, key_pi = jax.random.split(key, 4)

        def copies(key: Array) -> Copies:
            sizes = [task.obs_dim, *config.hidden, 1]
            return tuple(MLP(sizes, k) for k in jax.random.split(key, config.copies))

        dual = DualNetworks(
            nu=copies(key_nu),
            chi=tuple(map(copies, jax.random.split(key_chi, task.costs))) if config.epsilon else (),
            m=(make_critic(task, config.hidden, key_m),) if config.expectation == "network" else (),
        )
        scalars, pi = jnp.ones((2, task.costs)), make_policy(task, config.hidden, key_pi, (-5.0, 2.0))
        return COptiDICEState(
            dual, scalars, pi, self.adam.init(dual), self.adam_scalars.init(scalars), self.adam_pi.init(pi),
            jnp.ones(2 + task.costs),
        )  # fmt: skip

    def update(
        self, task: Task, state: COptiDICEState, batch: Batch, key: Array, step: Array, phase: str
    ) -> tuple[COptiDICEState, dict[str, Array]]:
        """One step of nu, chi, lambda and t, and of the policy."""
        chat, costs = self.limits(task), batch.u[:, 1:]
        lam, t = jax.nn.softplus(state.scalars)

        def loss_dual(dual: DualNetworks) -> tuple[Array, tuple[Array, Array, Array, dict[str, Array]]]:
            reward = batch.u[:, 0] - costs @ lam
            nu_s, nu_next, nu_0 = (_least(dual.nu, obs) for obs in (batch.s, batch.s_next, batch.s0))
            e = reward + batch.discount * nu_next - nu_s
            if dual.m:  # w from the mean over s', constant here: the gradient is then that of the dual
                mean_next = dual.m[0](batch.s, batch.a)
                w = stop_gradient(self._ratio(reward + batch.discount * mean_next - nu_s))
                loss_nu = (1 - task.gamma) * jnp.mean(nu_0) + jnp.mean(w * e)
                loss_m = jnp.mean((mean_next - stop_gradient(nu_next)) ** 2)
            else:
                w = self._ratio(e)
                loss_nu = (1 - task.gamma) * jnp.mean(nu_0) + jnp.mean(w * e - self.config.alpha * self._f(w))
                loss_m = jnp.zeros(())
            w = stop_gradient(w)
            loss_chi, bounds, divergences = self._upper_bound(task, dual, w, t, batch)
            parts = {"loss/nu": loss_nu} | ({"loss/m": loss_m} if dual.m else {})
            parts |= {"loss/chi": loss_chi} if dual.chi else {}
            return loss_nu + loss_m + loss_chi, (w, bounds, divergences, parts)

        dual, opt_dual, (_, (w, cost, divergence, metrics)) = descend(
            self.adam, loss_dual, state.dual, state.opt_dual, has_aux=True
        )

        def loss_scalars(scalars: Array) -> Array:
            lam, t = jax.nn.softplus(scalars)
            # t minimises t (epsilon - KL): it grows until the worst model is as near as allowed
            return jnp.sum(lam * (chat - cost)) + jnp.sum(t * (self.config.epsilon - divergence))

        scalars, opt_scalars, _ = descend(self.adam_scalars, loss_scalars, state.scalars, state.opt_scalars)

        def loss_pi(pi: PolicyNetwork) -> Array:
            return -jnp.mean(w * self._log_prob(pi, batch)) / jnp.maximum(jnp.mean(w), 1e-6)

        pi, opt_pi, value_pi = descend(self.adam_pi, loss_pi, state.pi, state.opt_pi)

        counted = jnp.stack([jnp.mean(w), jnp.mean(w**2)])
        now = jnp.concatenate([counted, jnp.mean(w[:, None] * costs, axis=0)])
        moments = polyak(state.moments, now, 0.01)
        metrics["loss/pi"] = value_pi
        metrics["weights/mean"] = moments[0]
        # effective sample size (sum w)^2 / sum w^2, as a share of the data
        metrics["weights/effective_share"] = moments[0] ** 2 / jnp.maximum(moments[1], 1e-12)
        for i, name in enumerate(task.cost_names):
            metrics[f"lambda/{name}"] = lam[i]
            metrics[f"ope/{name}"] = moments[2 + i] / (1 - task.gamma) / task.scale[1 + i]
            if dual.chi:
                metrics[f"bound/{name}"] = cost[i] / (1 - task.gamma) / task.scale[1 + i]
        return COptiDICEState(dual, scalars, pi, opt_dual, opt_scalars, opt_pi, moments), metrics

    def _upper_bound(
        self, task: Task, dual: DualNetworks, w: Array, t: Array, batch: Batch
    ) -> tuple[Array, Array, Array]:
        """The loss of chi, the cost of each kind (I,), and the KL of the worst model from the data (I,)."""
        losses, bounds, divergences = jnp.zeros(()), [], []
        if not dual.chi:
            return losses, jnp.mean(w[:, None] * batch.u[:, 1:], axis=0), jnp.zeros(task.costs)
        # a quarter of a batch is enough for a mean without weights, and saves a pass
        first = batch.s0[: max(1, batch.s0.shape[0] // 4)]
        for i, chi in enumerate(dual.chi):
            c = batch.u[:, 1 + i]
            flow = c + batch.discount * _least(chi, batch.s_next) - _least(chi, batch.s)
            ell = (1 - task.gamma) * jnp.mean(_least(chi, first)) + w * flow
            v = ell.shape[0] * jax.nn.softmax(ell / t[i])
            v_fixed = stop_gradient(v)
            losses += jnp.mean((v_fixed if self.config.exact_gradient else v) * ell)
            bounds.append(jnp.mean(v_fixed * w * c))
            divergences.append(jnp.mean(v_fixed * jnp.log(jnp.maximum(v_fixed, 1e-12)) - v_fixed + 1.0))
        return losses, jnp.stack(bounds), jnp.stack(divergences)

    def _ratio(self, e: Array) -> Array:
        """The weights w = max(0, (f')^{-1}(e / alpha))."""
        y = e / self.config.alpha
        if self.config.f == "kl":
            return jnp.exp(jnp.minimum(y - 1.0, 10.0))
        return jnp.where(y < 0, jnp.exp(jnp.minimum(y, 0.0)), y + 1.0)

    def _f(self, w: Array) -> Array:
        """f(w) of the divergence."""
        entropy = w * jnp.log(jnp.maximum(w, 1e-12))
        if self.config.f == "kl":
            return entropy
        return jnp.where(w < 1, entropy - w + 1.0, 0.5 * (w - 1.0) ** 2)

    def _log_prob(self, pi: PolicyNetwork, batch: Batch) -> Array:
        if self.config.clone == "squashed" or not isinstance(pi, Gaussian):
            return pi.log_prob(batch.s, batch.a)
        mean, log_std = jnp.split(pi.mlp(batch.s), 2, axis=-1)
        log_std = jnp.clip(log_std, *pi.log_std_range)
        return jnp.sum(-0.5 * ((batch.a - mean) * jnp.exp(-log_std)) ** 2 - log_std, axis=-1)

    def report(
        self, task: Task, state: COptiDICEState, members: Sequence[Member], weights: NDArray[np.float64]
    ) -> dict[str, Any]:
        """Multipliers per raw unit of reward and cost, E[w] (1 if the flow holds), effective sample size."""
        lam = np.asarray(jax.nn.softplus(state.scalars[0])) * task.scale[1:] / task.scale[0]
        moments = np.asarray(state.moments, dtype=np.float64)
        return {
            "lambda": dict(zip(task.cost_names, lam.tolist(), strict=True)),
            "weights_mean": moments[0],
            "effective_share": moments[0] ** 2 / max(moments[1], 1e-12),
        }


def _least(copies: Copies, obs: Array) -> Array:
    """The smallest output of the copies, shape `(batch,)`."""
    values = [mlp(obs)[..., 0] for mlp in copies]
    return values[0] if len(values) == 1 else jnp.min(jnp.stack(values), axis=0)
