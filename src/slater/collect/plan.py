"""From an environment and some penalties to a dataset that covers the trade-off of reward and cost.

For each penalty lambda a policy is trained by SAC on R - lambda*C, then run with Gaussian action noise; its
training episodes are kept on request. All episodes are joined, thinned on a (return, cost) grid and written.

Work in progress lives in a folder beside the output, one folder per penalty:

    OUT.parts/plan.json           what is being collected; another plan is refused
    OUT.parts/00/curve.jsonl      one line per training episode; all of them end in OUT.curves.jsonl
    OUT.parts/00/sac.safetensors  the last checkpoint, with rows-N.npz, its episodes
    OUT.parts/00/done.npz         all episodes of this penalty, when it is finished
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater import __version__
from slater.collect.learning import learn
from slater.collect.recorded import RecordedEpisodes
from slater.collect.sac import SACConfig
from slater.collect.sources import ClippedSource, SourcePolicy, UniformSource
from slater.collect.thinning import thin
from slater.data import Dataset, Metadata, save
from slater.disk import locked, take_back_cut_line, write_atomic
from slater.envs import make, record
from slater.envs.episode import Episode
from slater.errors import InputError
from slater.jobs.engines import run_jobs
from slater.policy import CategoricalPolicy, GaussianPolicy
from slater.policy import save as save_policy

__all__ = ["PAPER", "CollectionPlan", "Stage", "collect", "paper_plan"]

#: The paper's protocol: domain -> penalties; noise 0.15, a million steps and 1000 episodes per penalty.
PAPER: dict[str, tuple[float, ...]] = {
    "rwrl/cartpole": (0.3, 0.8, 1.0),
    "rwrl/walker": (1.0, 1.8, 2.0),
    "rwrl/quadruped": (0.0, 0.1, 0.5),
    "rwrl/humanoid": (0.0, 0.4, 0.5),
}


@dataclass(frozen=True)
class CollectionPlan:
    """What to collect; the same plan gives the same dataset, on the same machine.

    penalties: lambda of each policy, one number per cost (one for all: the same on every cost)
    steps: training steps per penalty; episodes: episodes of each final policy
    noise: standard deviation of the noise on its actions, in units of half the action range
    stochastic: whether the noise comes on top of the policy's own randomness, as in the paper, or alone
    keep_training: whether training episodes enter the dataset; thin: how many episodes to keep, None: all
    """

    env_id: str
    penalties: tuple[tuple[float, ...], ...]
    steps: int = 100_000
    episodes: int = 300
    noise: float = 0.15
    stochastic: bool = False
    keep_training: bool = False
    thin: int | None = None
    seed: int = 0
    config: SACConfig = field(default_factory=SACConfig)

    def __post_init__(self) -> None:
        if not self.penalties:
            raise InputError("give at least one penalty.")
        for penalty in self.penalties:
            if not all(math.isfinite(value) and value >= 0.0 for value in penalty):
                raise InputError(f"the penalty {penalty} must have finite numbers of at least 0.")
        for name in ("steps", "episodes"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if self.thin is not None and self.thin < 1:
            raise InputError(f"thin must be at least 1, not {self.thin}.")
        if not 0.0 <= self.noise < math.inf:
            raise InputError(f"noise must be a number of at least 0, not {self.noise}.")
        if self.seed < 0:
            raise InputError(f"the seed must be at least 0, not {self.seed}.")

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return json.loads(json.dumps(dataclasses.asdict(self)))


def paper_plan(env_id: str, **changes: Any) -> CollectionPlan:
    """The paper's protocol for a Real-World RL domain and its one cost; `changes` overrule its fields."""
    if env_id not in PAPER:
        raise InputError(f"the paper has no protocol for {env_id}; it has one for {', '.join(PAPER)}.")
    from slater.envs.constraints import DOMAINS

    cost = DOMAINS[env_id.partition("/")[2]].paper_cost
    settings: dict[str, Any] = {
        "penalties": tuple((value,) for value in PAPER[env_id]),
        "steps": 1_000_000,
        "episodes": 1_000,
        "noise": 0.15,
        "stochastic": True,
    }
    return CollectionPlan(f"{env_id}?costs={cost}", **{**settings, **changes})


@dataclass(frozen=True)
class Stage:
    """One penalty of a plan: mean return and scalar cost per episode of its final policy."""

    index: int
    penalty: tuple[float, ...]
    mean_return: float
    mean_cost: float
    episodes: int


#: hears of a training episode: number of the penalty, steps so far, return, cost
Watch = Callable[[int, int, float, float], None]


def collect(
    plan: CollectionPlan,
    out: str | Path,
    *,
    workers: int = 1,
    watch: Watch | None = None,
    finished: Callable[[Stage], None] | None = None,
) -> Dataset:
    """Collect the plan's dataset into the file `out`, or go on where an earlier call was stopped.

    workers: penalties trained side by side, each in a process of one thread. watch(penalty number, steps,
    return, cost) hears of every training episode, finished(stage) of every finished penalty. A second process
    that collects into the same file is refused.
    """
    # not the place of the dataset itself: a store that is written there has a lock of its own
    with locked(_parts(Path(out)), beside=True):
        return _collect(plan, Path(out), workers, watch, finished)


def _collect(
    plan: CollectionPlan,
    out: Path,
    workers: int,
    watch: Watch | None,
    finished: Callable[[Stage], None] | None,
) -> Dataset:
    if out.exists():
        raise InputError(f"{out} is already there; remove it or choose another name.")
    env = make(plan.env_id)
    costs, space = env.cost_names, env.action_space
    env.close()
    if not costs:
        raise InputError(f"{plan.env_id} has no cost; a dataset needs at least one.")
    for penalty in plan.penalties:
        if len(penalty) not in (1, len(costs)):
            raise InputError(
                f"the penalty {penalty} has {len(penalty)} numbers, but {plan.env_id} has the costs "
                f"{', '.join(costs)}; give one number, or one for each."
            )
    parts = _claim(plan, out)
    everything = RecordedEpisodes()
    for stage, rows in _stages(plan, parts, workers, watch):
        if finished is not None:
            finished(stage)
        everything.extend(rows)
    rows = everything
    if plan.thin is not None:
        rows = RecordedEpisodes()
        chosen = thin(*everything.sums(), plan.thin, np.random.default_rng([plan.seed, 2]))
        rows.extend(everything, chosen)
    bounds: dict[str, Any] = (
        {"num_actions": int(space.n)}
        if hasattr(space, "n")
        else {
            "action_low": tuple(map(float, space.low)),  # type: ignore[attr-defined]
            "action_high": tuple(map(float, space.high)),  # type: ignore[attr-defined]
        }
    )
    metadata = Metadata(
        env_id=plan.env_id,
        horizon=max(stop - start for start, stop in rows.episodes),
        notes={"made by": f"slater collect {__version__}", "plan": json.dumps(plan.record())},
        **bounds,
    )
    dataset = rows.dataset(costs, metadata)
    _keep_curves(plan, parts, out)
    save(dataset, out)
    shutil.rmtree(parts)
    return dataset


def _keep_curves(plan: CollectionPlan, parts: Path, out: Path) -> None:
    """Learning curves of all penalties beside the dataset: OUT.curves.jsonl, one line per episode."""
    lines = []
    for index, penalty in enumerate(plan.penalties):
        # an episode that was lost with a stop and run again stands there twice, with the same numbers
        curve = dict.fromkeys((parts / f"{index:02d}" / "curve.jsonl").read_text().splitlines())
        lines += [json.dumps({"penalty": penalty, **json.loads(line)}) for line in curve]
    write_atomic(out.with_name(out.name + ".curves.jsonl"), "".join(f"{line}\n" for line in lines).encode())


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


def _stages(
    plan: CollectionPlan, parts: Path, workers: int, watch: Watch | None
) -> Iterator[tuple[Stage, RecordedEpisodes]]:
    """Every penalty's result, in the order of the plan."""
    indices = range(len(plan.penalties))
    for index in indices:
        take_back_cut_line(parts / f"{index:02d}" / "curve.jsonl")
    if workers > 1 and len(plan.penalties) > 1:
        tails = [_Tail(parts / f"{index:02d}" / "curve.jsonl") for index in indices]
        with closing(run_jobs(_StageWork(plan, parts), list(indices), workers=workers)) as ended:
            for answer in ended:
                if answer is not None and "failed" in answer[1]:
                    raise InputError(f"penalty {answer[0]} failed: {answer[1]['failed']}")
                if watch is None:
                    continue
                for index, tail in enumerate(tails):
                    for line in tail.new_lines():
                        watch(index, line["steps"], line["return"], line["cost"])
    for index in indices:
        yield _run_stage(plan, parts, index, watch)


@dataclass(frozen=True)
class _StageWork:
    """One penalty as a job of a worker process; its result stays in the folder."""

    plan: CollectionPlan
    parts: Path

    def __call__(self, index: int) -> dict[str, Any]:
        _run_stage(self.plan, self.parts, index, None)
        return {}


class _Tail:
    """What other processes append to a file of JSON lines, from now on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = path.stat().st_size if path.exists() else 0

    def new_lines(self) -> list[dict[str, Any]]:
        """The whole lines since the last call."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self.offset += len(whole) + len(newline)
        return [json.loads(line) for line in whole.splitlines()]


def _run_stage(
    plan: CollectionPlan, parts: Path, index: int, watch: Watch | None
) -> tuple[Stage, RecordedEpisodes]:
    """Train and run the policy of one penalty, unless that is done already."""
    folder = parts / f"{index:02d}"
    folder.mkdir(exist_ok=True)
    done = folder / "done.npz"
    if not done.exists():
        _fill(plan, folder, index, watch)
    with np.load(done) as arrays:
        content = dict(arrays)
    means = content.pop("final")
    stage = Stage(index, plan.penalties[index], float(means[0]), float(means[1]), plan.episodes)
    return stage, RecordedEpisodes.from_arrays(content)


def _fill(plan: CollectionPlan, folder: Path, index: int, watch: Watch | None) -> None:
    seed = int(np.random.SeedSequence([plan.seed, index]).generate_state(1)[0] >> 1)
    env = make(plan.env_id)
    penalty = np.broadcast_to(np.array(plan.penalties[index]), (len(env.cost_names),))
    env.close()
    with (folder / "curve.jsonl").open("a") as curve:

        def heard(steps: int, episode: Episode, figures: NDArray[Any]) -> None:
            line = {"steps": steps, "return": episode.total_return, "cost": episode.cost}
            line |= dict(zip(("critic_loss", "entropy", "alpha"), map(float, figures), strict=True))
            curve.write(json.dumps(line) + "\n")
            curve.flush()
            if watch is not None:
                watch(index, steps, episode.total_return, episode.cost)

        learned = learn(plan.env_id, penalty, plan.steps, seed, plan.config, folder, heard)
    save_policy(learned.policy, folder / "policy.safetensors")
    noisy = _recorded(learned.policy, plan)
    name = "penalty " + ",".join(f"{value:g}" for value in plan.penalties[index])
    final = RecordedEpisodes()
    for episode in record(noisy, plan.env_id, plan.episodes, seed):
        part = episode.transitions
        assert part is not None
        # without noise a mean has no density; the log then has none
        propensity = noisy.propensity(part.observations[:-1], part.actions) if plan.noise > 0.0 else None
        final.append(part, episode.terminated, propensity=propensity, source=name)
    rows = final
    if plan.keep_training:
        rows = learned.rows
        rows.sources = [f"training, {name}"] * len(rows.episodes)
        rows.extend(final)
    content = io.BytesIO()
    np.savez(content, **rows.arrays(), final=np.array([part.mean() for part in final.sums()]))  # type: ignore[arg-type]
    write_atomic(folder / "done.npz", content.getvalue())


def _recorded(policy: GaussianPolicy | CategoricalPolicy, plan: CollectionPlan) -> SourcePolicy:
    """The policy with the plan's noise on its actions."""
    mean_only = not plan.stochastic
    if isinstance(policy, CategoricalPolicy):
        return UniformSource(policy, plan.noise, mean_only)
    return ClippedSource(policy, plan.noise, mean_only)
