"""One cell of a benchmark: train one algorithm on one task under one limit from one seed, then measure it.

A cell trains into its own run folder, so a killed cell goes on from its checkpoint, and its outcome depends
on nothing but its settings and data: the command in its record gives the same numbers again.

An algorithm with `serves_all_limits = True` in its class trains one model for all limits; its cells then
hold several limits, and each of its policies gives the one for other limits by `with_limits([per_episode])`.

A cell with `budget_seconds` has that much processor time instead of a number of iterations: see
`slater.experiments.budget`.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import math
import os
import platform
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from slater import __version__
from slater.data import Dataset
from slater.errors import InputError
from slater.experiments import budget
from slater.experiments.measuring import measure, per_episode, scores
from slater.experiments.task_data import TaskData, bare_copy, find_task_data
from slater.jobs.engines import Cell, Row, key_of
from slater.jobs.sweep import TrainJob
from slater.pairs import parse_pair
from slater.runs import open_run
from slater.runs.metrics import last_step

#: how policies act where they are measured, see `ways_of_acting`
Acting = Literal["draws", "likeliest", "published", "both"]
#: seed of the first evaluation; the seed of a cell is added, so that all algorithms meet the same episodes
EVALUATION_SEED = 7_000


@dataclass(frozen=True)
class AlgorithmSpec:
    """An algorithm, a preset of it or None, and settings that overrule both."""

    name: str
    preset: str | None
    settings: Mapping[str, str]
    serves_all_limits: bool = False
    acts_likeliest: bool = False

    @property
    def text(self) -> str:
        """As a user writes it: `pdca` or `pdca:paper`."""
        return self.name if self.preset is None else f"{self.name}:{self.preset}"


def parse_algorithms(texts: Sequence[str], sets: Sequence[str], steps: int | None) -> list[AlgorithmSpec]:
    """Algorithms from `NAME[:PRESET]` and settings from `[NAME[:PRESET]:]SETTING=VALUE`.

    A setting without a name goes to every algorithm that has it. steps: None where time decides. Wrong names
    and values are refused here, before any work.
    """
    from slater.deep import find, make_config

    pairs = [_setting(text) for text in sets]
    specs: list[AlgorithmSpec] = []
    used: set[int] = set()
    for text in dict.fromkeys(texts):
        name, _, preset = text.partition(":")
        kind = find(name, preset or None)
        known = set(kind.Config.__dataclass_fields__)
        settings = {} if steps is None else {"steps": str(steps)}
        for index, (to, setting, value) in enumerate(pairs):
            if to == text or (to == "" and setting in known):
                settings[setting] = value
                used.add(index)
        make_config(kind, settings, preset or None)
        specs.append(
            AlgorithmSpec(name, preset or None, settings, kind.serves_all_limits, kind.acts_likeliest)
        )
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
    acting: Acting = "draws",
    *,
    once: bool = False,
) -> list[Cell]:
    """The cells, in the order tasks, seeds, algorithms, limits; `limits` by task, as texts.

    common: `episodes` of the measurement, `curve_every` iterations and `curve_episodes`, and
    `budget_seconds` where time decides; one model for all limits then has the budget of one cell, and unless
    `once`, in a cell of its own, that of all of them. acting: see `ways_of_acting`.
    """
    cells = []
    for source, seed, spec in itertools.product(sources, seeds, specs):
        own = list(limits[source.task])
        # limits that a cell holds, and the budget where it is another than the common one
        groups: list[tuple[list[str], dict[str, float]]] = [([limit], {}) for limit in own]
        if spec.serves_all_limits:
            groups = [(own, {})]
            if not once and "budget_seconds" in common and len(own) > 1:
                groups.append((own, {"budget_seconds": common["budget_seconds"] * len(own)}))
        for group, extra in groups:
            cells.append(
                {
                    "task": source.task, "algorithm": spec.name, "preset": spec.preset, "limits": group,
                    "seed": seed, "settings": dict(spec.settings), "data": source.fingerprint,
                    "source": source.kind, **common, "deterministic": ways_of_acting(spec, acting), **extra,
                }
            )  # fmt: skip
    return cells


def ways_of_acting(spec: AlgorithmSpec, acting: Acting) -> list[bool]:
    """Whether a policy takes its most likely action, for each way that it is measured in.

    draws, likeliest: that way; published: as its authors evaluate it; both: as its authors, then the other.
    """
    if acting in ("draws", "likeliest"):
        return [acting == "likeliest"]
    return [spec.acts_likeliest, *([not spec.acts_likeliest] if acting == "both" else [])]


@dataclass(frozen=True)
class CellWork:
    """The work of a cell, as worker processes get it: where the data are, where runs go.

    experiment: the word after `slater reproduce`; folder: data folder as the user gave it; bare: whether the
    sources are bare copies of what is there.
    """

    experiment: str
    out: str
    folder: str
    sources: tuple[TaskData, ...]
    bare: bool = False

    def __call__(self, cell: Cell) -> Row:
        """Train or resume, measure; a row with `results`, one per limit, or with `failed`, a sentence."""
        from slater.deep import DivergedError

        begun = time.time()
        try:
            folder = self.run_folder(cell)
            found, extra = self._train_and_measure(cell, folder)
        except (InputError, DivergedError) as error:
            return {"failed": str(error)}
        return {
            "results": found,
            "command": self.command({**cell, **extra}),
            **extra,
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
        key = key_of(cell)
        limits = "+".join(text.replace("/", "-per-") for text in cell["limits"])
        algorithm = cell["algorithm"] + (f".{cell['preset']}" if cell["preset"] else "")
        return Path(self.out) / "runs" / f"{cell['task']}-{algorithm}-limit{limits}-seed{cell['seed']}-{key}"

    def command(self, cell: Cell) -> str:
        """The one command that runs this cell alone, in a folder of its own."""
        algorithm = cell["algorithm"] + (f":{cell['preset']}" if cell["preset"] else "")
        ways = cell["deterministic"]
        acting = "both" if len(ways) > 1 else "likeliest" if ways[0] else "draws"
        words = [
            "slater", "reproduce", self.experiment, "--data", self.folder, "--tasks", cell["task"],
            "--algorithms", algorithm, "--limits", *cell["limits"], "--seed", str(cell["seed"]),
            "--seeds", "1", "--episodes", str(cell["episodes"]), "--acting", acting,
        ]  # fmt: skip
        words += ["--bare"] * self.bare
        settings: Mapping[str, str] = cell["fitted"] if "fitted" in cell else cell["settings"]
        words += ["--steps", settings["steps"]]
        if cell["curve_every"] is not None:
            words += ["--curve-every", str(cell["curve_every"])]
            words += ["--curve-episodes", str(cell["curve_episodes"])]
        for name, value in settings.items():
            if name != "steps":
                words += ["--set", f"{algorithm}:{name}={value}"]
        return shlex.join([*words, "--out", "again"])

    def progress(self, cell: Cell) -> float:
        """How much of the cell's training is done, from 0 to 1; never quite 1: it is measured at the end."""
        folder = self.run_folder(cell)
        if (seconds := cell.get("budget_seconds")) is None:
            return share_done(folder, int(cell["settings"]["steps"]))
        return min(0.95 * budget.Stopwatch(self._beside(folder)).before / seconds, 0.95)

    def _beside(self, folder: Path) -> Path:
        """Where a run with a budget keeps its time, and the model of its log."""
        return Path(self.out) / "spent" / folder.name

    def _fitted(self, cell: Cell, dataset: Dataset) -> dict[str, str]:
        """The cell's settings for what its budget holds; one speed for all its seeds and limits."""
        limits, most = cell["limits"][:1], budget.authors_steps(cell["algorithm"], cell["preset"])

        def settings(steps: int) -> dict[str, str]:
            return budget.scaled(cell["algorithm"], cell["preset"], steps, cell["settings"])

        def short_run(folder: Path, steps: int) -> None:
            with budget.own_cache(folder.with_name("cache")):
                train_or_resume({**cell, "settings": settings(steps)}, dataset, limits, folder, {})

        alike = {name: cell[name] for name in ("task", "algorithm", "preset", "settings", "data")}
        alike["budget"] = cell["budget_seconds"]
        key = key_of(alike)
        speed = budget.known_speed(
            Path(self.out) / "speeds" / f"{cell['task']}-{cell['algorithm']}-{key}.json",
            lambda: budget.measure_speed(budget.trial_of(short_run), cell["budget_seconds"], most),
        )
        return settings(speed.iterations(cell["budget_seconds"], most))

    def _train_and_measure(self, cell: Cell, folder: Path) -> tuple[list[Row], Row]:
        """Results, one for each limit and way of acting; and what a budget became, where there is one."""
        from slater.data import load
        from slater.policy import load as load_policy
        from slater.policy import with_limits

        source = self._source(cell)
        if self.bare and not Path(source.path).exists():  # this machine shares no folder with the planner's
            (whole,), _ = find_task_data([source.task], self.folder)
            bare_copy(whole, Path(source.path).parent)
        dataset = load(source.path)
        if dataset.fingerprint != cell["data"]:
            raise InputError(f"{source.path} changed while the experiment ran: its fingerprint differs.")
        options: dict[str, Any] = {"data": source.path, "env": source.env}
        if cell["curve_every"] is not None:
            options |= {"eval_every": cell["curve_every"], "eval_episodes": cell["curve_episodes"]}
            # a rollout is kept in the row of metrics of its own iteration only
            options["log_every"] = math.gcd(100, cell["curve_every"])
        extra: Row = {}
        if "budget_seconds" in cell:
            extra["fitted"] = self._fitted(cell, dataset)
            watch = budget.Stopwatch(self._beside(folder))
            with budget.own_cache(self._beside(folder) / "cache"):
                fitted = {**cell, "settings": extra["fitted"]}
                train_or_resume(fitted, dataset, cell["limits"][:1], folder, options, watch)
            watch.write()
            extra["processor_seconds"] = round(watch.seconds, 1)
        else:
            train_or_resume(cell, dataset, cell["limits"][:1], folder, options)
        done = open_run(folder)
        curve = [
            [row["step"], row["eval/return"], row["eval/cost"]] for row in done.metrics.having("eval/return")
        ]
        policy: Any = load_policy(folder / "mixture.safetensors")
        found = []
        for text, deterministic in itertools.product(cell["limits"], cell["deterministic"]):
            limit = per_episode(text, source.horizon)
            measured = measure(
                with_limits(policy, [limit]) if len(cell["limits"]) > 1 else policy,
                source.env, episodes=cell["episodes"], seed=EVALUATION_SEED + cell["seed"],
                deterministic=deterministic, discount=done.task.gamma,
            )  # fmt: skip
            estimates = done.result.per_episode or {}
            found.append(
                {
                    "limit": text, "limit_per_episode": limit, "deterministic": deterministic,
                    "horizon": source.horizon, **scores(source.env, measured, limit), **measured,
                    "estimated_reward": estimates.get("reward"),
                    "estimated_cost": estimates.get(dataset.cost_names[0]), "curve": curve,
                }
            )  # fmt: skip
        return found, extra


def share_done(folder: Path, steps: int) -> float:
    """How much of a run of `steps` iterations is done, by its metrics; at most .95."""
    return 0.95 * last_step(folder) / steps


def train_or_resume(
    cell: Cell, dataset: Dataset, limits: Sequence[str], folder: Path, options: Mapping[str, Any],
    watcher: Any = None,
) -> None:  # fmt: skip
    """Train what `cell` says (algorithm, preset, settings, seed) into `folder`, from where it was left.

    options: other fields of `slater.deep.Run`. A whole run is left as it is.
    """
    job = TrainJob(
        folder, cell["algorithm"], "", tuple(limits), cell["settings"], cell["preset"], cell["seed"], options
    )
    job.into_folder(dataset, watcher)


def results(rows: Sequence[Row]) -> list[Row]:
    """One flat row per cell and limit, without what failed: settings of the cell, then its result."""
    flat = []
    for row in rows:
        settings = {k: v for k, v in row.items() if k not in ("results", "limits")}
        flat += [{**settings, **result} for result in row.get("results", ())]
    return flat


def _versions(env: str) -> dict[str, str]:
    """Versions that the numbers depend on; `code` tells apart states of the same version."""
    simulator = "pybullet" if env.startswith("bullet/") else "mujoco"
    versions = {"slater": __version__, "code": _code(), "python": platform.python_version()}
    return versions | {name: metadata.version(name) for name in ("jax", "numpy", simulator)}


def _code() -> str:
    """Eight digits of the SHA-256 of every source file but those of commands, experiments and reports."""
    root = Path(__file__).parent.parent
    content = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] not in ("commands", "experiments", "report", "tabular", "collect"):
            content.update(path.read_bytes())
    return content.hexdigest()[:8]
