"""Estimators that judge policies after a game, each behind one interface: what it says of any policy, in J.

    Rollouts       whole episodes in the log's ensemble, with as much of its noise as the log shows to be real
    ShortRollouts  the first steps in the ensemble, then fitted Q of the steps that are left
    FittedQ        fitted Q of a finite horizon from the first state on, without a model (`finite_q`)

Each gives a mean, a spread between networks or bootstraps, and the error that the number of rollouts leaves:
of the return, of every cost and of the length. Which of them judges is decided by what they say of the log's
cohorts (`slater.deep.ope.closed_loop`), before any policy of a run is looked at. The later ones cost more
and are asked where those before them fail.

**How much of the noise is real.** A network's standard deviation is the world's noise and its own misfit
together. The misfit is correlated from step to step and a simulator's noise is not: sampled at every step, it
drives policies near a boundary across it. So each policy is rolled out twice, with the noise and with none,
and the estimate is `share` of the first and the rest of the second. Over the cohorts' clones, whose worth the
log tells, some share has the least error. Noise mostly adds to a cost, and policies that a game has driven to
a boundary suffer more from it than clones do, so the share that is taken is half way from there to 1, or
nearer to it where the log rejects the noise clearly: the way is half the error with the best share by that
with all of the noise.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from slater.data import Dataset
from slater.deep.batches import transitions
from slater.deep.nets.policy import PolicyNetwork
from slater.deep.ope.base import Tick
from slater.deep.ope.closed_loop import Judged, sizes
from slater.deep.ope.cohorts import episode_of_rows
from slater.deep.ope.ensemble import careful, in_j_units, rolled, rollout_length
from slater.deep.ope.finite_q import FiniteQ, finite_q_of
from slater.deep.ope.model import counts_episodes
from slater.deep.ope.study import Study
from slater.deep.task import Task, normalised

__all__ = ["FittedQ", "Judge", "Rollouts", "ShortRollouts", "judges_of"]

F64 = NDArray[np.float64]
#: rollouts of a policy in every network, with the noise and without it
ROLLOUTS = 128
#: shares of the noise that are tried; a smaller one is taken if it leaves at most this share of the error
SHARES, CLEARLY_LESS = np.linspace(0.0, 1.0, 21), 0.95
#: rows and bootstraps of fitted Q; the part of an episode that is rolled out before it is asked
ROWS, BOOTSTRAPS, SHORT = 4_000, 2, 0.1


class Judge(abc.ABC):
    """An estimator; see the module's text.

    task: units and limits; study: of the log
    """

    name: ClassVar[str]
    #: whether it is the ensemble's word alone, so that replays in the ensemble excuse a clone that differs
    by_ensemble: ClassVar[bool] = False

    def __init__(self, task: Task, study: Study) -> None:
        self.task, self.study = task, study

    @cached_property
    def of_log(self) -> Judged:
        """What it says of the study's own policies: clones of the cohorts, then the other columns."""
        return self.estimates([self.study.policy(k) for k in range(self.study.count)], jax.random.key(0))

    @abc.abstractmethod
    def estimates(self, policies: Sequence[PolicyNetwork], key: Array, tick: Tick | None = None) -> Judged:
        """What it says of each of the policies; `tick` hears of every one."""


class Rollouts(Judge):
    """Whole episodes in the networks that steered nothing; see the module's text on noise."""

    name: ClassVar[str] = "ensemble"
    by_ensemble: ClassVar[bool] = True

    @cached_property
    def of_log(self) -> Judged:
        """Of the study's own policies."""
        return _blended(*self._own, self.share)

    @cached_property
    def share(self) -> float:
        """Of the noise that is taken for the world's, in [0, 1]."""
        with_noise, without = (said.first(len(self.study.cohorts)).mean for said in self._own)
        logged, _ = self.study.cohorts.means(self.study.sums)
        alike = self.study.alike
        counted = alike if alike.any() else np.ones(len(logged), dtype=bool)
        size = sizes(self.task, logged)[counted, :-1]

        def error(share: float) -> float:
            said = share * with_noise + (1.0 - share) * without
            # absolute, not squared: one cohort that is wrong with noise and without it must not decide
            return float(np.mean(np.abs((said - logged)[counted, :-1]) / size))

        errors = np.array([error(share) for share in SHARES])
        best = float(SHARES[errors <= errors.min() / CLEARLY_LESS].max())
        return best + (1.0 - best) / 2.0 * float(errors.min() / max(errors[-1], 1e-12))

    @cached_property
    def _own(self) -> tuple[Judged, Judged]:
        return self._both([self.study.policy(k) for k in range(self.study.count)], jax.random.key(0), None)

    def estimates(self, policies: Sequence[PolicyNetwork], key: Array, tick: Tick | None = None) -> Judged:
        """By whole episodes."""
        return _blended(*self._both(policies, key, tick), self.share)

    def _both(
        self, policies: Sequence[PolicyNetwork], key: Array, tick: Tick | None
    ) -> tuple[Judged, Judged]:
        """With the noise and without it."""
        found: tuple[list[Any], list[Any]] = ([], [])
        for number, policy in enumerate(policies):
            # one key for both: what they differ by is the noise
            own = jax.random.fold_in(key, number)
            for values, said in zip(self._values, found, strict=True):
                mean, error = (np.asarray(x, np.float64) for x in values(policy, own))
                said.append((mean, error))
            _tell(tick, number, len(policies))
        return _judged(found[0]), _judged(found[1])

    @cached_property
    def _values(self) -> tuple[Any, Any]:
        of = (self.task, self.study.judges, self.study.initial, ROLLOUTS)
        return careful(*of), careful(*of, noise=0.0)


class FittedQ(Judge):
    """Fitted Q of a finite horizon; nothing is rolled out."""

    name: ClassVar[str] = "fitted Q"

    def __init__(self, task: Task, study: Study, dataset: Dataset) -> None:
        super().__init__(task, study)
        self.dataset = dataset

    @cached_property
    def _shared(self) -> FiniteQ:
        """What the regressions of every policy share, by episodes that are not held out."""
        task, data = self.task, self.dataset.subset(~self.study.cohorts.held)
        columns = transitions(data, task)
        actions = columns["actions"]
        if task.discrete:
            actions = np.eye(task.action_dim, dtype=np.float32)[actions]
        sums = np.concatenate([columns["utilities"], np.ones((len(actions), 1), np.float32)], axis=1)
        return finite_q_of(
            columns["obs"], actions, sums, columns["discount"] > 0, columns["next_obs"],
            episode_of_rows(data), normalised(data.initial_observations, task), rollout_length(task),
            seed=0, copies=BOOTSTRAPS, most_rows=ROWS,
        )  # fmt: skip

    def _acting(self, policy: PolicyNetwork, key: Array) -> Any:
        keys = jax.random.split(key)
        return lambda s: np.asarray(_acted(self.task.discrete, policy, jnp.asarray(s), *keys))

    def estimates(self, policies: Sequence[PolicyNetwork], key: Array, tick: Tick | None = None) -> Judged:
        """By the regressions alone."""
        found = []
        for number, policy in enumerate(policies):
            values = self._shared.values([self._acting(policy, jax.random.fold_in(key, number))])[0]
            found.append((values / in_j_units(self.task), np.zeros(values.shape)))
            _tell(tick, number, len(policies))
        return _judged(found)


class ShortRollouts(FittedQ):
    """The first `SHORT` of an episode in the ensemble, fitted Q from there on."""

    name: ClassVar[str] = "short rollouts with a fitted value"

    def estimates(self, policies: Sequence[PolicyNetwork], key: Array, tick: Tick | None = None) -> Judged:
        """By both."""
        task, first = self.task, jnp.asarray(normalised(self.study.initial, self.task))
        length = rollout_length(task)
        steps = max(round(SHORT * length), 1)
        found = []
        for number, policy in enumerate(policies):
            own = jax.random.fold_in(key, number)
            act = self._acting(policy, own)
            (weights,) = self._shared.weights([act], length - steps)
            key_rows, key_rolled = jax.random.split(own)
            rows = jax.random.randint(key_rows, (ROLLOUTS,), 0, len(first))
            states, alive, total = _short(task, self.study.judges, policy, first[rows], key_rolled, steps)
            sums = []
            for s, lives, gained in zip(*map(np.asarray, (states, alive, total)), strict=True):
                rest = self._shared.to_go(weights, s, act(s), length - steps).mean(axis=1)
                sums.append(gained + lives[:, None] * rest)
            each = np.asarray(sums, np.float64) / in_j_units(task)
            found.append((each.mean(axis=1), each.std(axis=1) / np.sqrt(ROLLOUTS)))
            _tell(tick, number, len(policies))
        return _judged(found)


def judges_of(task: Task, study: Study, dataset: Dataset) -> Iterator[Judge]:
    """The estimators of a studied log, the cheapest first."""
    yield Rollouts(task, study)
    if counts_episodes(task):  # a finite horizon has no discount
        yield ShortRollouts(task, study, dataset)
        yield FittedQ(task, study, dataset)


@eqx.filter_jit
def _acted(discrete: bool, policy: PolicyNetwork, s: Array, key_choice: Array, key_action: Array) -> Array:
    a = policy.choice(s, key_choice)
    return (
        jax.nn.one_hot(jax.random.categorical(key_action, jnp.log(a + 1e-30)), a.shape[-1]) if discrete else a
    )


@eqx.filter_jit
def _short(task: Task, ensemble: Any, policy: PolicyNetwork, first: Array, key: Array, steps: int) -> Any:
    return rolled(task, ensemble, policy, first, key, steps)


def _blended(with_noise: Judged, without: Judged, share: float) -> Judged:
    """`share` of the first and the rest of the second."""
    parts = ((with_noise, share), (without, 1.0 - share))
    mean = sum(weight * said.mean for said, weight in parts)
    spread = sum(weight * said.spread for said, weight in parts)
    error = sum(weight * said.error for said, weight in parts)
    return Judged(np.asarray(mean), np.asarray(spread), np.asarray(error))


def _judged(found: Sequence[tuple[F64, F64]]) -> Judged:
    """Of means and errors of every network, (M, 2+I) each, for each of P policies."""
    mean, spread, error = [], [], []
    for copies, own in found:
        mean.append(copies.mean(axis=0))
        spread.append(copies.std(axis=0, ddof=1) if len(copies) > 1 else np.zeros(copies.shape[1]))
        error.append(np.sqrt(np.mean(own**2, axis=0) / len(copies)))
    return Judged(np.array(mean), np.array(spread), np.array(error))


def _tell(tick: Tick | None, number: int, total: int) -> None:
    if tick is not None:
        tick("estimates of the policies", number + 1, total)
