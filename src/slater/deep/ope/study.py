"""What a log tells before any limit is named, fitted once and used by every run on it.

    cohorts   groups of episodes, a clone of each, what each of them did       (`slater.deep.ope.cohorts`)
    columns   policies that stay with the data, over a grid of multipliers      (`slater.deep.ope.in_sample`)
    ensemble  a probabilistic model of the episodes that are not held out       (`slater.deep.ope.ensemble`)

None of it depends on a limit's size or on a run's seed: it is the data's. So it is kept in the user's cache
by the data's fingerprint, the task's units and the settings, and a sweep over limits and seeds fits it once
(a process that comes second waits for the first).

A study takes seconds. Where the check on the log's cohorts finds it wrong (`slater.deep.ope.evidence`), a
`thorough` one of the same log takes minutes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from slater.data import Dataset, StoredDataset
from slater.deep import checkpoint
from slater.deep.batches import transitions
from slater.deep.nets.policy import PolicyNetwork, make_policy
from slater.deep.ope.base import Tick
from slater.deep.ope.beside import side_by_side
from slater.deep.ope.cloning import (
    CLONE_LOG_STD,
    HELD_ROWS,
    CloneSettings,
    clone_many,
    drawn_rows,
    log_densities,
    one_of,
    thorough_clones,
)
from slater.deep.ope.closed_loop import WINDOW
from slater.deep.ope.cohorts import (
    LEAST_EPISODES,
    Cohorts,
    cohort_rows,
    episode_of_rows,
    find_cohorts,
    outcomes,
)
from slater.deep.ope.ensemble import (
    Ensemble,
    EnsembleSettings,
    careful,
    fit_ensemble,
    joined,
    networks_apart,
    random_ensemble,
    thorough_ensemble,
)
from slater.deep.ope.in_sample import InSampleSettings, gains, row_weights
from slater.deep.task import (
    Task,
    counts_episodes,
    normalised,
    raw_utilities,
    rollout_length,
    scaled_actions,
)
from slater.errors import InputError

__all__ = ["Study", "StudySettings", "can_be_studied", "study"]

F64 = NDArray[np.float64]
#: held-out episodes of a cohort that are replayed at most
MOST_REPLAYED = 20
#: rollouts of a clone by which it is compared with others of its cohort
CLOSED_LOOP_ROLLOUTS = 32
#: nats per episode up to which a clone is taken to act as its source did. 6 to 7 on CarCircle for clones that
#: cost what their sources do, 36 for one that cost 8.8 instead of 4.8
ALIKE = 10.0

#: part of a cache's name; to be raised when the same settings would give another study
VERSION = 3


@dataclass(frozen=True)
class StudySettings:
    """How a log is studied."""

    cohorts: int = 8
    """cohorts at most"""
    ensemble: EnsembleSettings = field(default_factory=EnsembleSettings)
    """of the model"""
    clones: CloneSettings = field(default_factory=CloneSettings)
    """of clones and columns"""
    in_sample: InSampleSettings = field(default_factory=InSampleSettings)
    """of the columns' weights"""
    steering: int = 0
    """networks of the ensemble that are set aside to steer a game, and judge nothing"""
    enough_sources: int | None = None
    """where a log names so many sources, their clones are the only columns; None: always in-sample ones"""

    other_clones: tuple[CloneSettings, ...] = ()
    """other ways to train the clones: of each cohort's, the one is kept that does in the ensemble what the
    cohort did"""
    grouping: CloneSettings | None = None
    """of the clones that find cohorts where the log names no sources; None: `clones`"""

    @property
    def thorough(self) -> StudySettings:
        """The same with better networks and more training, on the same cohorts; all of its networks judge."""
        clones = thorough_clones(self.clones)
        alone = replace(clones, common_steps=0, learning_rate=self.clones.learning_rate)
        return replace(
            self, ensemble=thorough_ensemble(self.ensemble), clones=clones, other_clones=(alone,),
            grouping=self.clones, steering=0,
        )  # fmt: skip

    @property
    def without_noise(self) -> StudySettings:
        """The `thorough` one with networks of squared errors, for worlds that have no noise."""
        own = self.thorough
        return replace(own, ensemble=replace(own.ensemble, squared=True))


@dataclass(frozen=True, eq=False)
class Study:
    """A studied log.

    policies: P = K + L of them (leaves with an axis P first): a clone per cohort, then the columns
    likelihoods: (P,) best mean held-out log-likelihood per row of each
    divergence: (K,) KL(policy that acted || clone) per step over held-out rows, in nats; NaN: no propensities
    ensemble: of all networks; the first `steering` of them judge nothing
    sums: (E, 2+I) what every episode did, see `outcomes`
    initial: (E, obs_dim) first observations, raw
    name: of the data, units and settings that it comes from
    """

    task: Task
    cohorts: Cohorts
    policies: PolicyNetwork
    likelihoods: F64
    divergence: F64
    ensemble: Ensemble
    sums: F64
    initial: NDArray[np.float32]
    name: str
    steering: int = 0

    @property
    def judges(self) -> Ensemble:
        """The networks that steered nothing."""
        return self.ensemble.only(slice(self.steering, None)) if self.steering else self.ensemble

    @property
    def alike(self) -> NDArray[np.bool_]:
        """Whether each clone is known to act as its cohort did, (K,): by its divergence over an episode."""
        lengths = self.cohorts.means(self.sums)[0][:, -1]
        return np.asarray(np.nan_to_num(self.divergence * lengths, nan=np.inf) <= ALIKE)

    @property
    def count(self) -> int:
        """P."""
        return len(self.likelihoods)

    def policy(self, index: int) -> PolicyNetwork:
        """Clone `index` of a cohort, or, from K on, a column."""
        return one_of(self.policies, index)

    def replays(self, dataset: Dataset) -> F64:
        """Mean error of the ensemble's sums over held-out episodes in replays, per cohort, (K, 1+I), J-units.

        Logged actions in windows of `WINDOW` steps from logged states; no clone takes part.
        """
        task, table = self.task, dataset.episodes
        chosen = [self.cohorts.episodes(k, held=True)[:MOST_REPLAYED] for k in range(len(self.cohorts))]
        windows = -(-table.lengths // WINDOW)
        # as many windows for every cohort, so that one compiled replay serves all; those too many are empty
        most = max(int(windows[held].sum()) for held in chosen)
        errors = []
        for held in chosen:
            if len(held) == 0:  # nothing was kept apart of so small a cohort: its error is not known
                errors.append(np.full(1 + task.costs, np.nan))
                continue
            starts = [np.arange(table.starts[e], table.stops[e], WINDOW) for e in held]
            stops = np.zeros(most, dtype=np.int64)
            first = np.zeros(most, dtype=np.int64)
            own = int(windows[held].sum())
            first[:own], stops[:own] = np.concatenate(starts), np.repeat(table.stops[held], windows[held])
            places = first[:, None] + np.arange(WINDOW)
            inside = places < stops[:, None]
            rows = np.where(inside, places, first[:, None])
            actions = scaled_actions(dataset.actions, task)[rows]
            if task.discrete:
                actions = np.eye(task.action_dim, dtype=np.float32)[actions]
            said = _replayed(
                self.judges, jnp.asarray(normalised(dataset.observations[first], task)),
                jnp.asarray(actions), jnp.asarray(inside, jnp.float32), jax.random.key(0),
            )  # fmt: skip
            true = (raw_utilities(dataset) * task.scale)[rows] * inside[..., None]
            total = np.asarray(said, np.float64).sum(axis=0) - true.sum(axis=(0, 1))
            errors.append(total / len(held) / (rollout_length(task) * (1.0 - task.gamma)))
        return np.array(errors)


@eqx.filter_jit
def _replayed(ensemble: Ensemble, first: Array, actions: Array, inside: Array, key: Array) -> Array:
    """Sums of utilities over windows, (n, 1+I), mean over networks; actions (n, W, a), inside (n, W)."""

    def one(network: Any, key: Array) -> Array:
        def step(carry: tuple[Array, Array, Array], now: tuple[Array, Array, Array]) -> Any:
            (s, alive, total), (a, logged, t) = carry, now
            s, utilities, end = ensemble.step(network, s, a, jax.random.fold_in(key, t))
            return (s, alive * (1.0 - end), total + (alive * logged)[:, None] * utilities), None

        start = (first, jnp.ones(len(first)), jnp.zeros((len(first), len(ensemble.utility_low))))
        moves = (jnp.moveaxis(actions, 1, 0), inside.T, jnp.arange(actions.shape[1]))
        (_, _, total), _ = jax.lax.scan(step, start, moves)
        return total

    keys = jax.random.split(key, ensemble.copies)
    return jnp.mean(jax.vmap(one)((ensemble.dynamics, ensemble.outcomes), keys), axis=0)


def study(
    dataset: Dataset, task: Task, settings: StudySettings | None = None, cache: Path | None = None,
    tick: Tick | None = None,
) -> Study:  # fmt: skip
    """The study of a log, from `cache` (a folder) where it is there already; None: fitted, and not kept.

    The last one stays in memory too: a run asks for it before and after its game. `tick` hears of the fits.
    """
    settings = settings or StudySettings()
    if cache is None:
        return _studied(dataset, task, settings, tick)
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / f"study-{study_name(dataset, task, settings)}.safetensors"
    if path in _last and path.exists():
        return replace(_last[path], task=task)
    found = _from_file(path, dataset, task, settings, tick)
    _last[path] = found
    while len(_last) > _MOST:
        _last.popitem(last=False)
    return found


#: the studies that this process asked for last, by their files: a quick one and two thorough ones
_last: OrderedDict[Path, Study] = OrderedDict()
_MOST = 3


def _from_file(path: Path, dataset: Dataset, task: Task, settings: StudySettings, tick: Tick | None) -> Study:
    from filelock import FileLock

    with FileLock(path.with_suffix(".lock")):
        if path.exists():
            with suppress(InputError):  # damaged: made anew
                return _read(path, dataset, task, settings)
        found = _studied(dataset, task, settings, tick)
        record = {
            "names": list(found.cohorts.names), "named": found.cohorts.named,
            "labels": found.cohorts.labels.tolist(), "held": found.cohorts.held.tolist(),
            "told_apart": None if found.cohorts.told_apart is None else found.cohorts.told_apart.tolist(),
            "likelihoods": found.likelihoods.tolist(), "divergence": found.divergence.tolist(),
        }  # fmt: skip
        checkpoint.save(path, (found.policies, found.ensemble), record)
    return found


def can_be_studied(dataset: Dataset | StoredDataset) -> bool:
    """Whether a log has whole episodes enough for one cohort at least."""
    return int(np.sum(dataset.episodes.complete)) >= LEAST_EPISODES


def cache_folder() -> Path:
    """The folder of studies: SLATER_CACHE, or `slater` in the user's cache folder."""
    own = os.environ.get("SLATER_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slater"
    return (Path(own) if own else base) / "studies"


def study_name(dataset: Dataset, task: Task, settings: StudySettings) -> str:
    """What the study of a log is kept under: the task but for its limits, whose unit counts; and settings."""
    record = {
        "version": VERSION, "whole": counts_episodes(task),
        "task": task.identity(dataset.fingerprint, limits=False), "settings": dataclasses.asdict(settings),
    }  # fmt: skip
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:20]


def _studied(dataset: Dataset, task: Task, settings: StudySettings, tick: Tick | None = None) -> Study:
    cohorts = find_cohorts(dataset, task, settings.grouping or settings.clones, settings.cohorts)
    enough = settings.enough_sources is not None and cohorts.named and len(cohorts) >= settings.enough_sources
    multipliers = () if enough else settings.in_sample.multipliers
    columns, episode = transitions(dataset, task), episode_of_rows(dataset)
    trains = ~cohorts.held[episode]
    count = max(int(np.bincount(cohorts.labels[episode] + 1).max()), settings.clones.batch_size)
    train, judge = cohort_rows(dataset, cohorts, count)
    rows_of = {True: [*train], False: [*judge]}
    if multipliers:
        gained = gains(dataset, task, trains, settings.in_sample)
        for part, mask, size in ((True, trains, count), (False, ~trains, HELD_ROWS)):
            rows = np.flatnonzero(mask)
            for column in range(len(multipliers)):
                chance = row_weights(gained[rows, column], settings.in_sample.temperature)
                rows_of[part].append(drawn_rows(rows, size, 0, chance))
    densities = log_densities(dataset, task)
    # rows of sources are one policy's; groups that were found by likelihood may be of several
    imitates = np.arange(len(rows_of[True])) < (len(train) if cohorts.named else 0)

    def clones(own: CloneSettings, count: int) -> Callable[[Tick], Any]:
        return partial(
            clone_many, task, jnp.asarray(columns["obs"]), jnp.asarray(columns["actions"]),
            jnp.asarray(np.stack(rows_of[True][:count])), jnp.asarray(np.stack(rows_of[False][:count])),
            own, None if densities is None else jnp.asarray(densities), imitates[:count],
        )  # fmt: skip

    seen, fitted = dataset.subset(~cohorts.held), settings.ensemble
    fits: list[Callable[[Tick], Any]]
    if fitted.left_out is None:
        fits = [partial(fit_ensemble, seen, task, fitted)]
    else:
        fits = [*networks_apart(seen, task, fitted)]
    others = [clones(own, len(train)) for own in settings.other_clones]
    steps = [own.steps for own in (settings.clones, *settings.other_clones)] + [fitted.steps] * len(fits)
    what = "model of the log" if fitted.left_out is None else "better model of the log"
    found = side_by_side([clones(settings.clones, len(imitates)), *others, *fits], steps, what, tick)
    (policies, likelihoods), ensemble = found[0], joined(found[1 + len(others) :])
    sums = outcomes(dataset, task)
    if others:
        policies, likelihoods = _as_cohorts_did(
            task, cohorts, sums, ensemble, dataset.initial_observations, found[: 1 + len(others)]
        )
    divergence = np.full(len(train), np.nan)
    if densities is not None:
        divergence = np.nanmean(densities[judge], axis=1) - likelihoods[: len(train)]
    return Study(
        task, cohorts, policies, likelihoods, divergence, ensemble, sums,
        dataset.initial_observations, study_name(dataset, task, settings), settings.steering,
    )  # fmt: skip


def _as_cohorts_did(
    task: Task, cohorts: Cohorts, sums: F64, ensemble: Ensemble, initial: NDArray[np.float32],
    tries: Sequence[tuple[PolicyNetwork, F64]],
) -> tuple[PolicyNetwork, F64]:  # fmt: skip
    """Of several clones of each cohort the one that does, in the ensemble's mean, what the cohort did.

    By return, costs and length of the cohort's episodes that are not held out, each measured by its spread
    between cohorts. tries: policies and their likelihoods; the first ones may have columns after the clones.
    """
    logged, _ = cohorts.means(sums, held=False)
    size = np.maximum(logged.std(axis=0), 1e-9)
    values = careful(task, ensemble, initial, CLOSED_LOOP_ROLLOUTS, noise=0.0)
    (policies, likelihoods), *others = tries
    for cohort in range(len(cohorts)):

        def apart(clones: PolicyNetwork, cohort: int = cohort) -> float:
            said = np.asarray(values(one_of(clones, cohort), jax.random.key(cohort)).mean, np.float64)
            return float(np.sum(np.abs(said.mean(axis=0) - logged[cohort]) / size))

        best = apart(policies)
        for clones, liked in others:
            if (now := apart(clones)) < best:
                best, likelihoods[cohort] = now, liked[cohort]
                policies = jax.tree.map(lambda old, new, k=cohort: old.at[k].set(new[k]), policies, clones)
    return policies, likelihoods


def _read(path: Path, dataset: Dataset, task: Task, settings: StudySettings) -> Study:
    record = checkpoint.read_record(path)
    count = len(record["likelihoods"])
    policies = eqx.filter_vmap(lambda k: make_policy(task, settings.clones.hidden, k, CLONE_LOG_STD))(
        jax.random.split(jax.random.key(0), count)
    )
    like = random_ensemble(task, transitions(dataset.subset([0]), task), settings.ensemble)
    (policies, ensemble), _ = checkpoint.restore(path, (policies, like))
    told = record["told_apart"]
    cohorts = Cohorts(
        tuple(record["names"]), np.array(record["labels"]), np.array(record["held"]), record["named"],
        None if told is None else np.array(told),
    )  # fmt: skip
    return Study(
        task, cohorts, policies, np.array(record["likelihoods"]), np.array(record["divergence"]), ensemble,
        outcomes(dataset, task), dataset.initial_observations, study_name(dataset, task, settings),
        settings.steering,
    )  # fmt: skip
