"""OSRL's own code in our table: its BC-Safe and CPQ on PyTorch, on the same bare logs, for the same time.

    pip install --no-deps --target osrl-lib osrl-lib==0.1.0     (its pins are of 2023)
    python -m benchmarks.osrl --package osrl-lib --data data --tasks BallCircle --minutes 3 --out runs/osrl
    slater reproduce tables runs/equal runs/osrl --out runs/table

Its classes are used as they are: models, trainers, the choice of safe episodes, and its loader, which reads
one row at a time, in the process itself, since a cell has one core. The loop around them is that of its
training scripts (which are not in the package) without the evaluations: batches from a `DataLoader` into
`train_one_step`, until the time is spent or after 100,000 iterations. Settings are those of its scripts;
`--hidden` and `--batch` change sizes, so that it has those of the other rows. The last policy is measured,
by its most likely actions, as OSRL does.

What its modules import at their head and do not need here is put in its place: `fsrl.utils` (loggers, which
are told losses) by a class that forgets what it is told. OApackage, which CDT's augmentation uses, is missed
by a printed line of theirs. That is all.

A finished cell is a line of `cells.jsonl` and is not run again; a cell that was stopped starts over.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shlex
import sys
import time
import types
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater import __version__
from slater.data import load
from slater.envs import make
from slater.errors import InputError
from slater.experiments.benchmark import EVALUATION_SEED
from slater.experiments.budget import processor_seconds
from slater.experiments.measuring import measure, scores
from slater.experiments.task_data import TaskData, bare_copy, find_task_data, task_name
from slater.jobs.cells import prepare, run_cells, write_settings
from slater.jobs.engines import Cell, Row
from slater.policy.base import MemorylessActor

VERSION = "0.1.0"
#: iterations of its scripts
MOST = 100_000
#: as its scripts name the algorithms; the rows are "osrl-bc-safe" and "osrl-cpq"
ALGORITHMS = ("bc-safe", "cpq")
GAMMA = 0.99


class Forgetful:
    """In the place of FSRL's loggers."""

    def store(self, *_: Any, **__: Any) -> None:
        """Forget."""


def import_osrl(package: str) -> Any:
    """The package below the folder `package`, with `fsrl.utils` in place; its module `osrl.algorithms`."""
    if not (Path(package) / "osrl").is_dir():
        raise InputError(
            f"{package} has no osrl; run: pip install --no-deps --target {package} osrl-lib=={VERSION}"
        )
    sys.path.append(str(Path(package).resolve()))
    fsrl, utils = types.ModuleType("fsrl"), types.ModuleType("fsrl.utils")
    vars(utils).update(DummyLogger=Forgetful, WandbLogger=Forgetful)
    sys.modules.update({"fsrl": fsrl, "fsrl.utils": utils})
    import osrl.algorithms
    import osrl.common.dataset
    import osrl.common.exp_util

    return osrl


class Actions:
    """A model of OSRL as a policy: its likeliest action, observation by observation."""

    def __init__(self, choose: Any) -> None:
        self.choose = choose

    def act(
        self, observations: NDArray[Any], *, rng: np.random.Generator, deterministic: bool = False
    ) -> NDArray[Any]:
        """Actions (batch, action_dim) for observations (batch, obs_dim)."""
        import torch

        del rng, deterministic
        with torch.no_grad():
            return np.stack([self.choose(row.astype(np.float32)) for row in observations])

    def begin(self, *, rng: np.random.Generator, deterministic: bool = False) -> MemorylessActor:
        """Start an episode; nothing is remembered."""
        return MemorylessActor(self, rng, deterministic)


def train(osrl: Any, cell: Cell, source: TaskData) -> tuple[Actions, int, float]:
    """OSRL's model trained on a log: its policy, its iterations, and the processor seconds that it took."""
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    osrl.common.exp_util.seed_all(cell["seed"])
    log = load(source.path)
    env: Any = make(source.env)
    (_, actions), high = log.actions.shape, float(env.action_space.high[0])
    hidden = [int(size) for size in cell["settings"]["hidden"].split("x")]
    limit, batch = float(cell["limits"][0]), int(cell["settings"]["batch_size"])
    begun = processor_seconds()
    # names of DSRL's files
    rows = {
        "observations": log.observations, "next_observations": log.next_observations, "actions": log.actions,
        "rewards": log.rewards, "costs": log.costs[:, 0],
        "terminals": log.terminals, "timeouts": log.timeouts,
    }  # fmt: skip
    rows = {name: np.array(column) for name, column in rows.items()}
    sizes = {"state_dim": log.observations.shape[1], "action_dim": actions, "max_action": high}
    if cell["algorithm"] == "osrl-bc-safe":
        osrl.common.dataset.process_bc_dataset(rows, limit, 1.0, "safe")
        model = osrl.algorithms.BC(**sizes, a_hidden_sizes=hidden, episode_len=log.horizon)
        trainer = osrl.algorithms.BCTrainer(
            model, env, Forgetful(), actor_lr=1e-3, bc_mode="safe", cost_limit=limit
        )
        dataset = osrl.common.dataset.TransitionDataset(rows)
        used: tuple[int, ...] = (0, 2)
        choose = model.act
    else:
        model = osrl.algorithms.CPQ(
            **sizes, a_hidden_sizes=hidden, c_hidden_sizes=hidden,
            vae_hidden_sizes=int(cell["settings"]["vae_hidden"]), sample_action_num=10, gamma=GAMMA,
            tau=0.005, beta=0.5, num_q=2, num_qc=2, qc_scalar=1.5, cost_limit=limit, episode_len=log.horizon,
        )  # fmt: skip
        trainer = osrl.algorithms.CPQTrainer(
            model, env, Forgetful(), actor_lr=1e-4, critic_lr=1e-3, alpha_lr=1e-4, vae_lr=1e-3,
            reward_scale=0.1, cost_scale=1.0,
        )  # fmt: skip
        dataset = osrl.common.dataset.TransitionDataset(rows, reward_scale=0.1, cost_scale=1.0)
        used = (0, 1, 2, 3, 4, 5)

        def choose(row: NDArray[np.float32]) -> Any:
            return model.act(row, True, True)[0]

    batches = iter(DataLoader(dataset, batch_size=batch))
    steps = 0
    while steps < MOST and processor_seconds() - begun < cell["budget_seconds"]:
        drawn = next(batches)
        trainer.train_one_step(*(drawn[k] for k in used))
        steps += 1
    model.eval()
    return Actions(choose), steps, processor_seconds() - begun


@dataclass(frozen=True)
class OSRLWork:
    """A cell of the table by OSRL; package: where it is installed; folder: of the data, as it was given."""

    package: str
    folder: str
    sources: tuple[TaskData, ...]

    def __call__(self, cell: Cell) -> Row:
        """Train and measure; the row of `slater reproduce table2`, or `failed`, a sentence."""
        begun = time.time()
        source = next(source for source in self.sources if source.task == cell["task"])
        try:
            policy, steps, seconds = train(import_osrl(self.package), cell, source)
        except (InputError, ValueError) as error:  # no episode is within the limit: an empty batch
            return {"failed": str(error)}
        limit = float(cell["limits"][0])
        measured = measure(
            policy, source.env, episodes=cell["episodes"], seed=EVALUATION_SEED + cell["seed"],
            deterministic=True, discount=GAMMA,
        )  # fmt: skip
        result = {
            "limit": cell["limits"][0], "limit_per_episode": limit, "deterministic": True,
            "horizon": source.horizon, **scores(source.env, measured, limit), **measured,
            "estimated_reward": None, "estimated_cost": None, "curve": [],
        }  # fmt: skip
        settings = cell["settings"]
        command = [
            "python", "-m", "benchmarks.osrl", "--package", self.package, "--data", self.folder,
            "--tasks", cell["task"], "--algorithms", cell["algorithm"].removeprefix("osrl-"),
            "--limits", cell["limits"][0], "--seed", str(cell["seed"]), "--episodes", str(cell["episodes"]),
            "--minutes", f"{cell['budget_seconds'] / 60:g}", "--hidden", settings["hidden"],
            "--batch", settings["batch_size"], "--vae-hidden", settings.get("vae_hidden", "400"),
            "--out", "again",
        ]  # fmt: skip
        return {
            "results": [result],
            "command": shlex.join(command),
            "fitted": {"steps": str(steps), **settings},
            "processor_seconds": round(seconds, 1),
            "run": f"{cell['task']}-{cell['algorithm']}-limit{cell['limits'][0]}-seed{cell['seed']}",
            "seconds": round(time.time() - begun, 1),
            "versions": {
                "slater": __version__, "code": f"osrl-lib {VERSION}", "torch": metadata.version("torch"),
                "python": platform.python_version(), "numpy": metadata.version("numpy"),
                "pybullet": metadata.version("pybullet"),
            },
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        }  # fmt: skip


def main() -> None:
    """Run what is missing, and say what came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--package", required=True, help="folder that osrl-lib was installed into")
    parser.add_argument("--data", default="data", help="folder of the datasets")
    parser.add_argument("--tasks", nargs="+", default=["BallCircle"])
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--limits", nargs="+", default=["10", "20", "40"], help="cost per episode")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=3.0, help="of one core, a cell")
    parser.add_argument("--hidden", default="256x256", help="of actor and critics (its scripts: 256x256)")
    parser.add_argument("--batch", default="512", help="rows of a minibatch (its scripts: 512)")
    parser.add_argument("--vae-hidden", default="400", help="width of CPQ's CVAE (its scripts: 400)")
    parser.add_argument("--out", type=Path, default=Path("runs/osrl"))
    options = parser.parse_args()
    import_osrl(options.package)
    out = prepare(options.out)
    sources, _ = find_task_data([task_name(text) for text in options.tasks], options.data)
    sources = [bare_copy(source, out / "data") for source in sources]
    cells: list[Cell] = [
        {
            "task": source.task, "algorithm": f"osrl-{name}", "preset": None, "limits": [limit],
            "seed": options.seed,
            "settings": {
                "hidden": options.hidden, "batch_size": options.batch,
                **({"vae_hidden": options.vae_hidden} if name == "cpq" else {}),
            },
            "data": source.fingerprint, "source": source.kind, "episodes": options.episodes,
            "curve_every": None, "curve_episodes": 5, "budget_seconds": 60.0 * options.minutes,
            "deterministic": [True],
        }
        for source in sources
        for name in options.algorithms
        for limit in options.limits
    ]  # fmt: skip
    work = OSRLWork(options.package, options.data, tuple(sources))
    left_out = []
    for row in run_cells(work, cells, out, workers=1, engine="fresh"):
        name = f"{row['task']}, {row['algorithm']}, limit {row['limits'][0]}"
        if "failed" in row:
            left_out.append(f"{name}, seed {row['seed']} failed: {row['failed']}")
            print(left_out[-1])
            continue
        (found,) = row["results"]
        print(
            f"{name}: {found['return']:.1f} at {found['cost']:.2f} after {row['fitted']['steps']} iterations "
            f"in {row['processor_seconds']} s"
        )
    write_settings(
        out, "table2",
        {"osrl": VERSION, "limits": options.limits, "tasks": options.tasks, "left_out": left_out},
    )  # fmt: skip


if __name__ == "__main__":
    main()
