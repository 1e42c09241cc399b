"""PDCA, Algorithm 2: the primal-dual-critic algorithm with neural networks.

Here is the game; what each player minimises is in `pdca_losses`, the settings and the schedule in
`pdca_config`, the mixture and its certificate in `pdca_output`.

The game (Hong, Li, Tewari, "A Primal-Dual-Critic Algorithm for Offline Constrained Reinforcement
Learning"), for minibatches D and limits tau on discounted costs:

    critics    f   minimises  2 E_D(f, pi; R)   + A_D(f, pi)        pessimistic about the reward
               g^i minimises  2 E_D(g^i, pi; C_i) - A_D(g^i, pi)    pessimistic about each cost
    OPE        h^i minimises    E_D(h^i, pi; C_i)
    pi-player  minimises      -A_D(f + sum_i lambda_i (tau_i - g^i), pi)
    lambda     B where h^i(s0, pi) > tau_i, else 0
    output     the uniform mixture of pi_1, ..., pi_K

The preset `paper` is that, with the appendix' settings for Bullet (`paper-rwrl`: for RWRL). The default
keeps the game and changes its parts where trials showed that they fail on networks:

    E_D        squared double-Q residual with target networks (critic = "squared") instead of the hinge
    rounds     Algorithm 1's order: joint iterations of critics and policy, then OPE of that policy, then one
               step of lambda; in closed loop a late or biased estimator is the whole error
    OPE        rollouts in a model that is fitted to the data first (`slater.deep.ope.model`): whole episodes,
               in the unit of the limit; for one-hot observations, FQE from scratch in every round
    start      a cloned policy, and critics regressed on the data's returns
    pi-player  for discrete actions the natural gradient: logits follow the advantage and cannot die
    output     the mixture that a linear program finds among the kept policies, by a careful estimate of each
               (`slater.mixing`); swinging iterates are good columns, and a clone of the best of
               the data's safe part is one more (`slater.deep.algorithms.pdca.fallback`)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from slater.data import Dataset, StoredDataset
from slater.deep.algorithms.base import Algorithm, Config, Member
from slater.deep.algorithms.pdca.config import PAPER, PDCAConfig
from slater.deep.algorithms.pdca.fallback import Fallback, clone_safe, make_fallback
from slater.deep.algorithms.pdca.losses import (
    Critics,
    actor_loss,
    clone_loss,
    critics_loss,
    printed_ope_loss,
    returns_loss,
    target_values,
)
from slater.deep.algorithms.pdca.output import aim, cautious, certificate, chosen_mixture
from slater.deep.algorithms.registry import register
from slater.deep.batches import Batch, Data
from slater.deep.game.dual import DualState, Outcome, make_dual
from slater.deep.nets.critic import Critic, make_critic
from slater.deep.nets.mlp import polyak
from slater.deep.nets.policy import PolicyNetwork, make_policy
from slater.deep.ope.check import check_model
from slater.deep.ope.fitted_q import FittedQ
from slater.deep.ope.model import ModelFit, fit_step, make_model, model_values, suits_a_model
from slater.deep.task import Task

__all__ = ["PAPER", "PDCA", "PDCAConfig", "PDCAState"]


class PDCAState(eqx.Module):
    """Everything that changes. Copies of a critic stand in a tuple; target networks mirror f, g and h.

    h: the estimated utilities' critics: costs only, or the reward first where the mixture needs it.
    lam_mean: (I,) mean of the multipliers played: lambda_bar of the paper.
    estimate: (len(h),) smoothed h(s0, pi), in J-units of the scaled utilities.
    """

    f: tuple[Critic, ...]
    g: tuple[tuple[Critic, ...], ...]
    h: tuple[Critic, ...]
    pi: PolicyNetwork
    fg_target: tuple[Any, ...]
    h_target: tuple[Critic, ...]
    opt_fg: Any
    opt_h: Any
    opt_pi: Any
    model: ModelFit | None
    fallback: Fallback | None
    dual: DualState
    lam_mean: Array
    estimate: Array


@register
class PDCA(Algorithm[PDCAConfig, PDCAState]):
    """Algorithm 2 and its repaired default; see the module's text."""

    name: ClassVar[str] = "pdca"
    limits_are_tau: ClassVar[bool] = True
    Config: ClassVar[type[Config]] = PDCAConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": PAPER,
        "fqe": {"estimator": "fqe", "joint_steps": 1_000, "steps": 37_000},
        "paper-rwrl": {**PAPER, "steps": 30_000, "batch_size": 1024, "eta_fast": 3e-4},
    }

    def __init__(self, config: PDCAConfig) -> None:
        super().__init__(config)
        self.dual = make_dual(
            config.dual, B=config.B, rate=config.dual_rate, gain=config.dual_gain, start=config.dual_start,
            levels=config.dual_levels,
        )  # fmt: skip
        self.fqe = FittedQ(config.eta_fast, config.ope_polyak, config.deflation)
        self.fast, self.slow = optax.adam(config.eta_fast), optax.adam(config.eta_slow)

    # -- the schedule -------------------------------------------------------------------------------------

    def settled(self, dataset: Dataset | StoredDataset) -> PDCAConfig:
        """The estimator auto becomes fqe where observations are one-hot, else model; parts fit into steps."""
        config = self.config
        if config.estimator == "auto":
            config = replace(config, estimator="model" if suits_a_model(dataset) else "fqe")
        return config.shortened()

    def phase(self, step: int) -> tuple[str, int]:
        """warm, fit (of the model), then rounds of joint and ope; without rounds, joint to the end."""
        return self.config.phase(step)

    def keeps(self, done: int) -> bool:
        """At the end of each round, with its estimate, and the fallback; without rounds, at the interval."""
        if self.config.ope_length == 0:
            return super().keeps(done)
        return self.config.ends_round(done) or self._is_fallback(done)

    def _is_fallback(self, step: int) -> bool:
        """Whether the member of this step is the fallback."""
        return self.config.has_fallback and step == self.config.start

    def member(self, task: Task, state: PDCAState, step: int) -> tuple[PolicyNetwork, Member] | None:
        """The state's pi with its estimate; when the model is fitted, the fallback, which has none yet."""
        if state.fallback is not None and self._is_fallback(step):
            return (state.fallback.pi, Member(step, kind="fallback")) if state.fallback.usable else None
        return state.pi, Member(step, self.estimates(task, state))

    # -- the game -----------------------------------------------------------------------------------------

    def init(self, task: Task, key: Array) -> PDCAState:
        """All networks at random, lambda at its start."""
        config, copies = self.config, 2 if self.config.critic == "squared" else 1
        key_f, key_g, key_h, key_pi = jax.random.split(key, 4)

        with_model = config.estimator == "model"
        f = self._networks(task, key_f, copies)
        g = tuple(self._networks(task, k, copies) for k in jax.random.split(key_g, task.costs))
        h = () if with_model else self._networks(task, key_h, len(self._estimated(task)))
        pi = make_policy(task, config.hidden, key_pi, (-20.0, config.log_std_max))
        return PDCAState(
            f=f, g=g, h=h, pi=pi,
            fg_target=(f, *g) if config.critic == "squared" else (),
            h_target=h if config.estimator == "fqe" else (),
            opt_fg=self.fast.init((f, g)), opt_h=self.fast.init(h), opt_pi=self.slow.init(pi),
            model=self._new_model(task, key_h) if with_model else None,
            fallback=make_fallback(task, config.hidden, config.log_std_max, self.fast, key_pi)
            if config.has_fallback else None,
            dual=self.dual.init(task.costs), lam_mean=jnp.zeros(task.costs),
            estimate=jnp.zeros(len(self._estimated(task))),
        )  # fmt: skip

    def update(
        self, task: Task, state: PDCAState, batch: Batch, key: Array, step: Array, phase: str
    ) -> tuple[PDCAState, dict[str, Array]]:
        """One iteration of Algorithm 2, or of a phase of it."""
        if phase in ("warm", "fit"):
            first, metrics = self._warm(state, batch) if phase == "warm" else self._fit(task, state, batch)
            return self._clone_safe(task, first, batch, step, metrics)
        key_s, key_next, key_initial = jax.random.split(key, 3)
        pi_s, pi_next = state.pi.choice(batch.s, key_s), state.pi.choice(batch.s_next, key_next)
        metrics = {}
        in_rounds = self.config.ope_length > 0
        if phase == "joint":
            state, metrics = self._critics(task, state, batch, pi_s, pi_next, metrics)
        if phase == "ope" and state.model is None:
            state = self._fresh_estimator(task, state, key, step)
        if (phase == "ope" or not in_rounds) and state.model is None:
            state, metrics = self._estimator(task, state, batch, pi_next, metrics)
        if phase == "joint":
            state, metrics = self._actor(task, state, batch, key_s, metrics)
        if phase == "ope" or not in_rounds:
            state = self._lambda(task, state, state.pi, batch, key_initial, step)
        for i, name in enumerate(task.cost_names):
            h = state.estimate[i - task.costs]
            metrics[f"lambda/{name}"] = state.dual.lam[i]
            metrics[f"ope/{name}"] = h / task.scale[1 + i]
            metrics[f"slack/{name}"] = (task.tau[i] - h) / task.scale[1 + i]
        if len(state.estimate) > task.costs:
            metrics["ope/reward"] = state.estimate[0] / task.scale[0]
        return state, metrics

    def _critics(
        self, task: Task, state: PDCAState, batch: Batch, pi_s: Array, pi_next: Array,
        metrics: dict[str, Array],
    ) -> tuple[PDCAState, dict[str, Array]]:  # fmt: skip
        """theta, theta^i <- Adam on 2 E + A and 2 E - A."""
        futures = target_values(task, state.fg_target, batch, pi_next)

        def loss(fg: Critics) -> tuple[Array, dict[str, Array]]:
            return critics_loss(self.config, task, fg, batch, pi_s, pi_next, futures)

        grads, parts = jax.grad(loss, has_aux=True)((state.f, state.g))
        updates, opt_fg = self.fast.update(grads, state.opt_fg)
        f, g = optax.apply_updates((state.f, state.g), updates)
        fg_target = polyak(state.fg_target, (f, *g), self.config.polyak) if state.fg_target else ()
        return replace(state, f=f, g=g, opt_fg=opt_fg, fg_target=fg_target), metrics | parts

    def _fresh_estimator(self, task: Task, state: PDCAState, key: Array, step: Array) -> PDCAState:
        """New networks h at the first iteration of a round's OPE."""
        config = self.config
        place = (step - config.start) % config.round_length

        def fresh() -> tuple[Any, ...]:
            h = self._networks(task, jax.random.fold_in(key, 1), len(state.h))
            return h, h, self.fqe.adam.init(h)

        kept = (state.h, state.h_target, state.opt_h)
        h, h_target, opt_h = jax.lax.cond(place == config.joint_steps, fresh, lambda: kept)
        return replace(state, h=h, h_target=h_target, opt_h=opt_h)

    def _networks(self, task: Task, key: Array, count: int) -> tuple[Critic, ...]:
        config, keys = self.config, jax.random.split(key, count)
        return tuple(make_critic(task, config.hidden, k, layer_norm=config.layer_norm) for k in keys)

    def _estimator(
        self, task: Task, state: PDCAState, batch: Batch, pi_next: Array, metrics: dict[str, Array]
    ) -> tuple[PDCAState, dict[str, Array]]:
        """vartheta^i <- Adam on the OPE loss: FQE, or E_D as printed."""
        estimated = self._estimated(task)
        names = [f"loss/h_{'reward' if u == 0 else task.cost_names[u - 1]}" for u in estimated]
        if state.h_target:
            (h, h_target, opt_h), losses = self.fqe.update(
                task, estimated, (state.h, state.h_target, state.opt_h), batch, pi_next
            )
            state = replace(state, h=h, h_target=h_target, opt_h=opt_h)
            return state, metrics | dict(zip(names, losses, strict=True))

        def loss(h: tuple[Critic, ...]) -> tuple[Array, dict[str, Array]]:
            return printed_ope_loss(self.config, h, names, estimated, batch, pi_next)

        grads, parts = jax.grad(loss, has_aux=True)(state.h)
        updates, opt_h = self.fast.update(grads, state.opt_h)
        return replace(state, h=optax.apply_updates(state.h, updates), opt_h=opt_h), metrics | parts

    def _actor(
        self, task: Task, state: PDCAState, batch: Batch, key: Array, metrics: dict[str, Array]
    ) -> tuple[PDCAState, dict[str, Array]]:
        """The policy: psi <- Adam on -A_D(f + sum_i lambda_i (tau_i - g^i), pi)."""

        def loss(pi: PolicyNetwork) -> Array:
            fg = (state.f, state.g)
            return actor_loss(self.config, task, pi, fg, state.dual.lam, batch, key)

        value, grads = jax.value_and_grad(loss)(state.pi)
        updates, opt_pi = self.slow.update(grads, state.opt_pi)
        pi = optax.apply_updates(state.pi, updates)
        return replace(state, pi=pi, opt_pi=opt_pi), metrics | {"loss/pi": value}

    def _lambda(
        self, task: Task, state: PDCAState, pi: PolicyNetwork, batch: Batch, key: Array, step: Array
    ) -> PDCAState:
        """z_i = tau_i - h^i(s0, pi), then the lambda-player's move (with rounds, at their end)."""
        config, length = self.config, self.config.round_length
        if state.model is not None:
            estimate = cautious(model_values(task, state.model.model, pi, batch.s0, key))
        else:
            choice = pi.choice(batch.s0, key)
            now = jnp.stack([jnp.mean(h(batch.s0, choice)) for h in state.h_target or state.h])
            # in rounds a mean over about the last eighth of OPE: single values swing with the networks
            rate = 1.0 if length == 1 else min(8.0 / config.ope_steps, 1.0)
            estimate = state.estimate + rate * (now - state.estimate)
        moves_now = (step + 1 - config.start) % length == 0
        h, tau = estimate[-task.costs :], aim(config, task)
        outcome = Outcome(estimate[0], h, tau, 1e-3 / (1.0 - task.gamma))
        moved = self.dual.respond(state.dual, outcome, key)
        dual = jax.tree.map(lambda new, old: jnp.where(moves_now, new, old), moved, state.dual)
        # lambda_bar is over the multipliers that were played, before this move
        round_number = (step + 1 - config.start) // length
        mean = state.lam_mean + (state.dual.lam - state.lam_mean) / jnp.maximum(round_number, 1)
        lam_mean = jnp.where(moves_now, mean, state.lam_mean)
        return replace(state, dual=dual, lam_mean=lam_mean, estimate=estimate)

    def _new_model(self, task: Task, key: Array) -> ModelFit:
        config = self.config
        return make_model(task, config.hidden, config.model_copies, config.eta_fast, config.model_steps, key)

    def _fit(self, task: Task, state: PDCAState, batch: Batch) -> tuple[PDCAState, dict[str, Array]]:
        """The model, by regression."""
        assert state.model is not None
        model, loss = fit_step(state.model, batch, task.gamma, self.config.eta_fast, self.config.model_steps)
        return replace(state, model=model), {"loss/model": loss}

    def _warm(self, state: PDCAState, batch: Batch) -> tuple[PDCAState, dict[str, Array]]:
        """Clone the data's policy at the fast rate; regress f and g on the data's returns."""
        value_fg, grads_fg = jax.value_and_grad(returns_loss)((state.f, state.g), batch)
        updates, opt_fg = self.fast.update(grads_fg, state.opt_fg)
        f, g = optax.apply_updates((state.f, state.g), updates)
        value_pi, grads_pi = jax.value_and_grad(clone_loss)(state.pi, batch)
        updates, opt_pi = self.fast.update(grads_pi, state.opt_pi)
        pi = optax.apply_updates(state.pi, updates)
        fg_target = (f, *g) if state.fg_target else ()
        state = replace(state, f=f, g=g, pi=pi, fg_target=fg_target, opt_fg=opt_fg, opt_pi=opt_pi)
        return state, {"loss/clone": value_pi, "loss/returns": value_fg}

    def _clone_safe(
        self, task: Task, state: PDCAState, batch: Batch, step: Array, metrics: dict[str, Array]
    ) -> tuple[PDCAState, dict[str, Array]]:
        """The fallback, if there is one."""
        if state.fallback is None:
            return state, metrics
        config = self.config
        fallback, parts = clone_safe(
            state.fallback, batch, task, aim(config, task), config.fallback_temperature, self.fast, step
        )
        return replace(state, fallback=fallback), metrics | parts

    # -- the output ---------------------------------------------------------------------------------------

    def policy(self, state: PDCAState) -> PolicyNetwork:
        """The state's pi."""
        return state.pi

    def estimates(self, task: Task, state: PDCAState) -> tuple[float, ...] | None:
        """h(s0, pi), reward first; nothing where the reward is not estimated."""
        if len(state.estimate) == task.costs:
            return None
        return tuple(float(x) for x in state.estimate)

    def choose(
        self, task: Task, state: PDCAState, data: Data, members: Sequence[Member],
        policies: Sequence[PolicyNetwork], key: Array, tick: Callable[[str, int, int], None],
        examined: Mapping[str, Any],
    ) -> tuple[NDArray[np.float64], list[Member]]:  # fmt: skip
        """Weights over the members: uniform, or the linear program with careful estimates.

        By a model that cannot be trusted, all weight is on the fallback, if there is one.
        """
        if self.config.mixture == "uniform":
            return super().choose(task, state, data, members, policies, key, tick, examined)
        model = None if state.model is None else state.model.model
        weights, better = chosen_mixture(self.config, task, model, data, members, policies, key, tick)
        clone = np.array([member.kind == "fallback" for member in members])
        if clone.any() and not examined["model_check"]["trusted"]:
            weights = clone.astype(np.float64)
        return weights, better

    def report(
        self, task: Task, state: PDCAState, members: Sequence[Member], weights: NDArray[np.float64]
    ) -> dict[str, Any]:
        """The `certificate`, and `fallback`: the share of rows it clones, its step and its weight."""
        answer = certificate(self.config, task, state.lam_mean, members, weights)
        if state.fallback is not None:
            found = [float(w) for m, w in zip(members, weights, strict=True) if m.kind == "fallback"]
            place = (
                {"step": self.config.start, "weight": found[0]} if found else {"step": None, "weight": 0.0}
            )
            answer["fallback"] = {"share": float(state.fallback.share), **place}
        return answer

    def examine(
        self, task: Task, state: PDCAState, dataset: Dataset | StoredDataset
    ) -> tuple[dict[str, Any], list[str]]:
        """Whether the model suits the data: logged episodes, played again in it."""
        if state.model is None:
            return {}, []
        figures, warning = check_model(task, state.model.model, dataset)
        if warning and state.fallback is not None and state.fallback.usable:
            warning += " The mixture is a clone of the data's rows that stayed within the limits."
        return {"model_check": figures}, [warning] if warning else []

    def _estimated(self, task: Task) -> range:
        """Utilities that are estimated: the costs; the reward too where something needs it or it is free."""
        config = self.config
        reward = config.mixture == "lp" or config.dual == "exp3" or config.estimator == "model"
        return range(0 if reward else 1, 1 + task.costs)
