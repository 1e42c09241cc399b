"""From behaviours to a dataset: every source is run for some episodes, its name and its densities kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from slater import __version__
from slater.collect.behaviour import Behaviour, load_behaviour
from slater.collect.recorded import RecordedEpisodes
from slater.collect.sources import ClippedSource, SourcePolicy, SquashedSource, UniformSource
from slater.data import Dataset, Metadata
from slater.envs import Workers, make, record
from slater.errors import InputError
from slater.policy import CategoricalPolicy, GaussianPolicy


@dataclass(frozen=True)
class Recording:
    """How the sources of a behaviour are recorded; the same recording gives the same data, on the same
    machine.

    episodes: of each source
    noise: `squashed`: standard deviation added to the policy's own before the tanh; `clipped`: standard
        deviation in half action ranges, added to the action, which is then clipped (the paper's way, with
        .15); actions that are numbers: probability of a uniform one
    mean_only: the policy's own randomness is left out, only the noise is there
    thin: episodes to keep in all, taken evenly from a grid of return and cost; None: all
    """

    episodes: int = 100
    noise: float = 0.1
    how: Literal["squashed", "clipped"] = "squashed"
    mean_only: bool = False
    seed: int = 1
    thin: int | None = None

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise InputError(f"episodes must be at least 1, not {self.episodes}.")
        if self.thin is not None and self.thin < 1:
            raise InputError(f"thin must be at least 1, not {self.thin}.")
        if not 0.0 <= self.noise < np.inf:
            raise InputError(f"noise must be a number of at least 0, not {self.noise}.")
        if self.noise == 0.0 and (self.mean_only or self.how == "clipped"):
            raise InputError("noise must be above 0 here: without it, actions have no density.")
        if self.seed < 0:
            raise InputError(f"the seed must be at least 0, not {self.seed}.")
        if self.how not in ("squashed", "clipped"):
            raise InputError(f"sources are recorded squashed or clipped, not {self.how!r}.")


#: the paper's way of recording, as fields of a `Recording`: a draw of the policy plus noise on the action
PAPER_WAY: Mapping[str, Any] = {"how": "clipped", "noise": 0.15}


def recorded_source(policy: GaussianPolicy | CategoricalPolicy, recording: Recording) -> SourcePolicy:
    """The policy as it is recorded; it also gives the densities that the log holds."""
    if isinstance(policy, CategoricalPolicy):
        return UniformSource(policy, recording.noise, recording.mean_only)
    kind = SquashedSource if recording.how == "squashed" else ClippedSource
    return kind(policy, recording.noise, recording.mean_only)


def record_behaviour(
    behaviour: Behaviour | str | Path,
    recording: Recording,
    *,
    workers: int = 1,
    progress: Callable[[str, int], None] | None = None,
) -> Dataset:
    """Run every source of `behaviour` (or of the file of that name) and keep all its episodes.

    workers: processes that run episodes; the data do not depend on it. progress(source, episodes of it so
    far) hears of every episode.
    """
    file = {}
    if not isinstance(behaviour, Behaviour):
        path = Path(behaviour)
        behaviour = load_behaviour(path)
        file = {"behaviour": path.name, "behaviour sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    env = make(behaviour.env_id)
    costs, space = env.cost_names, env.action_space
    env.close()
    rows = RecordedEpisodes()
    with Workers(workers) if workers > 1 else nullcontext(1) as running:
        for number, trained in enumerate(behaviour.sources):
            source = recorded_source(trained.policy, recording)
            count = 0

            def heard(_: Any, name: str = trained.name) -> None:
                nonlocal count
                count += 1
                if progress is not None:
                    progress(name, count)

            # each source draws from seeds of its own
            seed = int(np.random.SeedSequence([recording.seed, number]).generate_state(1)[0])
            for episode in record(
                source, behaviour.env_id, recording.episodes, seed, running, progress=heard
            ):
                part = episode.transitions
                assert part is not None
                propensity = source.propensity(part.observations[:-1], part.actions)
                rows.append(part, episode.terminated, propensity, trained.name)
    if recording.thin is not None:
        rows = rows.thinned(recording.thin, np.random.default_rng([recording.seed, 2]))
    settings = {name: value for name, value in asdict(recording).items() if value is not None}
    actions: Any = (
        {"num_actions": int(space.n)}
        if hasattr(space, "n")
        else {bound: tuple(map(float, getattr(space, bound[7:]))) for bound in ("action_low", "action_high")}
    )
    metadata = Metadata(
        env_id=behaviour.env_id,
        horizon=rows.longest,
        notes={"made by": f"slater collect {__version__}", "recording": json.dumps(settings), **file},
        **actions,
    )
    return rows.dataset(costs, metadata)


@dataclass(frozen=True)
class DensityCheck:
    """One source of a log, its densities recomputed from the log's own states and actions.

    worst: largest relative difference between a recorded density and the recomputed one
    mean_weight: mean importance weight of the source under itself, recomputed over recorded
    narrower_weight: mean importance weight of the same policy with half the noise; it is 1 on average only if
        the log's actions were drawn with the densities that are recorded. narrower_error: its standard error,
        rows counted as independent
    """

    source: str
    rows: int
    worst: float
    mean_weight: float
    narrower_weight: float
    narrower_error: float


@dataclass(frozen=True)
class DensitySummary:
    """The checks of all sources of a log: rows and sources in all, and the extremes over the sources.

    worst: the largest `DensityCheck.worst`; weights, narrower: least and largest mean weight, as there;
    errors: by how many standard errors a weight with half the noise is from 1 at most
    """

    rows: int
    sources: int
    worst: float
    weights: tuple[float, float]
    narrower: tuple[float, float]
    errors: float

    @classmethod
    def of(cls, checks: Sequence[DensityCheck]) -> DensitySummary:
        """The summary of at least one check."""
        weights = [check.mean_weight for check in checks]
        narrower = [check.narrower_weight for check in checks]
        return cls(
            rows=sum(check.rows for check in checks),
            sources=len(checks),
            worst=max(check.worst for check in checks),
            weights=(min(weights), max(weights)),
            narrower=(min(narrower), max(narrower)),
            errors=max(abs(check.narrower_weight - 1.0) / check.narrower_error for check in checks),
        )


def check_densities(data: Dataset, behaviour: Behaviour | str | Path) -> list[DensityCheck]:
    """Recompute every density of a log that `record_behaviour` made, from the behaviour it was made of."""
    if not isinstance(behaviour, Behaviour):
        behaviour = load_behaviour(behaviour)
    settings = data.metadata.notes.get("recording")
    if settings is None or data.source is None or data.propensity is None:
        raise InputError(
            "the dataset was not recorded from a behaviour file: it does not say how, or from whom."
        )
    recording = Recording(**json.loads(settings))
    by_row = np.repeat(data.source, data.episodes.lengths)
    policies = {trained.name: trained.policy for trained in behaviour.sources}
    checks = []
    for name in dict.fromkeys(data.source):
        if name not in policies:
            raise InputError(f"the dataset has a source {str(name)!r} that the behaviour file does not have.")
        own = by_row == name
        source = recorded_source(policies[str(name)], recording)
        rows = data.observations[own], data.actions[own]
        ratio = source.propensity(*rows) / data.propensity[own]
        narrower = recorded_source(policies[str(name)], replace(recording, noise=recording.noise / 2.0))
        weights = narrower.propensity(*rows) / data.propensity[own]
        checks.append(
            DensityCheck(
                str(name), len(ratio), float(np.abs(ratio - 1.0).max()), float(ratio.mean()),
                float(weights.mean()), float(weights.std() / np.sqrt(len(weights))),
            )
        )  # fmt: skip
    return checks
