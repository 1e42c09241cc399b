"""The one in-memory form of logged experience.

N rows, one per step, in the order of time; episodes one after the other. Readers produce it, checks
judge it, algorithms train on it. The arrays are read-only. `slater.data.store.StoredDataset` is the same
thing on disk, for data larger than memory, and shares the names used here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slater.data.episodes import Episodes
from slater.data.fingerprint import ROW_FIELDS, Fingerprint
from slater.data.frames import html, sentence, to_pandas
from slater.data.metadata import Metadata, action_bounds, doubtful_names
from slater.data.statistics import Statistics, StatisticsBuilder
from slater.errors import InputError


class UnorderedTransitions(NamedTuple):
    """Transitions without their order: what critics and policies are trained on (B rows).

    observations (B, o) float32; actions (B, a) float32 or (B,) int32; rewards (B,) float32;
    costs (B, I) float32; terminals (B,) bool; timeouts (B,) bool; next_observations (B, o) float32.
    """

    observations: NDArray[np.float32]
    actions: NDArray[Any]
    rewards: NDArray[np.float32]
    costs: NDArray[np.float32]
    terminals: NDArray[np.bool_]
    timeouts: NDArray[np.bool_]
    next_observations: NDArray[np.float32]


#: What is said where no row has a known next observation and none is terminal.
NO_TRANSITION = (
    "there is no transition: no row has a next observation, and none is terminal; if every row is an "
    "episode of one decision, mark its end as a terminal"
)


class Logged(ABC):
    """What a log in memory and one on disk have in common: what follows from their actions and episodes."""

    metadata: Metadata

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of rows N."""

    def __len__(self) -> int:
        return self.size

    @property
    @abstractmethod
    def discrete(self) -> bool:
        """Whether actions are indices rather than vectors."""

    @property
    @abstractmethod
    def _action_range(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The smallest and largest actions in the data, each (a,), or one number if they are discrete."""

    @property
    def action_dim(self) -> int:
        """Entries of a continuous action, or the number of discrete actions."""
        return self.num_actions if self.discrete else len(self.action_low)

    @cached_property
    def num_actions(self) -> int:
        """Number of discrete actions: as stated, or one more than the largest index in the data."""
        if not self.discrete:
            raise InputError("Continuous actions have no count; ask for action_low and action_high.")
        return self.metadata.num_actions or int(np.max(self._action_range[1])) + 1

    @property
    def action_low(self) -> NDArray[np.float32]:
        """Lower action bounds, shape (a,): as stated, or -1 if the data lies in [-1, 1], or its minimum."""
        return self._bounds[0]

    @property
    def action_high(self) -> NDArray[np.float32]:
        """Upper action bounds, shape (a,): as stated, or 1 if the data lies in [-1, 1], or its maximum."""
        return self._bounds[1]

    @cached_property
    def _bounds(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        if self.discrete:
            raise InputError("Discrete actions have no bounds; ask for num_actions.")
        return action_bounds(self.metadata, *self._action_range)

    @property
    @abstractmethod
    def episodes(self) -> Episodes:
        """Starts, stops, undiscounted returns and costs of the episodes."""

    @property
    def horizon(self) -> int:
        """Steps of a full episode: as stated, or those of the longest episode."""
        return self.metadata.horizon or int(self.episodes.lengths.max())

    @abstractmethod
    def subset(self, chosen: ArrayLike) -> Self:
        """The chosen episodes: a boolean mask over episodes, or their numbers."""

    def split(self, fraction: float = 0.1, seed: int = 0) -> tuple[Self, Self]:
        """Two datasets of whole episodes, the second with about `fraction` of them, drawn from `seed`."""
        kept, held = self.episodes.split(fraction, seed)
        return self.subset(kept), self.subset(held)


@dataclass(frozen=True, eq=False, repr=False)
class Dataset(Logged):
    """Logged experience in memory (N rows, o observation entries, I costs).

    Prefer `Dataset.from_arrays`, which casts, fills in what can be derived and explains what cannot.

    observations (N, o) float32
    actions (N, a) float32, or (N,) int32 for discrete actions
    rewards (N,) float32
    costs (N, I) float32, named by `cost_names`
    terminals (N,) bool: the process ended; the value of what follows is 0
    timeouts (N,) bool: the episode was cut; the process would have gone on
    next_observations (N, o) float32
    next_known (N,) bool: False where `next_observations` had to be made up (see `from_arrays`); such a
        row counts in episode sums but is no transition, and `transitions` leaves it out
    propensity (N,) float64 or None: how likely the policy that was running made the action of the row, as
        a density (continuous actions, in the units of the data) or a probability (discrete ones)
    source (E,) text or None: the name of the policy that was running in each episode
    """

    observations: NDArray[np.float32]
    actions: NDArray[Any]
    rewards: NDArray[np.float32]
    costs: NDArray[np.float32]
    terminals: NDArray[np.bool_]
    timeouts: NDArray[np.bool_]
    next_observations: NDArray[np.float32]
    next_known: NDArray[np.bool_]
    cost_names: tuple[str, ...] = ("cost",)
    metadata: Metadata = field(default_factory=Metadata)
    propensity: NDArray[np.float64] | None = None
    source: NDArray[np.str_] | None = None

    def __post_init__(self) -> None:
        size = len(self.observations)
        discrete = np.issubdtype(self.actions.dtype, np.integer)
        expected: dict[str, tuple[tuple[int | None, ...], Any]] = {
            "observations": ((size, None), np.float32),
            "actions": ((size,), np.int32) if discrete else ((size, None), np.float32),
            "rewards": ((size,), np.float32),
            "costs": ((size, len(self.cost_names)), np.float32),
            "terminals": ((size,), np.bool_),
            "timeouts": ((size,), np.bool_),
            "next_observations": (self.observations.shape, np.float32),
            "next_known": ((size,), np.bool_),
        }
        if self.propensity is not None:
            expected["propensity"] = ((size,), np.float64)
        wrong = []
        for name, (shape, dtype) in expected.items():
            array = getattr(self, name)
            fits = len(array.shape) == len(shape) and all(
                want is None or want == got for want, got in zip(shape, array.shape, strict=True)
            )
            if not fits or array.dtype != dtype:
                want = "x".join("any" if n is None else str(n) for n in shape)
                got = "x".join(map(str, array.shape))
                wrong.append(f"{name} is {got} {array.dtype} instead of {want} {np.dtype(dtype)}")
            else:
                view = array.view()
                view.flags.writeable = False
                object.__setattr__(self, name, view)
        if wrong:
            raise InputError("The arrays do not form a dataset: " + "; ".join(wrong) + ".")
        if size == 0:
            raise InputError("The dataset has no rows.")
        wrong_names = doubtful_names(self.cost_names)
        if wrong_names:
            raise InputError(f"The costs {wrong_names}.")
        if self.source is not None:
            count = len(self.episodes)
            if self.source.dtype.kind != "U" or self.source.shape != (count,):
                raise InputError(
                    f"The source must be {count} names, one per episode, "
                    f"not {self.source.shape} of {self.source.dtype}."
                )

    @classmethod
    def from_arrays(
        cls,
        *,
        observations: ArrayLike,
        actions: ArrayLike,
        rewards: ArrayLike,
        costs: ArrayLike,
        terminals: ArrayLike | None = None,
        timeouts: ArrayLike | None = None,
        next_observations: ArrayLike | None = None,
        episode: ArrayLike | None = None,
        next_known: ArrayLike | None = None,
        propensity: ArrayLike | None = None,
        source: ArrayLike | None = None,
        cost_names: Sequence[str] | None = None,
        metadata: Metadata | None = None,
    ) -> Dataset:
        """A dataset from plain arrays of N rows in the order of time.

        costs: (N,), (N, I), or a mapping from names to (N,) arrays.
        terminals, timeouts: 0/1 or bool. Either may be missing if `episode` is given.
        episode: (N,) labels, equal within an episode; the last row of each then ends it, as a timeout
            unless it is terminal. With `timeouts` given too, the last row of all ends only by a flag.
        next_observations: derived from the following row where missing. The last row of an episode has
            no following row: after a terminal nothing is needed and the row's own observation stands in;
            after a timeout (or at the end of incomplete data) the true value is unknown, so the row's own
            observation stands in and `next_known` is False: `transitions` leaves the row out, because
            bootstrapping there would be wrong, while episode sums keep its reward and costs.
        propensity: (N,) densities (continuous actions) or probabilities (discrete ones) of the actions
            under the policy that took them; above 0.
        source: names of the policies that took the actions, (E,) per episode or (N,) per row and then
            equal within an episode.
        """
        from slater.data.arrays import assemble

        return assemble(
            {
                "observations": observations,
                "actions": actions,
                "rewards": rewards,
                "costs": costs,
                "terminals": terminals,
                "timeouts": timeouts,
                "next_observations": next_observations,
                "episode": episode,
                "next_known": next_known,
                "propensity": propensity,
                "source": source,
            },
            cost_names=cost_names,
            metadata=metadata or Metadata(),
        )

    @property
    def size(self) -> int:
        """Number of rows N."""
        return len(self.observations)

    @property
    def observation_dim(self) -> int:
        """Entries of an observation."""
        return int(self.observations.shape[1])

    @property
    def discrete(self) -> bool:
        """Whether actions are indices rather than vectors."""
        return self.actions.ndim == 1

    @property
    def _action_range(self) -> tuple[NDArray[Any], NDArray[Any]]:
        return self.actions.min(axis=0), self.actions.max(axis=0)

    @cached_property
    def episodes(self) -> Episodes:
        """Starts, stops, undiscounted returns and costs of the episodes."""
        found = Episodes.of_rows(self.rewards, self.costs, self.terminals, self.timeouts)
        return replace(found, source=self.source, stated_horizon=self.metadata.horizon)

    def rows(self, start: int = 0, stop: int | None = None) -> dict[str, NDArray[Any]]:
        """The rows start .. stop-1 as columns: `ROW_FIELDS`, and of `OPTIONAL_FIELDS` those that are there.

        `source` is given per row, as in a table.
        """
        part = slice(start, stop)
        columns = {name: getattr(self, name)[part] for name in ROW_FIELDS}
        if self.propensity is not None:
            columns["propensity"] = self.propensity[part]
        if self.source is not None:
            numbers = np.arange(self.size)[part]
            columns["source"] = self.source[np.searchsorted(self.episodes.stops, numbers, side="right")]
        return columns

    @property
    def initial_observations(self) -> NDArray[np.float32]:
        """First observation of each episode, shape (E, o)."""
        return self.observations[self.episodes.starts]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of all rows and cost names: equal exactly if the content is, in any format.

        Propensities and sources are part of it where they are there.
        """
        content = Fingerprint(self.cost_names)
        content.update(self.rows())
        return content.hexdigest()

    @cached_property
    def statistics(self) -> Statistics:
        """Means, spreads and ranges over all rows."""
        builder = StatisticsBuilder()
        builder.update(vars(self))
        return builder.finish()

    @cached_property
    def hidden(self) -> tuple[str, ...]:
        """Costs, and "the next observation", of which an episode's past says more than the observation."""
        from slater.data.past import past_matters

        return past_matters(self)

    def transitions(self) -> UnorderedTransitions:
        """All rows whose next observation is known (or not needed, after a terminal); no copy if all are."""
        if not self.next_known.all():
            return self.gather(np.flatnonzero(self.next_known))
        return UnorderedTransitions(*(getattr(self, name) for name in UnorderedTransitions._fields))

    def gather(self, rows: ArrayLike) -> UnorderedTransitions:
        """The given rows, shape (B,), as a batch; a row whose next observation is unknown is refused."""
        index = np.asarray(rows)
        if not self.next_known[index].all():
            raise InputError(
                "A chosen row has no known next observation; choose rows where next_known is True."
            )
        return UnorderedTransitions(*(getattr(self, name)[index] for name in UnorderedTransitions._fields))

    def subset(self, chosen: ArrayLike) -> Dataset:
        """The chosen episodes (a boolean mask over episodes or their numbers), in the order of the data."""
        numbers = self.episodes.select(chosen)
        if len(numbers) == 0:
            raise InputError("No episode is chosen: the subset would be empty.")
        if not self.episodes.complete[numbers[:-1]].all():
            raise InputError("An incomplete episode can only be the last one of a dataset.")
        rows = np.concatenate([np.arange(self.episodes.starts[e], self.episodes.stops[e]) for e in numbers])
        whole: dict[str, Any] = {name: getattr(self, name) for name in (*ROW_FIELDS, "propensity")}
        chosen_rows: Any = {name: array[rows] for name, array in whole.items() if array is not None}
        if self.source is not None:
            chosen_rows["source"] = self.source[numbers]
        metadata = self.metadata if len(numbers) == len(self.episodes) else stated(self)
        return replace(self, metadata=metadata, **chosen_rows)

    to_pandas = to_pandas
    _repr_html_ = html

    def __repr__(self) -> str:
        return f"<{sentence(self)}>"


def stated(data: Any) -> Metadata:
    """What data in memory or on disk say of themselves, with what only their rows show.

    For a part of them, which is of the same task: its own rows may show a shorter horizon, narrower bounds
    and fewer actions, and a limit per episode would mean something else.
    """
    own: Metadata = data.metadata
    if data.discrete:
        return replace(own, horizon=data.horizon, num_actions=data.num_actions)
    low, high = (tuple(map(float, side)) for side in (data.action_low, data.action_high))
    return replace(own, horizon=data.horizon, action_low=low, action_high=high)
