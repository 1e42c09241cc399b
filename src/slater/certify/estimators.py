"""The estimators of Tier 3 at work: a model ensemble and fitted Q, from the certifying episodes alone.

Needs the neural half (JAX). The ensemble, the cohorts and the clones that check it are a *study* of the log
(`slater.deep.ope.study`), kept in the user's cache with what both estimators say of those clones: the first
certificate of a log fits it. `Estimators` is what a log's certificates share; every policy that chooses from
what it sees now can be asked about.
"""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slater.certify.acting import acting, chosen, parts_of
from slater.certify.distance import outside_of, plane_of
from slater.certify.estimates import Opinion, Standing, standing
from slater.certify.modelled import ROLLOUTS, rolled_out
from slater.data import Dataset
from slater.deep.ope import finite_q
from slater.deep.ope.cloning import CloneSettings
from slater.deep.ope.closed_loop import ClosedLoop, Judged, judge
from slater.deep.ope.ensemble import EnsembleSettings
from slater.deep.ope.finite_q import FiniteQ, finite_q_of
from slater.deep.ope.in_sample import InSampleSettings
from slater.deep.ope.study import Study, StudySettings, study
from slater.deep.task import Task, normalised, scaled_actions, state_task
from slater.disk import write_atomic
from slater.limits import Limit

__all__ = [
    "CERTIFYING", "Estimators", "Said", "estimators_of", "same_settings", "settings_record", "with_limits",
]  # fmt: skip

F64 = NDArray[np.float64]

#: how a log is studied to certify by it: what judges and nothing that is chosen from (one in-sample column,
#: the least that a study has, and it is not used). Every setting is named, because the calibration that
#: comes with the package was measured with these
CERTIFYING = StudySettings(
    cohorts=6,
    ensemble=EnsembleSettings(
        copies=4, steps=3_000, batch_size=128, learning_rate=1e-3, hidden=(96, 96), outcome_hidden=(64, 64),
        seed=0,
    ),
    clones=CloneSettings(
        steps=1_200, chunk=400, batch_size=128, learning_rate=3e-3, hidden=(64, 64), seed=0
    ),
    in_sample=InSampleSettings(
        multipliers=(0.0,), temperature=0.5, steps=1, batch_size=256, learning_rate=1e-3, hidden=(8,), seed=0
    ),
)  # fmt: skip
#: states that a policy visits in the model, which are compared with the log, at most
VISITED = 1_000
#: part of the name of kept answers; to be raised when the same study would be asked in another way
VERSION = 1


def settings_record(settings: StudySettings) -> dict[str, Any]:
    """Everything that decides what the estimators say of a log, as JSON."""
    import dataclasses
    import json

    record = {
        "study": dataclasses.asdict(settings), "rollouts": ROLLOUTS, "version": VERSION,
        "fitted_q": {
            name.lower(): getattr(finite_q, name)
            for name in ("ROWS", "FEATURES", "COPIES", "RIDGE", "WIDTHS")
        },
    }  # fmt: skip
    plain: dict[str, Any] = json.loads(json.dumps(record))
    return plain


def same_settings(measured: Mapping[str, Any], settings: StudySettings) -> bool:
    """Whether estimators of `settings` are those that a record of `settings_record` was measured with.

    A setting that the record does not name is younger than it. It must have its default, by which a new
    setting leaves everything as it was.
    """

    def same(then: Any, now: Any, default: Any) -> bool:
        if not isinstance(now, dict):
            return bool(then == now)
        known = isinstance(then, dict) and set(then) <= set(now)
        return known and all(
            same(then[name], value, default[name]) if name in then else value == default[name]
            for name, value in now.items()
        )

    return same(dict(measured), settings_record(settings), settings_record(StudySettings()))


class Said(NamedTuple):
    """What both estimators say of one policy.

    reward, reward_spread: per episode, by the model ensemble; outside: share of what it does in the states
    that it visits, of which the log has nothing alike; plane: points to draw.
    """

    opinions: list[Opinion]
    reward: float
    reward_spread: float
    outside: float
    plane: dict[str, Any]


class _OfClones(NamedTuple):
    """What the estimators say of the clones of the log's K cohorts, all in the data's units per episode.

    model: (K, copies, 2+I) means by the ensemble's networks: reward, costs, length; error: (K, 2+I) of their
    mean, by the number of rollouts; fitted_q: (K, I); replays: (K, 1+I) errors in replays, in J-units
    """

    model: F64
    error: F64
    fitted_q: F64
    replays: F64


@dataclass(frozen=True, eq=False)
class Estimators:
    """Both estimators of a log, fitted; `task` has the certificate's limits, per episode.

    cache: folder in which answers about the log's own cohorts are kept; None: they are not kept
    """

    data: Dataset
    task: Task
    study: Study
    cache: Path | None = None

    @property
    def horizon(self) -> int:
        """T."""
        horizon = self.task.units.horizon
        assert horizon is not None
        return horizon

    @cached_property
    def fitted_q(self) -> FiniteQ:
        """What fitted Q of every policy shares."""
        task, data = self.task, self.data
        rows = np.flatnonzero(data.next_known)
        episode = np.repeat(np.arange(len(data.episodes)), data.episodes.lengths)[rows]
        return finite_q_of(
            normalised(data.observations[rows], task), self._logged_actions[rows], data.costs[rows],
            1.0 - data.terminals[rows], normalised(data.next_observations[rows], task), episode,
            normalised(data.initial_observations, task), self.horizon,
        )  # fmt: skip

    def modelled(self, policy: Any, seed: int) -> tuple[F64, F64]:
        """Sums over an episode by every network, (copies, n, 2+I), and states visited, (m, obs_dim)."""
        return rolled_out(policy, self.task, self.study.ensemble, self.study.initial, self.horizon, seed)

    def by_fitted_q(self, policies: Sequence[Any], seed: int) -> F64:
        """Costs per episode of policies without memory by every bootstrap of fitted Q, (P, B, I)."""
        acts = [acting(policy, self.task, np.random.default_rng(seed)) for policy in policies]
        return self.fitted_q.values([chosen(act, self.task) for act in acts])

    @cached_property
    def _of_clones(self) -> _OfClones:
        if self.cache is None:
            return self._asked_about_clones()
        text = f"{self.study.name} {settings_record(CERTIFYING)['fitted_q']} {ROLLOUTS} {VERSION}"
        path = self.cache / f"clones-{hashlib.sha256(text.encode()).hexdigest()[:20]}.npz"
        if path.exists():
            # what is damaged is asked for anew; a zip archive has checksums of its own
            with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile), np.load(path) as kept:
                return _OfClones(*(kept[name] for name in _OfClones._fields))
        found = self._asked_about_clones()
        bytes_ = io.BytesIO()
        np.savez(bytes_, **found._asdict())
        self.cache.mkdir(parents=True, exist_ok=True)
        write_atomic(path, bytes_.getvalue())
        return found

    def _asked_about_clones(self) -> _OfClones:
        clones = [self.study.policy(k).export(self.task) for k in range(len(self.study.cohorts))]
        model, error = [], []
        for cohort, clone in enumerate(clones):
            sums, _ = self.modelled(clone, 1000 + cohort)
            model.append(sums.mean(axis=1))
            error.append(np.sqrt(np.mean(sums.var(axis=1), axis=0) / (sums.shape[0] * sums.shape[1])))
        by_q = self.by_fitted_q(clones, 1000).mean(axis=1)
        return _OfClones(np.array(model), np.array(error), by_q, self.study.replays(self.data))

    def _in_j(self, values: F64) -> F64:
        """Sums per episode in the data's units and lengths, (..., 2+I), in the task's J-units."""
        size = np.append(self.task.scale / (self.horizon * (1.0 - self.task.gamma)), 1.0)
        return np.asarray(values * size)

    def check(self, task: Task | None = None) -> ClosedLoop:
        """The model's errors over the log's cohorts, by the limits of `task`."""
        asked = self._of_clones
        said = Judged(
            self._in_j(asked.model.mean(axis=1)), self._in_j(asked.model.std(axis=1, ddof=1)),
            self._in_j(asked.error),
        )  # fmt: skip
        return judge(
            task or self.task, self.study.cohorts, self.study.sums, "model ensemble", said, asked.replays
        )

    def standings(self, check: ClosedLoop, limits: Sequence[float]) -> list[Standing]:
        """What both estimators got wrong about the cohorts that count, for every cost; limits per episode.

        Errors are those of the means of episodes that are held out of the study, as shares of the cohort's
        cost or of the limit, whichever is more.
        """
        logged, _ = self.study.cohorts.means(self.study.sums, held=True)
        costs = logged[:, 1:-1] / self._in_j(np.ones(logged.shape[1]))[1:-1]
        size = np.maximum(costs, np.maximum(np.asarray(limits), 1e-9))
        by_model, by_q = self._of_clones.model.mean(axis=1)[:, 1:-1], self._of_clones.fitted_q
        relative = np.stack([by_model - costs, by_q - costs], axis=-1) / size[..., None]  # (K, I, 2)
        return [standing(relative[~check.clone_differs, i]) for i in range(len(limits))]

    @cached_property
    def _logged_actions(self) -> NDArray[np.float32]:
        """The log's actions as the networks see them, (N, action_dim)."""
        actions = scaled_actions(self.data.actions, self.task)
        if self.task.discrete:
            actions = np.eye(self.task.action_dim, dtype=np.float32)[actions]
        return np.asarray(actions, np.float32)

    @cached_property
    def _logged_states(self) -> F64:
        """The log's states, normalised, (N, obs_dim)."""
        return np.asarray(normalised(self.data.observations, self.task), dtype=np.float64)

    def _pairs(self, states: F64, actions: NDArray[Any]) -> F64:
        """States and actions side by side, each entry in units of its spread in the log."""
        size = self._logged_actions.std(axis=0)
        return np.concatenate([states, actions / np.where(size > 1e-6, size, 1.0)], axis=1)

    def judged(self, policies: Sequence[Any], seed: int = 0) -> list[Said]:
        """Both estimators on every policy; but for rounding, an answer does not depend on the others."""
        parts = [parts_of(policy) for policy in policies]
        by_q = iter(self.by_fitted_q([member for own in parts for _, member in own], seed))
        return [self._said(own, [next(by_q) for _ in own], seed) for own in parts]

    def _said(self, parts: Sequence[tuple[float, Any]], by_q: Sequence[F64], seed: int) -> Said:
        """Both estimators on a mixture of policies, (share, policy), of which fitted Q says `by_q`."""
        copies: Any = 0.0
        states, pairs = [], []
        for number, (share, member) in enumerate(parts):
            total, visited = self.modelled(member, seed + number)
            copies = copies + share * total.mean(axis=1)[:, :-1]
            # each member as often as it acts
            rng = np.random.default_rng(seed + number)
            states.append(visited[rng.permutation(len(visited))[: math.ceil(share * VISITED)]])
            actions = chosen(acting(member, self.task, rng), self.task)(states[-1])
            pairs.append(self._pairs(states[-1], actions))
        values = sum(share * own for (share, _), own in zip(parts, by_q, strict=True))
        opinions = [
            Opinion(name, tuple(one.mean(axis=0).tolist()), tuple(one.std(axis=0, ddof=1).tolist()))
            for name, one in (("model ensemble", copies[:, 1:]), ("fitted Q", np.asarray(values)))
        ]
        reward = copies[:, 0]
        return Said(
            opinions, float(reward.mean()), float(reward.std(ddof=1)), self._outside(np.concatenate(pairs)),
            self._plane(np.concatenate(states)),
        )  # fmt: skip

    @cached_property
    def _outside(self) -> Callable[[F64], float]:
        return outside_of(self._pairs(self._logged_states, self._logged_actions))

    @cached_property
    def _plane(self) -> Callable[[F64], dict[str, Any]]:
        return plane_of(self._logged_states)


def estimators_of(
    data: Dataset, limits: Sequence[Limit], gamma: float, settings: StudySettings | None, cache: Path | None
) -> Estimators:
    """The estimators of a log, from the cache where they are there; limits per episode."""
    task = state_task(data, tuple(limits), gamma)
    return Estimators(data, task, study(data, task, settings or CERTIFYING, cache), cache)


def with_limits(estimators: Estimators, limits: Sequence[Limit]) -> Task:
    """The task of the estimators with other limits, for their check."""
    own = estimators.task
    return replace(state_task(estimators.data, tuple(limits), own.gamma), scale=own.scale)
