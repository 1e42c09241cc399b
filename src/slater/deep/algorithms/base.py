"""What an algorithm is, for the engine: pure functions on a PyTree, and a config.

A third party registers its own under the entry point group `slater.algorithms`, name -> class; `slater
train NAME` then finds it without any change here.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
from jax import Array
from numpy.typing import NDArray

from slater.data import Dataset, StoredDataset
from slater.deep.batches import Data, draw
from slater.deep.game.dual import DualState
from slater.deep.nets.policy import Exportable
from slater.deep.ope.base import Check, Tick
from slater.deep.task import Task, state_task
from slater.errors import InputError
from slater.limit_status import LimitStatus
from slater.limits import Limits, resolve_limits


@dataclass(frozen=True)
class Config:
    """Settings that every algorithm shares."""

    steps: int = 30_000
    """gradient iterations in all"""
    batch_size: int = 512
    """transitions per iteration"""
    gamma: float = 0.99
    """discount per step, in [0, 1)"""
    hidden: tuple[int, ...] = (256, 256)
    """width of each hidden layer, of every network"""
    normalise_observations: bool = True
    """subtract the data's mean and divide by its standard deviation, per entry"""
    reward_scale: float | None = None
    """factor on rewards; None brings the 99.9th percentile of their size to 1"""
    keep_every: int = 2_500
    """iterations between members of the mixture (the paper's interval for Bullet)"""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "keep_every"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if not 0 <= self.gamma < 1:
            raise InputError(f"gamma must be in [0, 1), not {self.gamma}.")
        if not self.hidden or min(self.hidden) < 1:
            raise InputError(f"hidden needs at least one layer of width 1 or more, not {self.hidden}.")

    def require_positive(self, *names: str) -> None:
        """Refuse settings of these names that are not above 0."""
        for name in names:
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive, not {getattr(self, name)}.")


@dataclass(frozen=True)
class Member:
    """A policy kept for the mixture: the iteration it is from, and what is known about it.

    estimates: (1+I,) estimated discounted sums of scaled utilities, reward first; None if not estimated.
    careful: whether they come from a separate, converged estimate rather than from training.
    kind: "iterate", or what else it is (`slater.runs.Member`).
    spread: (1+I,) by how much the estimate's networks and rollouts disagree; None where that is not said.
    """

    step: int
    estimates: tuple[float, ...] | None = None
    careful: bool = False
    kind: str = "iterate"
    spread: tuple[float, ...] | None = None


def fit_phases(
    name: str, steps: int, phases: Mapping[str, int], needed: Callable[[Mapping[str, Any]], int]
) -> dict[str, Any]:
    """Lengths of `phases` that fit into `steps`: themselves, or all shrunk in proportion, at least 1 each.

    needed: the iterations that phases of given lengths need in all, so that the algorithm has learned what
    it is for. Refused, for the algorithm `name`, if phases of 1 need more than `steps`.
    """
    if needed(phases) <= steps:
        return dict(phases)
    if (least := needed(dict.fromkeys(phases, 1))) > steps:
        raise InputError(f"{name} needs at least {least} steps for its phases, not {steps}.")
    share = steps / (needed(phases) + 5)  # 5 for rounding up
    return {phase: max(int(length * share), 1) for phase, length in phases.items()}


def fit_preparation(wanted: int, steps: int) -> int:
    """Iterations of a phase before any policy is trained: `wanted`, but at most two thirds of `steps`."""
    return min(wanted, 2 * steps // 3)


ConfigT = TypeVar("ConfigT", bound=Config)


State = TypeVar("State")


class Algorithm(abc.ABC, Generic[ConfigT, State]):
    """One algorithm with its settings. Everything it computes with is in the state; `update` is pure."""

    name: ClassVar[str]
    Config: ClassVar[type[Config]]
    #: its name in tables and figures; `name` if it has none
    label: ClassVar[str] = ""
    #: the name under which others published figures of it, where they did
    published_as: ClassVar[str | None] = None
    #: settings to search where the user names none, each with its values as texts
    search_space: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    #: preset name -> settings that differ from the defaults
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    #: preset name -> another class that it stands for, with presets of the same name
    variants: ClassVar[Mapping[str, type[Algorithm[Any, Any]]]] = {}
    #: kinds of actions it can choose
    actions: ClassVar[tuple[Literal["continuous", "discrete"], ...]] = ("continuous", "discrete")
    #: what may help where its losses diverge, a sentence that names settings
    remedy: ClassVar[str] = "Lower its learning rates."
    #: whether one trained model takes any limits (`slater.policy.with_limits`)
    serves_all_limits: ClassVar[bool] = False
    #: whether its authors measure it by its most likely actions, not by draws
    acts_likeliest: ClassVar[bool] = False
    #: the largest number of costs it can limit; None: any
    most_costs: ClassVar[int | None] = None
    #: whether limits enter `init` and `update` as `Task.tau` and by their units alone: runs under several
    #: limits can then be one program, in which tau is an argument (`slater.deep.engine.stacked`)
    limits_are_tau: ClassVar[bool] = False
    #: a phase before all else: the setting that is its length, its name, and the name of what follows
    preparation: ClassVar[tuple[str, str, str] | None] = None
    #: whether it can learn from one shard of the data after the other; by default, unless it overrides
    #: `data`, which sees the whole dataset
    streams: ClassVar[bool] = True
    #: whether its policies are made by a likelihood of logged actions alone, however weighted: estimates from
    #: a log err less about those than about policies that were searched for (`slater.certify.conformal`)
    imitates: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "data" in cls.__dict__ and "streams" not in cls.__dict__:
            cls.streams = False
        if "name" in cls.__dict__ and "label" not in cls.__dict__:
            cls.label = cls.name

    def __init__(self, config: ConfigT) -> None:
        self.config = config

    def check(self, dataset: Dataset | StoredDataset) -> None:
        """Refuse, with an `InputError`, a dataset that this algorithm cannot learn from."""
        kind = "discrete" if dataset.discrete else "continuous"
        if kind not in self.actions:
            raise InputError(f"{self.name} chooses {self.actions[0]} actions; those of this data are {kind}.")
        if self.most_costs is not None and len(dataset.cost_names) > self.most_costs:
            raise InputError(
                f"{self.name} can limit {self.most_costs} cost at most; "
                f"this data has {len(dataset.cost_names)}: {', '.join(dataset.cost_names)}."
            )

    def config_for(self, dataset: Dataset | StoredDataset) -> ConfigT:
        """The settings with what they leave to the data and to the number of steps decided.

        A short run leaves what follows a preparation a third of its iterations at least.
        """
        if self.preparation is None:
            return self.config
        wanted = getattr(self.config, self.preparation[0])
        fitted: dict[str, Any] = {self.preparation[0]: fit_preparation(wanted, self.config.steps)}
        return replace(self.config, **fitted)

    def task(self, dataset: Dataset | StoredDataset, limits: Limits) -> Task:
        """The problem as these settings state it, under `limits` (one per cost, as `train` takes them)."""
        config = self.config
        return state_task(
            dataset, resolve_limits(limits, dataset.cost_names), config.gamma,
            normalise_observations=config.normalise_observations, reward_scale=config.reward_scale,
        )  # fmt: skip

    def informed(self, dataset: Dataset, task: Task) -> Algorithm[ConfigT, State]:
        """The algorithm with what its policies need of the data; itself unless overridden."""
        return self

    def data(self, dataset: Dataset, task: Task, data: Data) -> Any:
        """What `draw` takes from: a PyTree of device arrays; the prepared transitions unless overridden."""
        return data

    def draw(self, task: Task, data: Any, key: Array) -> Any:
        """The minibatch of one iteration, from what `data` gave."""
        return draw(data, task, key, self.config.batch_size)

    @abc.abstractmethod
    def init(self, task: Task, key: Array) -> State:
        """The state before the first iteration."""

    def prepared(self, task: Task, state: State, dataset: Dataset | StoredDataset, tick: Tick) -> State:
        """The first state of a run with what the whole dataset teaches; `tick(what, done, total)` hears."""
        return state

    @abc.abstractmethod
    def update(
        self, task: Task, state: State, batch: Any, key: Array, step: Array, phase: str
    ) -> tuple[State, dict[str, Array]]:
        """Iteration `step` (from 0) of `phase`; and scalars to log: `loss/...` must stay finite."""

    @abc.abstractmethod
    def policy(self, state: State) -> Exportable:
        """The policy of a state."""

    def phase(self, step: int) -> tuple[str, int]:
        """The phase that iteration `step` belongs to, and the first iteration after it."""
        if self.preparation is None:
            return "train", self.config.steps
        length, before, after = self.preparation
        first = int(getattr(self.config, length))
        return (before, first) if step < first else (after, self.config.steps)

    def keeps(self, done: int) -> bool:
        """Whether the policy after `done` iterations becomes a member of the mixture."""
        return done % self.config.keep_every == 0

    def estimates(self, task: Task, state: State) -> tuple[float, ...] | None:
        """The state's own estimate of its policy's utilities, see `Member`; None if it has none."""
        return None

    def member(self, task: Task, state: State, step: int) -> tuple[Exportable, Member] | None:
        """The policy to keep after iteration `step`, where `keeps` asks for one; None: nothing, after all."""
        return self.policy(state), Member(step, self.estimates(task, state))

    def report(
        self, task: Task, state: State, members: Sequence[Member], weights: NDArray[np.float64]
    ) -> dict[str, Any]:
        """What the algorithm adds to a run's result, as JSON.

        By default multipliers at the end, for utilities scaled to [0, 1], if the state has some as `dual`.
        """
        dual = getattr(state, "dual", None)
        if not isinstance(dual, DualState):
            return {}
        return {"multipliers": dict(zip(task.cost_names, np.asarray(dual.lam).tolist(), strict=True))}

    def check_estimates(self, task: Task, state: State, dataset: Dataset | StoredDataset) -> Check:
        """A last look at the data, after training: whether the state's estimates can be trusted."""
        return Check()

    def limit_status(
        self, task: Task, members: Sequence[Member], weights: NDArray[np.float64], check: Check
    ) -> Sequence[LimitStatus] | None:
        """What is known of each limit under the mixture, in the order of costs, where the algorithm knows.

        None: it is decided by the members' estimates, and by whether `check` trusts them.
        """
        return None

    def weigh(
        self, task: Task, state: State, data: Any, members: Sequence[Member], policies: Sequence[Any],
        key: Array, tick: Tick, check: Check,
    ) -> tuple[NDArray[np.float64], list[Member]]:  # fmt: skip
        """Mixture weights, shape (members,), and the members with what was learned about them.

        Uniform unless an algorithm knows better; `tick(what, done, total)` hears of long work; `check` is
        what `check_estimates` found.
        """
        return np.full(len(members), 1.0 / len(members)), list(members)


class LastIterate(Algorithm[ConfigT, State]):
    """Its answer is the policy at the end of training; members at the interval are kept besides."""

    acts_likeliest: ClassVar[bool] = True

    def keeps(self, done: int) -> bool:
        """At the interval and at the end."""
        return super().keeps(done) or done == self.config.steps

    def policy(self, state: Any) -> Exportable:
        """What the state calls `pi`, unless overridden."""
        own: Exportable = state.pi
        return own

    def weigh(
        self, task: Task, state: Any, data: Any, members: Sequence[Member],
        policies: Sequence[Any], key: Array, tick: Tick, check: Check,
    ) -> tuple[NDArray[np.float64], list[Member]]:  # fmt: skip
        """All weight on the last."""
        return np.eye(len(members))[-1], list(members)
