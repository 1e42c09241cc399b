"""One cell of a benchmark: train one algorithm on one task under one limit from one seed, then measure it.

A cell trains into its own run folder, so a killed cell goes on from its checkpoint, and its outcome depends
on nothing but its settings and data: the command in its record gives the same numbers again.

An algorithm with `serves_all_limits = True` in its class trains one model for all limits; its cells then
hold several limits, and each of its policies gives the one for other limits by `with_limits([per_episode])`.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import os
import platform
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from slater import __version__
from slater.data import Dataset
from slater.errors import InputError
from slater.experiments.task_data import TaskData
from slater.jobs.engines import Cell, Row
from slater.pairs import parse_pair
from slater.policy import Mixture, Policy
from slater.runs import is_run, open_run
from slater.runs.metrics import last_step

__all__ = [
    "AlgorithmSpec",
    "CellWork",
    "make_cells",
    "measure",
    "parse_algorithms",
    "results",
    "share_done",
    "train_or_resume",
]

#: seed of the first evaluation; the seed of a cell is added, so that all algorithms meet the same episodes
EVALUATION_SEED = 7_000


@dataclass(frozen=True)
class AlgorithmSpec:
    """An algorithm, a preset of it or None, and settings that overrule both."""

    name: str
    preset: str | None
    settings: Mapping[str, str]
    serves_all_limits: bool = False

    @property
    def text(self) -> str:
        """As a user writes it: `pdca` or `pdca:paper`."""
        return self.name if self.preset is None else f"{self.name}:{self.preset}"


def parse_algorithms(texts: Sequence[str], sets: Sequence[str], steps: int) -> list[AlgorithmSpec]:
    """Algorithms from `NAME[:PRESET]` and settings from `[NAME[:PRESET]:]SETTING=VALUE`.

    A setting without a name goes to every algorithm that has it. Wrong names and values are refused
    here, before any work.
    """
    from slater.deep import find, make_config

    pairs = [_setting(text) for text in sets]
    specs: list[AlgorithmSpec] = []
    used: set[int] = set()
    for text in dict.fromkeys(texts):
        name, _, preset = text.partition(":")
        kind = find(name, preset or None)
        known = set(kind.Config.__dataclass_fields__)
        settings = {"steps": str(steps)}
        for index, (to, setting, value) in enumerate(pairs):
            if to == text or (to == "" and setting in known):
                settings[setting] = value
                used.add(index)
        make_config(kind, settings, preset or None)
        serves_all = kind.serves_all_limits
        specs.append(AlgorithmSpec(name, preset or None, settings, serves_all))
    if not specs:
        raise InputError("no algorithm is named; name one, for example pdca.")
    for index, text in enumerate(sets):
        if index not in used:
            chosen = ", ".join(spec.text for spec in specs)
            raise InputError(f"the setting {text} fits none of the algorithms {chosen}.")
    return specs


def _setting(text: str) -> tuple[str, str, str]:
    to, colon, _ = text.partition("=")[0].rpartition(":")
    return to.strip(), *parse_pair(text[len(to) + len(colon) :])


def make_cells(
    sources: Sequence[TaskData],
    specs: Sequence[AlgorithmSpec],
    limits: Mapping[str, Sequence[str]],
    seeds: Sequence[int],
    common: Mapping[str, Any],
) -> list[Cell]:
    """The cells, in the order tasks, seeds, algorithms, limits; `limits` by task, as texts.

    common: `episodes` of the measurement, `deterministic`, `curve_every` iterations and `curve_episodes`.
    """
    return [
        {
            "task": source.task,
            "algorithm": spec.name,
            "preset": spec.preset,
            "limits": group,
            "seed": seed,
            "settings": dict(spec.settings),
            "data": source.fingerprint,
            "source": source.kind,
            **common,
        }
        for source in sources
        for seed in seeds
        for spec in specs
        for group in (
            [list(limits[source.task])] if spec.serves_all_limits else [[x] for x in limits[source.task]]
        )
    ]


@dataclass(frozen=True)
class CellWork:
    """The work of a cell, as worker processes get it: where the data are, where runs go.

    experiment: the word after `slater reproduce`; folder: data folder as the user gave it.
    """

    experiment: str
    out: str
    folder: str
    sources: tuple[TaskData, ...]

    def __call__(self, cell: Cell) -> Row:
        """Train or resume, measure; a row with `results`, one per limit, or with `failed`, a sentence."""
        from slater.deep import DivergedError

        begun = time.time()
        try:
            folder = self.run_folder(cell)
            found = self._train_and_measure(cell, folder)
        except (InputError, DivergedError) as error:
            return {"failed": str(error)}
        return {
            "results": found,
            "command": self.command(cell),
            "run": str(folder.relative_to(self.out)),
            "seconds": round(time.time() - begun, 1),
            "versions": _versions(self._source(cell).env),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        }

    def _source(self, cell: Cell) -> TaskData:
        return next(source for source in self.sources if source.task == cell["task"])

    def run_folder(self, cell: Cell) -> Path:
        """The folder of the cell's run: readable, and its own for every combination of settings."""
        key = hashlib.sha256(json.dumps(cell, sort_keys=True).encode()).hexdigest()[:8]
        limits = "+".join(text.replace("/", "-per-") for text in cell["limits"])
        algorithm = cell["algorithm"] + (f".{cell['preset']}" if cell["preset"] else "")
        return Path(self.out) / "runs" / f"{cell['task']}-{algorithm}-limit{limits}-seed{cell['seed']}-{key}"

    def command(self, cell: Cell) -> str:
        """The one command that runs this cell alone, in a folder of its own."""
        algorithm = cell["algorithm"] + (f":{cell['preset']}" if cell["preset"] else "")
        words = [
            "slater", "reproduce", self.experiment, "--data", self.folder, "--tasks", cell["task"],
            "--algorithms", algorithm, "--limits", *cell["limits"], "--seed", str(cell["seed"]),
            "--seeds", "1", "--steps", cell["settings"]["steps"], "--episodes", str(cell["episodes"]),
            "--curve-every", str(cell["curve_every"]), "--curve-episodes", str(cell["curve_episodes"]),
        ]  # fmt: skip
        for name, value in cell["settings"].items():
            if name != "steps":
                words += ["--set", f"{algorithm}:{name}={value}"]
        if cell["deterministic"]:
            words.append("--deterministic")
        return shlex.join([*words, "--out", "again"])

    def progress(self, cell: Cell) -> float:
        """How much of the cell's training is done, from 0 to 1; never quite 1: it is measured at the end."""
        return share_done(self.run_folder(cell), int(cell["settings"]["steps"]))

    def _train_and_measure(self, cell: Cell, folder: Path) -> list[Row]:
        from slater.data import load
        from slater.policy import load as load_policy
        from slater.policy import with_limits

        source = self._source(cell)
        dataset = load(source.path)
        if dataset.fingerprint != cell["data"]:
            raise InputError(f"{source.path} changed while the experiment ran: its fingerprint differs.")
        options = {
            "data": source.path,
            "env": source.env,
            "eval_every": cell["curve_every"],
            "eval_episodes": cell["curve_episodes"],
            # a rollout is kept in the row of metrics of its own iteration only
            "log_every": math.gcd(100, cell["curve_every"]),
        }
        train_or_resume(cell, dataset, cell["limits"][:1], folder, options)
        done = open_run(folder)
        curve = [
            [row["step"], row["eval/return"], row["eval/cost"]] for row in done.metrics.having("eval/return")
        ]
        policy: Any = load_policy(folder / "mixture.safetensors")
        found = []
        for text in cell["limits"]:
            limit = _per_episode(text, source.horizon)
            measured = measure(
                with_limits(policy, [limit]) if len(cell["limits"]) > 1 else policy,
                source.env, episodes=cell["episodes"], seed=EVALUATION_SEED + cell["seed"],
                deterministic=cell["deterministic"], discount=done.task.gamma,
            )  # fmt: skip
            estimates = done.result.per_episode or {}
            found.append(
                {
                    "limit": text,
                    "limit_per_episode": limit,
                    "horizon": source.horizon,
                    **_scores(source.env, measured, limit),
                    **measured,
                    "estimated_reward": estimates.get("reward"),
                    "estimated_cost": estimates.get(dataset.cost_names[0]),
                    "curve": curve,
                }
            )
        return found


def share_done(folder: Path, steps: int) -> float:
    """How much of a run of `steps` iterations is done, by its metrics; at most .95."""
    return 0.95 * last_step(folder) / steps


def train_or_resume(
    cell: Cell, dataset: Dataset, limits: Sequence[str], folder: Path, options: Mapping[str, Any]
) -> None:
    """Train what `cell` says (algorithm, preset, settings, seed) into `folder`, from where it was left.

    options: other fields of `slater.deep.Run`. A whole run is left as it is.
    """
    from slater.deep import resume, train

    if not is_run(folder):
        train(
            cell["algorithm"], dataset, limits, folder, seed=cell["seed"], preset=cell["preset"],
            options=options, **cell["settings"],
        )  # fmt: skip
    elif not open_run(folder).finished:
        resume(folder, dataset)


def measure(
    policy: Policy, env: str, *, episodes: int, seed: int, deterministic: bool, discount: float
) -> dict[str, float]:
    """Mean episode sums of a policy; of a mixture, the weighted mean over members, `episodes` of each.

    That is the paper's way: every kept policy is run for 20 episodes and the results are averaged. It is an
    unbiased measurement of the mixture with less noise than drawing members. Standard errors `*_se` are
    those of the episodes, not of seeds. `members`: how many policies were run.
    """
    from slater.envs import rollout

    mixture = policy if isinstance(policy, Mixture) else None
    members: Sequence[Any] = mixture.members if mixture else (policy,)
    weights = mixture.weights if mixture else np.ones(1)
    names = ("return", "cost", "discounted_return", "discounted_cost")
    means, errors = np.zeros(len(names)), np.zeros(len(names))
    for index, (member, weight) in enumerate(zip(members, weights, strict=True)):
        # other episodes for each member: then the errors of the members are independent
        ran = rollout(
            member, env, episodes=episodes, seed=seed + 10_000 * index, deterministic=deterministic,
            discount=discount,
        )  # fmt: skip
        values = np.stack([ran.quantities()[name] for name in names])
        means += weight * values.mean(axis=1)
        if episodes > 1:
            errors += weight**2 * values.var(axis=1, ddof=1) / episodes
    answer = {name: float(mean) for name, mean in zip(names, means, strict=True)}
    answer |= {f"{name}_se": float(error) for name, error in zip(names, np.sqrt(errors), strict=True)}
    return answer | {"members": len(members)}


def results(rows: Sequence[Row]) -> list[Row]:
    """One flat row per cell and limit, without what failed: settings of the cell, then its result."""
    flat = []
    for row in rows:
        settings = {k: v for k, v in row.items() if k not in ("results", "limits")}
        flat += [{**settings, **result} for result in row.get("results", ())]
    return flat


def _scores(env: str, measured: Mapping[str, float], limit: float) -> dict[str, float | None]:
    """DSRL's scores where it has constants; a cost over its limit always."""
    from slater.envs.scores import dsrl_scores

    scores = dsrl_scores(env, measured["return"], measured["cost"], limit)
    if scores is not None:
        return {"normalised_reward": scores.reward, "normalised_cost": scores.cost}
    return {"normalised_reward": None, "normalised_cost": measured["cost"] / limit if limit > 0 else None}


def _per_episode(text: str, horizon: int) -> float:
    """A limit per episode or per step as a sum over an episode; others depend on the discount."""
    from slater.limits import Limit, Units

    limit = Limit.parse(text)
    if limit.unit == "discounted":
        raise InputError(f"the limit {text} must be per episode or per step here, as 20 or 0.05/step.")
    return Units(gamma=0.0, horizon=horizon).episode(limit)


def _versions(env: str) -> dict[str, str]:
    """Versions that the numbers depend on; `code` tells apart states of the same version."""
    simulator = "pybullet" if env.startswith("bullet/") else "mujoco"
    versions = {"slater": __version__, "code": _code(), "python": platform.python_version()}
    return versions | {name: metadata.version(name) for name in ("jax", "numpy", simulator)}


def _code() -> str:
    """Eight digits of the SHA-256 of what trains and measures: every source file but those of commands,
    experiments and reports.
    """
    root = Path(__file__).parent.parent
    content = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] not in ("commands", "experiments", "report", "tabular", "collect"):
            content.update(path.read_bytes())
    return content.hexdigest()[:8]
