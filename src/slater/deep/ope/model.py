"""OPE by a learned model: an ensemble of networks that predict the next state, the reward and the costs.

    s' = s + Delta(s, a),    U = U(s, a),    P(end | s, a)

fitted to the data by regression; J(pi) is then the mean over rollouts of pi in the model, from the data's
first states. Where the dynamics are smooth this has three advantages over FQE. One fit serves all
policies, and a policy then takes less than a second instead of a minute. A rollout of T steps is the
episode itself, so that a limit per episode is compared with an estimate per episode. And nothing is asked
of a network about what comes after the last step of the data, where FQE has to guess.

Every rollout stays in one network of the ensemble; the spread between networks shows what the data leave
open.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from slater.data import Dataset, StoredDataset
from slater.deep.batches import Batch, Data, draw
from slater.deep.compiled import shared
from slater.deep.nets.mlp import MLP
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.ope.base import Careful, Check, Estimate, Estimator, Tick
from slater.deep.task import Task

__all__ = [
    "DynamicsModel", "ModelEstimator", "ModelFit", "ModelOPE", "careful_values", "counts_episodes",
    "fit_step", "make_model", "model_values", "suits_a_model",
]  # fmt: skip

#: a change of state of more than this many standard deviations is a fault of the simulator or of a network
LARGEST_CHANGE = 10.0
#: rollouts per network of the model in a careful estimate
CAREFUL_ROLLOUTS = 1024
#: weight of the utilities' squared errors beside those of the state's changes
UTILITY_WEIGHT = 4.0


class DynamicsModel(eqx.Module):
    """M networks from (s, a) to (change of s, utilities, logit of an end); their leaves have an axis M first.

    Statistics of the data, learned on the way: `change_square` (obs_dim,), the mean square of s' - s, whose
    root is the unit of predicted changes; `low`, `high` (obs_dim,), the range of observations, and
    `utility_low`, `utility_high` (1+I,): beyond them no network knows anything; `ends`, whether any episode
    was ended by the task (0 or 1): else small probabilities of an end would add up.
    """

    networks: MLP
    change_square: Array
    low: Array
    high: Array
    utility_low: Array
    utility_high: Array
    ends: Array

    @property
    def unit(self) -> Array:
        """The unit of predicted changes, shape (obs_dim,); 1 for an entry that never changes."""
        root = jnp.sqrt(self.change_square)
        return jnp.where(root > 1e-6, root, 1.0)

    def step(self, network: MLP, s: Array, a: Array) -> tuple[Array, Array, Array]:
        """(s', U, P(end)) by one network for a batch, each within what the data have shown."""
        out, dim = network(jnp.concatenate([s, a], axis=-1)), s.shape[-1]
        change = jnp.clip(out[:, :dim], -LARGEST_CHANGE, LARGEST_CHANGE) * self.unit
        # a tenth of the range beyond the range: a rollout that leaves it knows nothing any more
        room = 0.1 * (self.high - self.low)
        s_next = jnp.clip(s + change, self.low - room, self.high + room)
        utilities = jnp.clip(out[:, dim:-1], self.utility_low, self.utility_high)
        return s_next, utilities, self.ends * jax.nn.sigmoid(out[:, -1])


class ModelFit(eqx.Module):
    """A model in the making, with its optimiser's state and the number of iterations so far."""

    model: DynamicsModel
    opt: Any
    count: Array


def _adam(learning_rate: float, steps: int) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(learning_rate, max(steps, 1)))


def make_model(
    task: Task, hidden: tuple[int, ...], copies: int, learning_rate: float, steps: int, key: Array
) -> ModelFit:
    """`copies` networks at random; the learning rate is to fall to 0 over `steps` iterations."""
    obs, utilities = task.obs_dim, 1 + task.costs
    sizes = [obs + task.action_dim, *hidden, obs + utilities + 1]
    networks = jax.vmap(lambda k: MLP(sizes, k))(jax.random.split(key, copies))
    far = jnp.inf
    model = DynamicsModel(
        networks, jnp.zeros(obs), jnp.full(obs, far), jnp.full(obs, -far), jnp.full(utilities, far),
        jnp.full(utilities, -far), jnp.zeros(()),
    )  # fmt: skip
    return ModelFit(model, _adam(learning_rate, steps).init(networks), jnp.zeros((), jnp.int32))


def fit_step(
    fit: ModelFit, batch: Batch, gamma: float, learning_rate: float, steps: int
) -> tuple[ModelFit, Array]:
    """One iteration of regression for all networks on one minibatch; and the mean loss."""
    model, count = fit.model, fit.count + 1
    change, ended = batch.s_next - batch.s, 1.0 - batch.discount / gamma
    square = model.change_square + (jnp.mean(change**2, axis=0) - model.change_square) / count
    model = DynamicsModel(
        model.networks, square,
        jnp.minimum(model.low, jnp.minimum(batch.s, batch.s_next).min(axis=0)),
        jnp.maximum(model.high, jnp.maximum(batch.s, batch.s_next).max(axis=0)),
        jnp.minimum(model.utility_low, batch.u.min(axis=0)),
        jnp.maximum(model.utility_high, batch.u.max(axis=0)),
        jnp.maximum(model.ends, jnp.max(ended)),
    )  # fmt: skip
    dim = batch.s.shape[-1]
    goal = jnp.clip(change / model.unit, -LARGEST_CHANGE, LARGEST_CHANGE)

    def loss(network: MLP) -> Array:
        out = network(jnp.concatenate([batch.s, batch.a], axis=-1))
        return (
            jnp.mean(jnp.sum((out[:, :dim] - goal) ** 2, axis=-1))
            + UTILITY_WEIGHT * jnp.mean(jnp.sum((out[:, dim:-1] - batch.u) ** 2, axis=-1))
            + jnp.mean(optax.sigmoid_binary_cross_entropy(out[:, -1], ended))
        )

    losses, grads = jax.vmap(jax.value_and_grad(loss))(model.networks)
    updates, opt = _adam(learning_rate, steps).update(grads, fit.opt)
    networks = optax.apply_updates(model.networks, updates)
    model = eqx.tree_at(lambda m: m.networks, model, networks)
    return ModelFit(model, opt, count), jnp.mean(losses)


def counts_episodes(task: Task) -> bool:
    """Whether estimates are of whole episodes: a horizon is known and no limit is a discounted sum."""
    return task.units.horizon is not None and all(limit.unit != "discounted" for limit in task.limits)


def model_values(task: Task, model: DynamicsModel, policy: PolicyNetwork, first: Array, key: Array) -> Array:
    """J of every utility by every network, shape (M, 1+I), from the first states `first`, shape (n, obs_dim).

    In J-units of the scaled utilities, to compare with `task.tau`. Where `counts_episodes`, that is the
    mean per step over T steps times 1/(1-gamma), so that J <= tau says exactly that the undiscounted cost of
    an episode is within its limit; else it is the discounted sum, cut where 1% of its weight is left and
    scaled up by that weight.
    """
    gamma = task.gamma
    whole, horizon = counts_episodes(task), task.units.horizon
    length = (
        horizon if whole and horizon is not None else math.ceil(math.log(0.01) / math.log(max(gamma, 0.01)))
    )

    def one(network: MLP, key: Array) -> Array:
        def step(carry: tuple[Array, Array, Array], t: Array) -> tuple[tuple[Array, Array, Array], None]:
            s, alive, total = carry
            key_choice, key_action = jax.random.split(jax.random.fold_in(key, t))
            a = policy.choice(s, key_choice)
            if task.discrete:  # a choice is then the distribution; an episode takes one action of it
                a = jax.nn.one_hot(jax.random.categorical(key_action, jnp.log(a + 1e-30)), a.shape[-1])
            s_next, utilities, end = model.step(network, s, a)
            weight = 1.0 if whole else gamma**t
            total = total + weight * jnp.mean(alive[:, None] * utilities, axis=0)
            return (s_next, alive * (1.0 - end), total), None

        start = (first, jnp.ones(first.shape[0]), jnp.zeros(1 + task.costs))
        (_, _, total), _ = jax.lax.scan(step, start, jnp.arange(length))
        return total / (length * (1.0 - gamma) if whole else 1.0 - gamma**length)

    keys = jax.random.split(key, jax.tree.leaves(model.networks)[0].shape[0])
    values: Array = jax.vmap(one)(model.networks, keys)
    return values


def careful_values(task: Task, model: DynamicsModel, data: Data) -> Callable[[PolicyNetwork, Array], Array]:
    """`model_values` from many of the data's first states, compiled: (policy, key) -> (M, 1+I)."""
    return partial(shared(_compile_careful, task), model, data.initial)


def _compile_careful(task: Task) -> Callable[[DynamicsModel, Array, PolicyNetwork, Array], Array]:
    @eqx.filter_jit
    def values(model: DynamicsModel, initial: Array, policy: PolicyNetwork, key: Array) -> Array:
        key_first, key_rollout = jax.random.split(key)
        rows = jax.random.randint(key_first, (CAREFUL_ROLLOUTS,), 0, initial.shape[0])
        return model_values(task, model, policy, initial[rows], key_rollout)

    return values


def suits_a_model(dataset: Dataset | StoredDataset) -> bool:
    """Whether states are points that can move a little; one-hot observations are names, and FQE is exact."""
    seen = dataset.initial_observations
    return not bool(np.all((seen == 0) | (seen == 1)) and np.all(seen.sum(axis=1) == 1))


@dataclass(frozen=True, eq=False)
class ModelOPE:
    """Estimates of one policy after another by a model that is fitted once, to `data`.

    steps, batch_size, learning_rate: of the fit; copies: networks.
    """

    task: Task
    data: Data
    steps: int = 15_000
    batch_size: int = 256
    learning_rate: float = 1e-3
    hidden: tuple[int, ...] = (128, 128)
    copies: int = 3

    @cached_property
    def model(self) -> DynamicsModel:
        """The fitted model; the same for the same data and settings."""

        @eqx.filter_jit
        def fitted(data: Data) -> DynamicsModel:
            key_start, key_run = jax.random.split(jax.random.key(0))

            def step(index: Array, fit: ModelFit) -> ModelFit:
                batch = draw(data, self.task, jax.random.fold_in(key_run, index), self.batch_size)
                return fit_step(fit, batch, self.task.gamma, self.learning_rate, self.steps)[0]

            start = make_model(self.task, self.hidden, self.copies, self.learning_rate, self.steps, key_start)
            end: ModelFit = jax.lax.fori_loop(0, self.steps, step, start)
            return end.model

        found: DynamicsModel = fitted(self.data)
        return found

    @cached_property
    def _values(self) -> Callable[[PolicyNetwork, Array], Array]:
        return careful_values(self.task, self.model, self.data)

    def __call__(self, policy: PolicyNetwork, key: Array) -> NDArray[np.float64]:
        """J of every utility by every network, shape (copies, 1+I), in the units of `model_values`."""
        return np.asarray(self._values(policy, key), dtype=np.float64)


@dataclass(frozen=True)
class ModelEstimator(Estimator[ModelFit]):
    """Rollouts in a model that is fitted to the data before the game; one fit serves all policies.

    copies: networks of the model; steps: iterations of the fit
    """

    hidden: tuple[int, ...] = (128, 128)
    learning_rate: float = 1e-3
    copies: int = 3
    steps: int = 15_000
    judges_at_once: ClassVar[bool] = True

    @property
    def fit_steps(self) -> int:
        """Iterations of the fit."""
        return self.steps

    @property
    def policy_steps(self) -> int:
        """One: rolling out takes no training."""
        return 1

    def init(self, task: Task, key: Array) -> ModelFit:
        """All networks at random."""
        return make_model(task, self.hidden, self.copies, self.learning_rate, self.steps, key)

    def fit(self, task: Task, state: ModelFit, batch: Batch, key: Array) -> tuple[ModelFit, dict[str, Array]]:
        """One iteration of regression."""
        del key
        fit, loss = fit_step(state, batch, task.gamma, self.learning_rate, self.steps)
        return fit, {"loss/model": loss}

    def value(self, task: Task, state: ModelFit, policy: PolicyNetwork, first: Array, key: Array) -> Estimate:
        """The mean over rollouts, by every network."""
        return Estimate(model_values(task, state.model, policy, first, key))

    def careful(self, task: Task, state: ModelFit, data: Data, tick: Tick) -> Careful:
        """The same from many more first states."""
        del tick
        values = careful_values(task, state.model, data)
        return lambda policy, key: np.asarray(values(policy, key), dtype=np.float64)

    def check(self, task: Task, state: ModelFit, dataset: Dataset | StoredDataset) -> Check:
        """Logged episodes, played again in the model."""
        from slater.deep.ope.check import check_model  # which needs the model's class

        figures, warning = check_model(task, state.model, dataset)
        return Check(figures["trusted"], {"model_check": figures}, (warning,) if warning else ())
