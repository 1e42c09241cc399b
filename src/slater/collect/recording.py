"""From behaviours to a dataset: every source is run for some episodes, its name and its densities kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
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
    """The densities of a log, recomputed from its own states and actions: rows and sources in all, extremes
    over the sources.

    worst: largest relative difference between a recorded density and the recomputed one
    weights: least and largest mean importance weight of a source under itself, recomputed over recorded
    narrower: the same of its policy with half the noise; it is 1 on average only if the log's actions were
        drawn with the densities that are recorded
    errors: by how many standard errors that is from 1 at most, rows counted as independent
    """

    rows: int
    sources: int
    worst: float
    weights: tuple[float, float]
    narrower: tuple[float, float]
    errors: float


def check_densities(data: Dataset, behaviour: Behaviour | str | Path) -> DensityCheck:
    """Recompute every density of a log that `record_behaviour` made, from the behaviour it was made of."""
    if not isinstance(behaviour, Behaviour):
        behaviour = load_behaviour(behaviour)
    settings = data.metadata.notes.get("recording")
    if settings is None or data.source is None or data.propensity is None:
        raise InputError(
            "the dataset was not recorded from a behaviour file: it does not say how, or from whom."
        )
    recording = Recording(**json.loads(settings))
    half = replace(recording, noise=recording.noise / 2.0)
    by_row = np.repeat(data.source, data.episodes.lengths)
    policies = {trained.name: trained.policy for trained in behaviour.sources}
    worst, weights, narrower, errors = [], [], [], []
    for name in dict.fromkeys(map(str, data.source)):
        if name not in policies:
            raise InputError(f"the dataset has a source {name!r} that the behaviour file does not have.")
        own = by_row == name
        ratio, less = (
            recorded_source(policies[name], how).propensity(data.observations[own], data.actions[own])
            / data.propensity[own]
            for how in (recording, half)
        )
        worst.append(float(np.abs(ratio - 1.0).max()))
        weights.append(float(ratio.mean()))
        narrower.append(float(less.mean()))
        errors.append(float(abs(less.mean() - 1.0) / (less.std() / np.sqrt(len(less)))))
    ends = (min(weights), max(weights)), (min(narrower), max(narrower))
    return DensityCheck(len(by_row), len(worst), max(worst), *ends, max(errors))
