"""From an environment and some penalties to a dataset that covers the trade-off of reward and cost.

For each penalty lambda a policy is trained on R - lambda.C (`slater.collect.training`, with a fixed penalty);
the policies become a behaviour file, and that is recorded like any other. Beside the dataset OUT:

    OUT.behaviour.safetensors   the policies, with their learning curves: `slater behaviours check` reads it
    OUT.parts/plan.json         while it is being made: what is collected; another plan is refused
    OUT.parts/00/               the training of the first penalty
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from slater.collect.behaviour import Behaviour, Trained, kept_policies, save_behaviour
from slater.collect.recording import PAPER_WAY, Recording, record_behaviour
from slater.collect.sac import SACConfig
from slater.collect.training import Recipe, train_all
from slater.data import Dataset, save
from slater.disk import locked, write_atomic
from slater.envs import RandomPolicy, make
from slater.envs.constrained import ConstrainedEnv
from slater.errors import InputError

#: The paper's protocol: domain -> penalties; noise 0.15, a million steps and 1000 episodes per penalty.
PAPER: dict[str, tuple[float, ...]] = {
    "rwrl/cartpole": (0.3, 0.8, 1.0),
    "rwrl/walker": (1.0, 1.8, 2.0),
    "rwrl/quadruped": (0.0, 0.1, 0.5),
    "rwrl/humanoid": (0.0, 0.4, 0.5),
}
#: steps of an episode where the environment does not say, and steps that are tried to find out
USUAL_HORIZON, TRIED_STEPS = 1_000, 10_000


@dataclass(frozen=True)
class CollectionPlan:
    """What to collect; the same plan gives the same dataset, on the same machine.

    penalties: lambda of each training, one number per cost (one for all: the same on every cost)
    steps: training steps per penalty; start_steps: those with uniform actions before the policy acts
    keep: policies recorded of each training, at equal distances; the last is always among them
    recording: how they are recorded; its seed is that of the trainings too
    """

    env_id: str
    penalties: tuple[tuple[float, ...], ...]
    steps: int = 100_000
    start_steps: int = 2_000
    keep: int = 1
    recording: Recording = field(default_factory=lambda: Recording(episodes=300))
    config: SACConfig = field(default_factory=SACConfig)

    def __post_init__(self) -> None:
        if not self.penalties:
            raise InputError("give at least one penalty.")

    def recipes(self, env: ConstrainedEnv) -> dict[str, Recipe]:
        """The trainings, by the names of their folders."""
        first = Recipe(
            self.env_id, horizon_of(env), self.steps, keep=self.keep, start_steps=self.start_steps,
            config=self.config, penalty=(0.0,),
        )  # fmt: skip
        seeds = range(self.recording.seed, self.recording.seed + len(self.penalties))
        return {
            f"{index:02d}": replace(first, penalty=penalty, seed=seed)
            for index, (penalty, seed) in enumerate(zip(self.penalties, seeds, strict=True))
        }

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return json.loads(json.dumps(dataclasses.asdict(self)))


def paper_plan(env_id: str, *, recording: Mapping[str, Any] | None = None, **changes: Any) -> CollectionPlan:
    """The paper's protocol for a Real-World RL domain; `changes` and `recording` overrule its fields."""
    if env_id not in PAPER:
        raise InputError(f"the paper has no protocol for {env_id}; it has one for {', '.join(PAPER)}.")
    from slater.envs.constraints import DOMAINS

    cost = DOMAINS[env_id.partition("/")[2]].paper_cost
    settings: dict[str, Any] = {
        "penalties": tuple((value,) for value in PAPER[env_id]),
        "steps": 1_000_000,
        "recording": Recording(**{"episodes": 1_000, **PAPER_WAY, **(recording or {})}),
    }
    return CollectionPlan(f"{env_id}?costs={cost}", **{**settings, **changes})


def horizon_of(env: ConstrainedEnv) -> int:
    """Steps of the longest episode: the registered limit, else what one episode with random actions took.

    An episode that ended by itself says little; then at least `USUAL_HORIZON`.
    """
    spec = env.env.spec
    if spec is not None and spec.max_episode_steps:
        return spec.max_episode_steps
    observation, _ = env.reset(seed=0)
    actor = RandomPolicy(env.action_space).begin(rng=np.random.default_rng(0))
    for step in range(1, TRIED_STEPS + 1):
        observation, _, terminated, truncated, _ = env.step(actor.act(observation))
        if truncated:
            return step
        if terminated:
            return max(step, USUAL_HORIZON)
    return TRIED_STEPS


def collect(
    plan: CollectionPlan,
    out: str | Path,
    *,
    workers: int = 1,
    watch: Callable[[str, Mapping[str, Any]], None] | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> Dataset:
    """Collect the plan's dataset into the file `out`, or go on where an earlier call was stopped.

    workers: penalties trained side by side, then episodes run, in processes of one thread each.
    watch(folder of the penalty, segment) hears of the training, progress(source, episodes) of the recording.
    A second process that collects into the same file is refused.
    """
    out = Path(out)
    # not the place of the dataset itself: a store that is written there has a lock of its own
    with locked(_parts(out), beside=True):
        if out.exists():
            raise InputError(f"{out} is already there; remove it or choose another name.")
        env = make(plan.env_id)
        try:
            if not env.cost_names:
                raise InputError(f"{plan.env_id} has no cost; a dataset needs at least one.")
            recipes = plan.recipes(env)
        finally:
            env.close()
        parts = _claim(plan, out)
        train_all(recipes, parts, workers=workers, watch=watch)
        path = out.with_name(out.name + ".behaviour.safetensors")
        save_behaviour(_behaviour(plan, [parts / name for name in recipes]), path)
        dataset = record_behaviour(path, plan.recording, workers=workers, progress=progress)
        save(dataset, out)
        shutil.rmtree(parts)
        return dataset


def _behaviour(plan: CollectionPlan, folders: list[Path]) -> Behaviour:
    """The policies of all trainings, named by penalty, and by steps where they are not the last."""
    sources: list[Trained] = []
    curve: list[dict[str, Any]] = []
    for folder, penalty in zip(folders, plan.penalties, strict=True):
        kept = kept_policies(folder)
        name = "penalty " + ",".join(f"{value:g}" for value in penalty)
        sources += [replace(one, name=f"{name}, {one.name}") for one in kept.sources[:-1]]
        sources.append(replace(kept.sources[-1], name=name))
        curve += kept.curve
    return Behaviour(plan.env_id, (), tuple(sources), plan.record(), tuple(curve))


def _parts(out: Path) -> Path:
    """The folder for work in progress on the dataset `out`."""
    return out.with_name(out.name + ".parts")


def _claim(plan: CollectionPlan, out: Path) -> Path:
    """The folder for work in progress; it must be new, or belong to the same plan."""
    parts = _parts(out)
    path = parts / "plan.json"
    content = json.dumps(plan.record(), indent=1)
    try:
        parts.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.read_text() != content:
            raise InputError(f"{parts} is of another plan; remove it, or finish with the options in {path}.")
        write_atomic(path, content.encode())
    except OSError as error:
        raise InputError(f"{parts} cannot be written: {error.strerror}.") from None
    return parts
