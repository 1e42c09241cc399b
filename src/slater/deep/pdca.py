"""PDCA, Algorithm 2: the primal-dual-critic algorithm with neural networks.

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
    OPE        rollouts in a model that is fitted to the data first (`slater.deep.model`): whole episodes, in
               the unit of the limit; for one-hot observations, FQE from scratch in every round
    start      a cloned policy, and critics regressed on the data's returns
    pi-player  for discrete actions the natural gradient: logits follow the advantage and cannot die
    output     the mixture that a linear program finds among the kept policies, by a careful estimate of each
               (`slater.deep.selection`); swinging iterates are good columns
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
from slater.deep.algorithm import Algorithm, Config, Member, register
from slater.deep.critics import advantage, bellman_error, bellman_halves, residual, squared_bellman_error
from slater.deep.dual import DualState, make_dual, relative_excess
from slater.deep.estimators import FQE, FittedQ, polyak
from slater.deep.model import ModelFit, fit_step, make_model, model_values
from slater.deep.networks import Categorical, Critic, PolicyNetwork, make_critic, make_policy
from slater.deep.pdca_config import PAPER, PDCAConfig
from slater.deep.problem import Batch, Data, Problem
from slater.deep.selection import select

__all__ = ["PAPER", "PDCA", "PDCAConfig", "PDCAState"]

#: a careful estimate of a policy: J of every utility by several networks, shape (M, 1+I)
Careful = Callable[[PolicyNetwork, Array], Any]
#: rollouts per network of the model in a careful estimate
CAREFUL_ROLLOUTS = 1024


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
    dual: DualState
    lam_mean: Array
    estimate: Array


@register
class PDCA(Algorithm[PDCAConfig, PDCAState]):
    """Algorithm 2 and its repaired default; see the module's text."""

    name: ClassVar[str] = "pdca"
    Config: ClassVar[type[Config]] = PDCAConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": PAPER,
        "fqe": {"estimator": "fqe", "joint_steps": 1_000, "steps": 37_000},
        "paper-rwrl": {**PAPER, "steps": 30_000, "batch_size": 1024, "eta_fast": 3e-4},
    }

    def __init__(self, config: PDCAConfig) -> None:
        super().__init__(config)
        self.dual = make_dual(
            config.dual, B=config.B, rate=config.dual_rate, gain=config.dual_gain, start=config.dual_start
        )
        self.fqe = FittedQ(config.eta_fast, config.ope_polyak, config.deflation)
        self.fast, self.slow = optax.adam(config.eta_fast), optax.adam(config.eta_slow)

    # -- the schedule -------------------------------------------------------------------------------------

    def settled(self, dataset: Dataset | StoredDataset) -> PDCAConfig:
        """The estimator auto becomes fqe where observations are one-hot, else model; parts fit into steps."""
        config = self.config
        if config.estimator == "auto":
            seen = dataset.initial_observations
            one_hot = bool(np.all((seen == 0) | (seen == 1)) and np.all(seen.sum(axis=1) == 1))
            config = replace(config, estimator="fqe" if one_hot else "model")
        return config.shortened()

    def phase(self, step: int) -> tuple[str, int]:
        """warm, fit (of the model), then rounds of joint and ope; without rounds, joint to the end."""
        config = self.config
        if step < config.warm_steps:
            return "warm", config.warm_steps
        if step < config.start:
            return "fit", config.start
        if config.ope_length == 0:
            return "joint", config.steps
        start = config.start + (step - config.start) // config.round_length * config.round_length
        if step < start + config.joint_steps:
            return "joint", start + config.joint_steps
        return "ope", start + config.round_length

    def keeps(self, done: int) -> bool:
        """At the end of each round, with its estimate; without rounds, at the interval."""
        config = self.config
        if config.ope_length == 0:
            return super().keeps(done)
        rounds, rest = divmod(done - config.start, config.round_length)
        return rest == 0 and rounds >= 1

    # -- the game -----------------------------------------------------------------------------------------

    def init(self, problem: Problem, key: Array) -> PDCAState:
        """All networks at random, lambda at its start."""
        config, copies = self.config, 2 if self.config.critic == "squared" else 1
        key_f, key_g, key_h, key_pi = jax.random.split(key, 4)

        with_model = config.estimator == "model"
        f = self._networks(problem, key_f, copies)
        g = tuple(self._networks(problem, k, copies) for k in jax.random.split(key_g, problem.costs))
        h = () if with_model else self._networks(problem, key_h, len(self._estimated(problem)))
        pi = make_policy(problem, config.hidden, key_pi, (-20.0, config.log_std_max))
        return PDCAState(
            f=f, g=g, h=h, pi=pi,
            fg_target=(f, *g) if config.critic == "squared" else (),
            h_target=h if config.estimator == "fqe" else (),
            opt_fg=self.fast.init((f, g)), opt_h=self.fast.init(h), opt_pi=self.slow.init(pi),
            model=self._new_model(problem, key_h) if with_model else None,
            dual=self.dual.init(problem.costs), lam_mean=jnp.zeros(problem.costs),
            estimate=jnp.zeros(len(self._estimated(problem))),
        )  # fmt: skip

    def update(
        self, problem: Problem, state: PDCAState, batch: Batch, key: Array, step: Array, phase: str
    ) -> tuple[PDCAState, dict[str, Array]]:
        """One iteration of Algorithm 2, or of a phase of it."""
        if phase == "warm":
            return self._warm(state, batch)
        if phase == "fit":
            return self._fit(problem, state, batch)
        key_s, key_next, key_initial = jax.random.split(key, 3)
        pi_s, pi_next = state.pi.choice(batch.s, key_s), state.pi.choice(batch.s_next, key_next)
        metrics: dict[str, Array] = {}
        in_rounds = self.config.ope_length > 0
        if phase == "joint":
            state, metrics = self._critics(problem, state, batch, pi_s, pi_next, metrics)
        if phase == "ope" and state.model is None:
            state = self._fresh_estimator(problem, state, step)
        if (phase == "ope" or not in_rounds) and state.model is None:
            state, metrics = self._estimator(problem, state, batch, pi_next, metrics)
        if phase == "joint":
            state, metrics = self._actor(problem, state, batch, key_s, metrics)
        if phase == "ope" or not in_rounds:
            state = self._lambda(problem, state, state.pi, batch, key_initial, step)
        for i, name in enumerate(problem.cost_names):
            h = state.estimate[i - problem.costs]
            metrics[f"lambda/{name}"] = state.dual.lam[i]
            metrics[f"ope/{name}"] = h / problem.scale[1 + i]
            metrics[f"slack/{name}"] = (problem.tau[i] - h) / problem.scale[1 + i]
        if len(state.estimate) > problem.costs:
            metrics["ope/reward"] = state.estimate[0] / problem.scale[0]
        return state, metrics

    def _critics(
        self, problem: Problem, state: PDCAState, batch: Batch, pi_s: Array, pi_next: Array,
        metrics: dict[str, Array],
    ) -> tuple[PDCAState, dict[str, Array]]:  # fmt: skip
        """theta, theta^i <- Adam on 2 E + A and 2 E - A."""
        futures = [
            # what a target network says of s': pessimistic over the copies, within what a value can be
            jnp.clip(
                _pessimist(u)(jnp.stack([t(batch.s_next, pi_next) for t in copies]), axis=0),
                problem.value_low[u], problem.value_high[u],
            )
            for u, copies in enumerate(state.fg_target)
        ]  # fmt: skip

        def loss(
            fg: tuple[tuple[Critic, ...], tuple[tuple[Critic, ...], ...]],
        ) -> tuple[Array, dict[str, Array]]:
            total, parts = jnp.zeros(()), {}
            for u, copies in enumerate((fg[0], *fg[1])):
                name = "f" if u == 0 else f"g_{problem.cost_names[u - 1]}"
                for critic in copies:
                    future = futures[u] if futures else None
                    value, halves = self._critic_loss(critic, u, batch, pi_s, pi_next, future)
                    total += value
                parts[f"loss/{name}"] = value
                parts[f"E_plus/{name}"], parts[f"E_minus/{name}"] = halves
            return total, parts

        grads, parts = jax.grad(loss, has_aux=True)((state.f, state.g))
        updates, opt_fg = self.fast.update(grads, state.opt_fg)
        f, g = optax.apply_updates((state.f, state.g), updates)
        fg_target = polyak(state.fg_target, (f, *g), self.config.polyak) if state.fg_target else ()
        return replace(state, f=f, g=g, opt_fg=opt_fg, fg_target=fg_target), metrics | parts

    def _critic_loss(
        self, f: Critic, u: int, batch: Batch, pi_s: Array, pi_next: Array, future: Array | None
    ) -> tuple[Array, tuple[Array, Array]]:
        """2 E_D(f, pi; U) +- A_D(f, pi): plus for the reward (u = 0), minus for a cost; and E's halves."""
        f_sa, f_pi = f(batch.s, batch.a), f(batch.s, pi_s)
        delta = residual(f_sa, batch.u[:, u], f(batch.s_next, pi_next), batch.discount)
        A = advantage(f_pi, f_sa) * (1.0 if u == 0 else -1.0)
        halves = bellman_halves(jax.lax.stop_gradient(delta))
        if future is None:
            return 2.0 * bellman_error(delta, self.config.C) + A, halves
        delta_target = residual(f_sa, batch.u[:, u], future, batch.discount)
        # divided by 2C, so that the Bellman gradient keeps its size whatever C is
        return squared_bellman_error(delta, delta_target) + A / (2.0 * self.config.C), halves

    def _fresh_estimator(self, problem: Problem, state: PDCAState, step: Array) -> PDCAState:
        """New networks h at the first iteration of a round's OPE."""
        config = self.config
        place = (step - config.start) % config.round_length

        def fresh() -> tuple[Any, ...]:
            key = jax.random.fold_in(jax.random.key(0), step)
            h = self._networks(problem, key, len(state.h))
            return h, h, self.fqe.adam.init(h)

        kept = (state.h, state.h_target, state.opt_h)
        h, h_target, opt_h = jax.lax.cond(place == config.joint_steps, fresh, lambda: kept)
        return replace(state, h=h, h_target=h_target, opt_h=opt_h)

    def _networks(self, problem: Problem, key: Array, count: int) -> tuple[Critic, ...]:
        return tuple(make_critic(problem, self.config.hidden, k) for k in jax.random.split(key, count))

    def _estimator(
        self, problem: Problem, state: PDCAState, batch: Batch, pi_next: Array, metrics: dict[str, Array]
    ) -> tuple[PDCAState, dict[str, Array]]:
        """vartheta^i <- Adam on the OPE loss: FQE, or E_D as printed."""
        estimated = self._estimated(problem)
        names = [f"loss/h_{'reward' if u == 0 else problem.cost_names[u - 1]}" for u in estimated]
        if state.h_target:
            (h, h_target, opt_h), losses = self.fqe.update(
                problem, estimated, (state.h, state.h_target, state.opt_h), batch, pi_next
            )
            state = replace(state, h=h, h_target=h_target, opt_h=opt_h)
            return state, metrics | dict(zip(names, losses, strict=True))

        def loss(h: tuple[Critic, ...]) -> tuple[Array, dict[str, Array]]:
            parts = {}
            for critic, name, u in zip(h, names, estimated, strict=True):
                h_next = critic(batch.s_next, pi_next)
                delta = residual(critic(batch.s, batch.a), batch.u[:, u], h_next, batch.discount)
                parts[name] = bellman_error(delta, self.config.C)
            return sum(parts.values(), jnp.zeros(())), parts

        grads, parts = jax.grad(loss, has_aux=True)(state.h)
        updates, opt_h = self.fast.update(grads, state.opt_h)
        return replace(state, h=optax.apply_updates(state.h, updates), opt_h=opt_h), metrics | parts

    def _actor(
        self, problem: Problem, state: PDCAState, batch: Batch, key: Array, metrics: dict[str, Array]
    ) -> tuple[PDCAState, dict[str, Array]]:
        """The policy: psi <- Adam on -A_D(f + sum_i lambda_i (tau_i - g^i), pi)."""
        lam, config = state.dual.lam, self.config

        def z(choice: Array) -> Array:
            values = state.f[0](batch.s, choice)
            for i, copies in enumerate(state.g):
                values = values + lam[i] * (problem.tau[i] - copies[0](batch.s, choice))
            return values

        def loss(pi: PolicyNetwork) -> Array:
            if isinstance(pi, Categorical) and config.temperature > 0:
                value = self._natural_gradient(problem, pi, batch, z)
            else:
                # A_D without its second term, which pi does not enter
                value = -jnp.mean(z(pi.choice(batch.s, key)))
            if config.clone_weight > 0:
                size = jax.lax.stop_gradient(jnp.mean(jnp.abs(state.f[0](batch.s, batch.a))))
                value -= config.clone_weight * size * jnp.mean(pi.log_prob(batch.s, batch.a))
            return value

        value, grads = jax.value_and_grad(loss)(state.pi)
        updates, opt_pi = self.slow.update(grads, state.opt_pi)
        pi = optax.apply_updates(state.pi, updates)
        return replace(state, pi=pi, opt_pi=opt_pi), metrics | {"loss/pi": value}

    def _natural_gradient(
        self, problem: Problem, pi: Categorical, batch: Batch, z: Callable[[Array], Array]
    ) -> Array:
        """Exponential weights on networks: logits move along z(s,.) - z(s,pi), pulled towards uniform.

        The stationary point is softmax(A(s,.) / (temperature H)). The gradient in the logits does not
        vanish with pi(a|s), so an action that was given up can come back.
        """
        logits = pi.mlp(batch.s)
        actions = jnp.eye(problem.action_dim)
        every = jnp.stack([z(jnp.broadcast_to(a, batch.a.shape)) for a in actions], axis=-1)
        gain = every - jnp.sum(jax.nn.softmax(logits) * every, axis=-1, keepdims=True)
        gain = jax.lax.stop_gradient(gain * (1.0 - problem.gamma))
        centred = logits - jnp.mean(logits, axis=-1, keepdims=True)
        pull = 0.5 * self.config.temperature * centred**2
        return jnp.mean(jnp.sum(pull - gain * centred, axis=-1))

    def _lambda(
        self, problem: Problem, state: PDCAState, pi: PolicyNetwork, batch: Batch, key: Array, step: Array
    ) -> PDCAState:
        """z_i = tau_i - h^i(s0, pi), then the lambda-player's move (with rounds, at their end)."""
        config, length = self.config, self.config.round_length
        if state.model is not None:
            estimate = _cautious(model_values(problem, state.model.model, pi, batch.s0, key))
        else:
            choice = pi.choice(batch.s0, key)
            now = jnp.stack([jnp.mean(h(batch.s0, choice)) for h in state.h_target or state.h])
            # in rounds a mean over about the last eighth of OPE: single values swing with the networks
            rate = 1.0 if length == 1 else min(8.0 / config.ope_steps, 1.0)
            estimate = state.estimate + rate * (now - state.estimate)
        moves_now = (step + 1 - config.start) % length == 0
        floor = 1e-3 / (1.0 - problem.gamma)
        moved = self.dual.update(
            state.dual, relative_excess(estimate[-problem.costs :], self._tau(problem), floor)
        )
        dual = jax.tree.map(lambda new, old: jnp.where(moves_now, new, old), moved, state.dual)
        # lambda_bar is over the multipliers that were played, before this move
        round_number = (step + 1 - config.start) // length
        mean = state.lam_mean + (state.dual.lam - state.lam_mean) / jnp.maximum(round_number, 1)
        lam_mean = jnp.where(moves_now, mean, state.lam_mean)
        return replace(state, dual=dual, lam_mean=lam_mean, estimate=estimate)

    def _new_model(self, problem: Problem, key: Array) -> ModelFit:
        config = self.config
        return make_model(
            problem, config.hidden, config.model_copies, config.eta_fast, config.model_steps, key
        )

    def _fit(self, problem: Problem, state: PDCAState, batch: Batch) -> tuple[PDCAState, dict[str, Array]]:
        """The model, by regression."""
        assert state.model is not None
        model, loss = fit_step(
            state.model, batch, problem.gamma, self.config.eta_fast, self.config.model_steps
        )
        return replace(state, model=model), {"loss/model": loss}

    def _warm(self, state: PDCAState, batch: Batch) -> tuple[PDCAState, dict[str, Array]]:
        """Clone the data's policy at the fast rate; regress f and g on the data's returns."""

        def regression(critic: Critic, u: int) -> Array:
            return jnp.mean((critic(batch.s, batch.a) - batch.returns[:, u]) ** 2)

        def loss_fg(fg: tuple[tuple[Critic, ...], tuple[tuple[Critic, ...], ...]]) -> Array:
            pairs = ((c, u) for u, copies in enumerate((fg[0], *fg[1])) for c in copies)
            return sum((regression(c, u) for c, u in pairs), jnp.zeros(()))

        def loss_pi(pi: PolicyNetwork) -> Array:
            return -jnp.mean(pi.log_prob(batch.s, batch.a))

        value_fg, grads_fg = jax.value_and_grad(loss_fg)((state.f, state.g))
        updates, opt_fg = self.fast.update(grads_fg, state.opt_fg)
        f, g = optax.apply_updates((state.f, state.g), updates)
        value_pi, grads_pi = jax.value_and_grad(loss_pi)(state.pi)
        updates, opt_pi = self.fast.update(grads_pi, state.opt_pi)
        pi = optax.apply_updates(state.pi, updates)
        fg_target = (f, *g) if state.fg_target else ()
        state = replace(state, f=f, g=g, pi=pi, fg_target=fg_target, opt_fg=opt_fg, opt_pi=opt_pi)
        return state, {"loss/clone": value_pi, "loss/returns": value_fg}

    # -- the output ---------------------------------------------------------------------------------------

    def policy(self, state: PDCAState) -> PolicyNetwork:
        """The state's pi."""
        return state.pi

    def estimates(self, problem: Problem, state: PDCAState) -> tuple[float, ...] | None:
        """h(s0, pi), reward first; nothing where the reward is not estimated."""
        if len(state.estimate) == problem.costs:
            return None
        return tuple(float(x) for x in state.estimate)

    def choose(
        self, problem: Problem, state: PDCAState, data: Data, members: Sequence[Member],
        policies: Sequence[PolicyNetwork], key: Array, tick: Callable[[str, int, int], None],
    ) -> tuple[NDArray[np.float64], list[Member]]:  # fmt: skip
        """Weights over the members: uniform, or the linear program with careful estimates."""
        config = self.config
        if config.mixture == "uniform":
            return super().choose(problem, state, data, members, policies, key, tick)
        if state.model is not None:
            careful, most = self._careful_model(problem, state.model, data), len(members)
        else:
            careful, most = self._careful_fqe(problem, data, tick), config.select_limit

        def refine(index: int) -> NDArray[np.float64]:
            copies = careful(policies[index], jax.random.fold_in(key, members[index].step))
            tick(f"policy of step {members[index].step}", 1, 1)
            return np.asarray(_cautious(jnp.asarray(copies)), dtype=np.float64)

        quick = np.array([m.estimates for m in members], dtype=np.float64)
        weights, used, refined = select(quick, np.asarray(self._tau(problem), np.float64), refine, most)
        better = [Member(m.step, tuple(used[k]), careful=k in refined) for k, m in enumerate(members)]
        return weights, better

    def _careful_model(self, problem: Problem, fit: ModelFit, data: Data) -> Careful:
        """Many rollouts in the model."""

        @eqx.filter_jit
        def values(policy: PolicyNetwork, key: Array) -> Array:
            key_first, key_rollout = jax.random.split(key)
            rows = jax.random.randint(key_first, (CAREFUL_ROLLOUTS,), 0, data.initial.shape[0])
            return model_values(problem, fit.model, policy, data.initial[rows], key_rollout)

        return values

    def _careful_fqe(self, problem: Problem, data: Data, tick: Callable[[str, int, int], None]) -> Careful:
        """FQE from scratch."""
        config = self.config
        fqe = FQE(
            problem, data, steps=config.select_steps, batch_size=config.batch_size, hidden=config.hidden,
            learning_rate=config.eta_fast, polyak_rate=config.ope_polyak, deflation=config.deflation,
            copies=config.select_copies,
        )  # fmt: skip
        return lambda policy, key: fqe(policy, key, lambda done: tick("FQE of a policy", done, fqe.steps))

    def report(
        self, problem: Problem, state: PDCAState, members: Sequence[Member], weights: NDArray[np.float64]
    ) -> dict[str, Any]:
        """Multipliers, slack, and an offline estimate of the duality gap, all in the data's units.

            gap = max_pi [J_R - lam_bar.J_C](pi) + lam_bar.tau - [J_R - B max_i (J_Ci - tau_i)_+](mixture)

        with FQE estimates for J, and the best of the kept policies for the maximum over all: an estimate
        from below, honest only as far as those policies and FQE are.
        """
        names, lam = problem.cost_names, np.asarray(state.lam_mean, dtype=np.float64)
        rate = problem.scale[1:] / problem.scale[0]
        answer: dict[str, Any] = {"lambda_mean": dict(zip(names, (lam * rate).tolist(), strict=True))}
        if all(member.estimates is not None for member in members):
            J = np.array([member.estimates for member in members])
            tau = problem.tau.astype(np.float64)
            mixed = weights @ J
            upper = float(np.max(J[:, 0] - J[:, 1:] @ lam) + lam @ tau)
            lower = float(mixed[0] - self.config.B * max(np.max(mixed[1:] - tau), 0.0))
            slack = (tau - mixed[1:]) / problem.scale[1:]
            answer["slack"] = dict(zip(names, slack.tolist(), strict=True))
            answer["duality_gap_estimate"] = (upper - lower) / float(problem.scale[0])
        return answer

    def _tau(self, problem: Problem) -> Array:
        """The limits to aim at, shape (I,): tau less the margin."""
        return jnp.asarray(problem.tau * (1.0 - self.config.margin))

    def _estimated(self, problem: Problem) -> range:
        """Utilities that h estimates: all where the mixture is chosen by estimates, else the costs."""
        return range(0 if self.config.mixture == "lp" else 1, 1 + problem.costs)


def _pessimist(u: int) -> Callable[..., Array]:
    """The smaller value of a reward, the larger one of a cost."""
    return jnp.min if u == 0 else jnp.max


def _cautious(copies: Array) -> Array:
    """One estimate per utility, shape (1+I,), from several, shape (M, 1+I): mean reward, largest cost."""
    return jnp.append(jnp.mean(copies[:, 0]), jnp.max(copies[:, 1:], axis=0))
