"""`rollout`: run a policy for some episodes and say what it earned and what it cost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.envs.episode import Episode, RunSettings, is_scalar_cost, run_episode
from slater.envs.making import make
from slater.envs.scores import Scores, dsrl_scores
from slater.envs.workers import Workers
from slater.errors import InputError
from slater.limit_status import LimitStatus
from slater.limits import Limit, Quantity, Units
from slater.policy import Policy

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    """A mean over episodes, its standard error, and a Student t interval for the mean.

    With one episode the error and the interval are not a number: nothing is known about them.
    """

    mean: float
    standard_error: float
    low: float
    high: float
    confidence: float

    @staticmethod
    def of(values: Floats, confidence: float = 0.95) -> Summary:
        """Summarise one number per episode."""
        mean, count = float(np.mean(values)), len(values)
        if count < 2:
            return Summary(mean, math.nan, math.nan, math.nan, confidence)
        from scipy.special import stdtrit  # Student's t quantiles; here because workers never need them

        error = float(np.std(values, ddof=1) / math.sqrt(count))
        half = error * float(stdtrit(count - 1, 0.5 + confidence / 2.0))
        return Summary(mean, error, mean - half, mean + half, confidence)


@dataclass(frozen=True)
class Rollout:
    """Episodes of one policy: E of them, with I named costs.

    Sums over an episode, in the environment's units; `discounted_*` weigh step t by `discount**t` and end
    with the episode, where the estimates of a run go on (`measured`).
    `cost` is the task's scalar cost, `costs` the named ones in the order of `cost_names`.
    """

    env_id: str
    env_options: Mapping[str, Any]
    cost_names: tuple[str, ...]
    seed: int
    deterministic: bool
    discount: float
    returns: Floats  # (E,)
    discounted_returns: Floats  # (E,)
    cost: Floats  # (E,)
    discounted_cost: Floats  # (E,)
    costs: Floats  # (E, I)
    discounted_costs: Floats  # (E, I)
    lengths: NDArray[np.int64]  # (E,) steps
    terminated: NDArray[np.bool_]  # (E,) ended by the task, not by the time limit
    #: wall-clock seconds of the episodes, without the start of workers
    seconds: float

    def __len__(self) -> int:
        return len(self.returns)

    def quantities(self) -> dict[str, Floats]:
        """One number per episode, by name; a named cost is `costs/NAME`."""
        return {
            "return": self.returns,
            "discounted_return": self.discounted_returns,
            "cost": self.cost,
            "discounted_cost": self.discounted_cost,
            **{
                f"{kind}/{name}": values[:, i]
                for kind, values in (("costs", self.costs), ("discounted_costs", self.discounted_costs))
                for i, name in enumerate(self.cost_names)
            },
            "length": self.lengths.astype(np.float64),
        }

    def summary(self, confidence: float = 0.95) -> dict[str, Summary]:
        """Mean, standard error and interval of every quantity."""
        if not 0.0 < confidence < 1.0:
            raise InputError(f"the confidence is {confidence}; it must be between 0 and 1.")
        return {name: Summary.of(values, confidence) for name, values in self.quantities().items()}

    def mean_costs(self, names: Sequence[str]) -> list[float]:
        """Mean cost per episode of every name; see `is_scalar_cost` for a lone one of another name."""
        if is_scalar_cost(names, self.cost_names):
            return [float(self.cost.mean())]
        return [float(self.costs[:, self.cost_names.index(name)].mean()) for name in names]

    def measured(self, name: str, horizon: int | None = None) -> dict[Quantity, float]:
        """The mean of a cost in every unit of a limit, as `Units.measure` defines them.

        Discounted sums are those of the endless process, as in estimates and limits: after a timeout they go
        on at the episode's rate.
        """
        units, episodes = self._episodes(name, horizon)
        return units.measure(*episodes)

    def cut_short(self, horizon: int | None) -> int:
        """Episodes that the time limit ended before `horizon` steps: their sums are not of whole ones."""
        return 0 if horizon is None else int(np.sum(~self.terminated & (self.lengths < horizon)))

    def status(self, limit: Limit, horizon: int | None = None) -> LimitStatus:
        """Whether the episodes kept a limit on average, in its unit.

        Where some were cut before `horizon` steps, a sum per episode that is within it says nothing.
        """
        trusted = limit.unit != "episode" or not self.cut_short(horizon)
        mean = self.measured(str(limit.cost), horizon)[limit.unit]
        return LimitStatus.by_estimate(mean, limit.value, trusted=trusted)

    def share_above(self, limit: Limit, horizon: int | None = None) -> float:
        """The share of episodes that by themselves cost more than the limit, in its own unit.

        A limit is on the mean over episodes: single ones may be above it, the more so those of a mixture.
        """
        units, episodes = self._episodes(str(limit.cost), horizon)
        return float(np.mean(units.measure_each(*episodes)[limit.unit] > limit.value))

    def _episodes(
        self, name: str, horizon: int | None
    ) -> tuple[Units, tuple[Floats, Floats, NDArray[np.int64], NDArray[np.bool_]]]:
        """The setting, and what `Units.measure` is given: sums, discounted sums, lengths, ends."""
        index = None if is_scalar_cost([name], self.cost_names) else self.cost_names.index(name)
        costs = self.cost if index is None else self.costs[:, index]
        sums = self.discounted_cost if index is None else self.discounted_costs[:, index]
        length = int(self.lengths.max()) if horizon is None else horizon
        units = Units(self.discount, length, bootstrap_timeouts=self.discount < 1)
        return units, (costs, sums, self.lengths, self.terminated)

    def scores(self, limit: float) -> Scores | None:
        """DSRL-normalised scores at a limit on the scalar cost per episode; None without constants."""
        return dsrl_scores(self.env_id, float(self.returns.mean()), float(self.cost.mean()), limit)

    def as_dict(self, limit: float | None = None, confidence: float = 0.95) -> dict[str, Any]:
        """Everything, ready for `json.dumps`; what is not a number becomes None."""
        scores = None if limit is None else self.scores(limit)
        return {
            "env_id": self.env_id,
            "env_options": dict(self.env_options),
            "seed": self.seed,
            "deterministic": self.deterministic,
            "discount": self.discount,
            "cost_names": list(self.cost_names),
            "summary": {
                name: {key: None if math.isnan(number) else number for key, number in vars(summary).items()}
                for name, summary in self.summary(confidence).items()
            },
            "scores": None if scores is None else {**vars(scores), "safe": scores.safe},
            "episodes": [
                {name: float(values[i]) for name, values in self.quantities().items()}
                | {"terminated": bool(self.terminated[i])}
                for i in range(len(self))
            ],
            "seconds": self.seconds,
            "steps_per_second": float(self.lengths.sum()) / self.seconds,
        }

    def describe(self, limit: float | None = None, confidence: float = 0.95) -> str:
        """A table for people: one line per quantity."""
        how = "deterministic" if self.deterministic else "stochastic"
        lines = [
            f"{self.env_id}: {len(self)} episodes, {how}, seed {self.seed}, discount {self.discount:g}",
            f"{'':<32}{'mean':>10}  {'std. error':>10}  {confidence:.0%} interval of the mean",
        ]
        for name, s in self.summary(confidence).items():
            if name.endswith("/cost"):
                continue  # a named cost that is the scalar cost: already there
            interval = "" if math.isnan(s.low) else f"{s.low:.2f} to {s.high:.2f}"
            error = "" if math.isnan(s.standard_error) else f"{s.standard_error:.2f}"
            lines.append(f"{name:<32}{s.mean:>10.2f}  {error:>10}  {interval}")
        lines.append(
            "(discounted sums end with the episode; estimates and /discounted limits go on after it)"
        )
        if limit is not None and (scores := self.scores(limit)) is not None:
            verdict = "safe" if scores.safe else "not safe"
            lines.append(
                f"DSRL scores at limit {limit:g} per episode: reward {scores.reward:.3f}, "
                f"cost {scores.cost:.3f} ({verdict})"
            )
        return "\n".join(lines)


#: column of a rollout -> what it has of every episode
_COLUMNS = {"returns": "total_return", "discounted_returns": "discounted_return", "lengths": "length"} | {
    name: name for name in ("cost", "discounted_cost", "costs", "discounted_costs", "terminated")
}


def _check(policy: Any, episodes: int, seed: int, discount: float) -> None:
    if not isinstance(policy, Policy):
        raise InputError(
            f"a {type(policy).__name__} is not a policy: it needs the methods act and begin of slater.policy."
        )
    if episodes < 1:
        raise InputError(f"the number of episodes is {episodes}; it must be at least 1.")
    if seed < 0:
        raise InputError(f"the seed is {seed}; it must be at least 0.")
    if not 0.0 <= discount <= 1.0:
        raise InputError(f"the discount is {discount}; it must be from 0 to 1.")


def _run(
    policy: Policy,
    env_id: str,
    episodes: int,
    workers: int | Workers,
    settings: RunSettings,
    options: dict[str, Any],
    progress: Callable[[Episode], None] | None,
) -> tuple[list[Episode], tuple[str, ...], float]:
    """The episodes in order, the names of the costs, and the seconds that the episodes took."""
    _check(policy, episodes, settings.seed, settings.discount)
    # Costs have names only once there is an environment, and a wrong id should fail here, not in a worker.
    env = make(env_id, **options)
    try:
        with ExitStack() as stack:
            if workers == 1:
                ran: Iterator[Episode] = (
                    run_episode(policy, env, index, settings) for index in range(episodes)
                )
            else:
                pool = workers if isinstance(workers, Workers) else stack.enter_context(Workers(workers))
                pool.prepare((policy, env_id, options, settings))
                ran = pool.episodes(range(episodes))
            start, done = time.perf_counter(), []
            for episode in ran:
                done.append(episode)
                if progress is not None:
                    progress(episode)
            seconds = time.perf_counter() - start
        return sorted(done, key=lambda episode: episode.index), env.cost_names, seconds
    finally:
        env.close()


def record(
    policy: Policy,
    env_id: str,
    episodes: int = 20,
    seed: int = 0,
    workers: int | Workers = 1,
    deterministic: bool = False,
    *,
    env_options: Mapping[str, Any] | None = None,
    progress: Callable[[Episode], None] | None = None,
) -> list[Episode]:
    """Run episodes as `rollout` does, and keep every step of them in `Episode.transitions`."""
    settings = RunSettings(seed=seed, deterministic=deterministic, discount=1.0, record=True)
    return _run(policy, env_id, episodes, workers, settings, dict(env_options or {}), progress)[0]


def rollout(
    policy: Policy,
    env_id: str,
    episodes: int = 20,
    seed: int = 0,
    workers: int | Workers = 1,
    deterministic: bool = False,
    *,
    discount: float = 0.99,
    env_options: Mapping[str, Any] | None = None,
    progress: Callable[[Episode], None] | None = None,
) -> Rollout:
    """Run `policy` in the environment `env_id` and report every episode.

    Episode k depends on `seed` and k alone, so the result is the same for any number of workers. One
    worker runs here; more are spawned processes of one thread each, to which the policy is pickled. Give
    an open `Workers` to use its processes again. A policy that draws, such as a mixture, starts each
    episode with `policy.begin`. `progress` is called with each episode as it ends.
    """
    options = dict(env_options or {})
    settings = RunSettings(seed=seed, deterministic=deterministic, discount=discount)
    done, names, seconds = _run(policy, env_id, episodes, workers, settings, options, progress)
    columns: dict[str, Any] = {
        name: np.array([getattr(episode, own) for episode in done]) for name, own in _COLUMNS.items()
    }
    for name in ("costs", "discounted_costs"):
        columns[name] = columns[name].reshape(episodes, len(names))
    return Rollout(env_id, options, names, seed, deterministic, discount, seconds=seconds, **columns)
