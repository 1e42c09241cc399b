"""Cohorts of a log: groups of episodes that one policy might have made, and what each of them did.

A log is a mixture of policies, and its plain clone is a policy that nobody ran. Cohorts are episodes of one
recorded source, or, where the log names none, episodes that are alike in what they did and in how they did
it: k-means on (return, costs, length), then clones of those groups, then every episode to the clone under
which its actions are likeliest. The second half matters. Outcomes alone sort by luck: where a cost is a
coin, the episodes in which it fell well are no policy, and their clone will not repeat it. Groups whose
held-out episodes the clones do not tell apart are therefore one cohort.

Held-out episodes of a cohort say what its clone is worth, up to the clone's error: that judges estimators
(`slater.deep.ope.check`), gives columns of known value, and the best mixture of cohorts within the limits
(`reference`) is what any answer must reach: below it, an answer has lost to the log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from slater.data import Dataset
from slater.deep.batches import transitions
from slater.deep.ope.cloning import HELD_ROWS, CloneSettings, clone_many, drawn_rows, log_likelihoods
from slater.deep.task import Task, counts_episodes, raw_utilities, rollout_length
from slater.mixing import lp_weights

__all__ = ["Cohorts", "Reference", "cohort_rows", "episode_of_rows", "find_cohorts", "outcomes", "reference"]

F64 = NDArray[np.float64]
#: share of every cohort's episodes that train nothing
HELD_SHARE = 0.2
#: episodes that a cohort needs: fewer say little of a mean
LEAST_EPISODES = 10
#: two groups are one if their clones tell their held-out episodes apart less often than this
TOLD_APART = 0.7


@dataclass(frozen=True, eq=False)
class Cohorts:
    """A partition of (most of) a log's episodes.

    names: (K,) of the sources, or `group 1..K` in the order of their returns
    labels: (E,) cohort of each episode, -1 for none (incomplete, or of a group too small)
    held: (E,) whether the episode is held out
    named: whether the log names its sources
    told_apart: (K,) share of held-out episodes of each cohort that its clone likes best, None if not asked
    """

    names: tuple[str, ...]
    labels: NDArray[np.int64]
    held: NDArray[np.bool_]
    named: bool
    told_apart: F64 | None = None

    def __len__(self) -> int:
        return len(self.names)

    def episodes(self, cohort: int, *, held: bool | None = None) -> NDArray[np.int64]:
        """Numbers of a cohort's episodes: all, those held out, or the others."""
        chosen = self.labels == cohort
        if held is not None:
            chosen &= self.held == held
        return np.flatnonzero(chosen)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Episodes of each, (K,)."""
        return np.bincount(self.labels[self.labels >= 0], minlength=len(self))

    def means(self, sums: F64, *, held: bool | None = None, pooled: bool = False) -> tuple[F64, F64]:
        """Mean of (E, n) `sums` over each cohort's episodes and its standard error, each (K, n).

        pooled: the error is by the spread of all episodes of the cohort; that of two held-out ones says
        little.
        """
        mean, error = [], []
        for cohort in range(len(self)):
            part = sums[self.episodes(cohort, held=held)]
            mean.append(part.mean(axis=0))
            every = sums[self.episodes(cohort)] if pooled else part
            spread = every.std(axis=0, ddof=1) if len(every) > 1 else np.abs(every[0])
            error.append(spread / np.sqrt(len(part)))
        return np.array(mean), np.array(error)

    def describe(self, dataset: Dataset) -> list[dict[str, Any]]:
        """Each cohort as JSON: episodes, mean return, costs and length in the data's units."""
        table = dataset.episodes
        rows = []
        for cohort, name in enumerate(self.names):
            own = self.episodes(cohort)
            means = table.costs_per_episode[own].mean(axis=0).tolist()
            costs = dict(zip(dataset.cost_names, means, strict=True))
            row: dict[str, Any] = {
                "name": name, "episodes": len(own), "return": float(table.returns_per_episode[own].mean()),
                "costs": costs, "length": float(table.lengths[own].mean()),
            }  # fmt: skip
            if self.told_apart is not None:
                row["told_apart"] = float(self.told_apart[cohort])
            rows.append(row)
        return rows


def outcomes(dataset: Dataset, task: Task) -> F64:
    """What every episode did, shape (E, 2+I): utilities in J-units of the task, then the length in steps.

    In the units of `slater.deep.ope.ensemble.ensemble_values`: of whole episodes, or discounted. An episode
    that was cut off goes on at its rate.
    """
    table, utilities = dataset.episodes, raw_utilities(dataset) * task.scale
    length, whole = rollout_length(task), counts_episodes(task)
    size = length * (1.0 - task.gamma) if whole else 1.0 - task.gamma**length
    weights = np.ones(length) if whole else task.gamma ** np.arange(length)
    rows = []
    for start, stop, cut in zip(table.starts, table.stops, table.cut_off, strict=True):
        stop = min(stop, start + length)
        lived = weights[: stop - start] @ utilities[start:stop]
        if cut:
            lived = lived + weights[stop - start :].sum() * utilities[start:stop].mean(axis=0)
        rows.append(lived / size)
    return np.concatenate([np.array(rows), table.lengths[:, None]], axis=1).astype(np.float64)


def find_cohorts(
    dataset: Dataset, task: Task, settings: CloneSettings, most: int = 8, seed: int = 0
) -> Cohorts:
    """The cohorts of a log, at most `most` where it names no sources.

    Sources are cohorts as they are, or, where there are more than twice `most`, grouped by mean outcomes.
    """
    source = dataset.source
    sums = outcomes(dataset, task)
    judged = dataset.episodes.judged
    if source is not None and len(set(source[judged])) > 1:
        return _of_sources(np.asarray(source), sums, judged, 2 * most, seed)
    whole = np.flatnonzero(judged)
    labels = np.full(len(sums), -1)
    labels[whole] = _groups(sums[whole], min(most, max(len(whole) // (2 * LEAST_EPISODES), 1)), seed)
    if labels.max() == 0:
        return _named(["group 1"], labels, False, seed)
    return _by_likelihood(dataset, task, settings, labels, seed)


def _named(names: list[str], labels: NDArray[np.int64], named: bool, seed: int) -> Cohorts:
    rng, held = np.random.default_rng(seed), np.zeros(len(labels), dtype=bool)
    for cohort in range(len(names)):
        own = np.flatnonzero(labels == cohort)
        take = max(round(HELD_SHARE * len(own)), 1) if len(own) > 1 else 0
        held[rng.permutation(own)[:take]] = True
    return Cohorts(tuple(names), labels, held, named)


def _of_sources(
    source: NDArray[Any], sums: F64, complete: NDArray[np.bool_], most: int, seed: int
) -> Cohorts:
    names = sorted(set(source[complete]))
    labels = np.full(len(source), -1)
    for number, name in enumerate(names):
        labels[(source == name) & complete] = number
    if len(names) > most:
        means = np.array([sums[labels == k].mean(axis=0) for k in range(len(names))])
        group = _groups(means, most, seed)
        labels = np.where(labels < 0, -1, group[labels])
        parts = [
            [name for name, g in zip(names, group, strict=True) if g == k] for k in range(group.max() + 1)
        ]
        names = [part[0] if len(part) == 1 else f"{part[0]} and {len(part) - 1} more" for part in parts]
    counts = np.bincount(labels[labels >= 0], minlength=len(names))
    kept = [k for k in range(len(names)) if counts[k] >= min(LEAST_EPISODES, counts.max())]
    places = np.full(len(names) + 1, -1)
    places[kept] = np.arange(len(kept))
    return _named([str(names[k]) for k in kept], places[labels], True, seed)


def _groups(sums: F64, count: int, seed: int) -> NDArray[np.int64]:
    """k-means labels of standardised rows, in the order of the first column's means."""
    from scipy.cluster.vq import kmeans2

    spread = sums.std(axis=0)
    varied = spread > 1e-6 * (1.0 + np.abs(sums).max(axis=0))
    if count < 2 or not varied.any():
        return np.zeros(len(sums), dtype=np.int64)
    points = (sums[:, varied] - sums[:, varied].mean(axis=0)) / spread[varied]
    best, labels = np.inf, np.zeros(len(sums), dtype=np.int64)
    for trial in range(8):
        centres, found = kmeans2(points, count, minit="++", seed=seed + trial)
        score = float(np.sum((points - centres[found]) ** 2))
        if score < best:
            best, labels = score, found.astype(np.int64)
    names = sorted(set(labels), key=lambda k: float(sums[labels == k, 0].mean()))
    return np.array([names.index(k) for k in labels])


def episode_of_rows(dataset: Dataset) -> NDArray[np.int64]:
    """The episode of each of the rows of `slater.deep.batches.transitions`, shape (N,)."""
    whole = np.repeat(np.arange(len(dataset.episodes)), dataset.episodes.lengths)
    return whole[np.flatnonzero(dataset.next_known)]


def cohort_rows(
    dataset: Dataset, cohorts: Cohorts, count: int, seed: int = 0
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Rows of `transitions` that train and that judge each cohort's clone, (K, count) and (K, HELD_ROWS)."""
    episode = episode_of_rows(dataset)
    train: list[NDArray[np.int32]] = []
    judge: list[NDArray[np.int32]] = []
    for cohort in range(len(cohorts)):
        own = cohorts.labels[episode] == cohort
        for held, found, size in ((False, train, count), (True, judge, HELD_ROWS)):
            rows = np.flatnonzero(own & (cohorts.held[episode] == held))
            # a cohort of one episode has nothing to hold out and is judged by what trained it
            found.append(drawn_rows(rows if len(rows) else np.flatnonzero(own), size, seed))
    return np.stack(train), np.stack(judge)


def _by_likelihood(
    dataset: Dataset, task: Task, settings: CloneSettings, labels: NDArray[np.int64], seed: int
) -> Cohorts:
    """Groups by outcome, one where clones do not tell them apart; then every episode to its likeliest."""
    columns = transitions(dataset, task)
    obs, actions = jnp.asarray(columns["obs"]), jnp.asarray(columns["actions"])
    episode = episode_of_rows(dataset)
    size = np.bincount(episode, minlength=len(labels))
    count = max(int(np.bincount(labels[episode][labels[episode] >= 0]).max()), settings.batch_size)
    quick = replace(settings, steps=max(settings.steps // 4, 1), chunk=max(settings.steps // 4, 1))
    cohorts = _named([f"group {k + 1}" for k in range(labels.max() + 1)], labels, False, seed)
    train, judge = cohort_rows(dataset, cohorts, count, seed)
    clones, _ = clone_many(task, obs, actions, jnp.asarray(train), jnp.asarray(judge), quick)
    rows = log_likelihoods(task, clones, obs, actions)
    total = np.stack([np.bincount(episode, rows[:, k], len(labels)) for k in range(len(cohorts))], axis=1)
    liked: F64 = np.asarray(total / np.maximum(size, 1)[:, None], dtype=np.float64)
    while (pair := _least_apart(cohorts, liked)) is not None:
        # the clone of two groups is taken to like an episode as much as the better of their two does
        liked[:, pair[0]] = liked[:, list(pair)].max(axis=1)
        liked = np.delete(liked, pair[1], axis=1)
        merged = np.where(cohorts.labels == pair[1], pair[0], cohorts.labels)
        names = [f"group {k + 1}" for k in range(len(cohorts) - 1)]
        cohorts = Cohorts(tuple(names), np.where(merged > pair[1], merged - 1, merged), cohorts.held, False)
    told = [np.mean(liked[cohorts.episodes(k, held=True)].argmax(axis=1) == k) for k in range(len(cohorts))]
    # by what they did, not by what came of it: an episode's luck is in its sums, not in its actions
    again = np.where(labels >= 0, liked.argmax(axis=1), -1)
    if np.bincount(again[again >= 0], minlength=len(cohorts)).min() >= LEAST_EPISODES:
        cohorts = _named(list(cohorts.names), again, False, seed)
    return replace(cohorts, told_apart=np.array(told))


def _least_apart(cohorts: Cohorts, liked: F64) -> tuple[int, int] | None:
    """The two cohorts whose held-out episodes are told apart least, if that is too little; before them one
    that has too few episodes to be one, and the one whose clone likes those best.
    """
    worst, pair = TOLD_APART, None
    small = int(cohorts.counts.argmin())
    if len(cohorts) > 1 and cohorts.counts[small] < LEAST_EPISODES:
        fit = liked[cohorts.episodes(small)].mean(axis=0)
        near = int(np.where(np.arange(len(cohorts)) == small, -np.inf, fit).argmax())
        return min(small, near), max(small, near)
    for i in range(len(cohorts)):
        for j in range(i + 1, len(cohorts)):
            own, other = cohorts.episodes(i, held=True), cohorts.episodes(j, held=True)
            right = np.mean(liked[own, i] > liked[own, j]) + np.mean(liked[other, j] > liked[other, i])
            if right / 2 < worst:
                worst, pair = float(right / 2), (i, j)
    return pair


@dataclass(frozen=True)
class Reference:
    """The best mixture of the log's own cohorts within the limits, by their logged means.

    weights: (K,); value: (2+I,) its utilities in J-units and its length; feasible: it keeps all limits
    """

    weights: F64
    value: F64
    feasible: bool


def reference(cohorts: Cohorts, sums: F64, tau: NDArray[Any]) -> Reference:
    """What any answer must reach; `sums` are `outcomes`, tau (I,) in their units."""
    means, _ = cohorts.means(sums)
    limits = np.asarray(tau, dtype=np.float64)
    weights = lp_weights(means[:, :-1], limits)
    value = weights @ means
    return Reference(weights, value, bool(np.all(value[1:-1] <= limits * (1 + 1e-6) + 1e-9)))
