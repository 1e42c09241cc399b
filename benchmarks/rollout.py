"""Do rollouts keep the cores busy? Steps per second with two workers against one.

    python -m benchmarks.rollout [--rounds 3] [--seconds 4]

Runs with one and with two workers alternate, and the best of each counts, because other programs only ever
slow a run down. Three columns say what they did to it:

- others: the share of the machine that other programs used in the best runs;
- ready: the share of the time in which the two workers ran or were ready to run (as the kernel counts it),
  rather than waiting for work;
- per CPU s: steps per second of the workers' own CPU time, with two workers against one.

On two free cores the ratio is 2 * ready * per CPU s. The policy is a network of two layers of 256, in NumPy.
Results go to benchmarks/results/rollout.json.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import cyclopts
import numpy as np
from numpy.typing import NDArray

from slater.envs import Rollout, Workers, make, rollout

ENVIRONMENTS = (
    "bullet/BallCircle", "bullet/CarCircle", "bullet/AntRun",
    "rwrl/cartpole", "rwrl/walker", "rwrl/quadruped",
)  # fmt: skip
TICKS = os.sysconf("SC_CLK_TCK")
CORES = os.cpu_count() or 1


@dataclass(frozen=True)
class Network:
    layers: tuple[NDArray[np.float32], ...]

    @staticmethod
    def random(obs: int, act: int) -> Network:
        rng, sizes = np.random.default_rng(0), (obs, 256, 256, act)
        return Network(
            tuple(
                (rng.normal(size=(a, b)) / np.sqrt(a)).astype(np.float32)
                for a, b in itertools.pairwise(sizes)
            )
        )

    def act(
        self, observations: NDArray[Any], *, rng: np.random.Generator, deterministic: bool = False
    ) -> NDArray[Any]:
        hidden: NDArray[Any] = observations.astype(np.float32)
        for weights in self.layers:
            hidden = np.tanh(hidden @ weights)
        return hidden if deterministic else hidden + 0.15 * rng.normal(size=hidden.shape)

    def begin(self, *, rng: np.random.Generator, deterministic: bool = False) -> Actor:
        return Actor(self, rng, deterministic)


@dataclass(frozen=True)
class Actor:
    network: Network
    rng: np.random.Generator
    deterministic: bool

    def act(self, observation: NDArray[Any]) -> NDArray[Any]:
        return self.network.act(observation, rng=self.rng, deterministic=self.deterministic)

    def observe(self, reward: float, costs: NDArray[np.float64]) -> None:
        pass


def workers_time() -> NDArray[np.float64]:
    """Seconds so far that the living workers ran on a core, and that they waited for one."""
    total = np.zeros(2)
    for process in multiprocessing.active_children():
        nanoseconds = Path(f"/proc/{process.pid}/schedstat").read_text().split()[:2]
        total += np.array(nanoseconds, dtype=np.float64) * 1e-9
    return total


def machine_cpu() -> float:
    """CPU seconds so far of every program on the machine."""
    user, nice, system, _idle, _wait, irq, softirq, *_ = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / TICKS


@dataclass(frozen=True)
class Run:
    steps_per_second: float
    steps_per_cpu_second: float
    ready_share: float
    others_share: float


def measure(policy: Network, env_id: str, episodes: int, workers: Workers) -> Run:
    rollout(policy, env_id, workers.count, workers=workers)  # the environments are made, the caches warm
    before, all_before, start = workers_time(), machine_cpu(), time.perf_counter()
    result: Rollout = rollout(policy, env_id, episodes, workers=workers)
    wall = time.perf_counter() - start
    ran, waited = workers_time() - before
    steps = float(result.lengths.sum())
    return Run(
        steps_per_second=steps / result.seconds,
        steps_per_cpu_second=steps / ran,
        ready_share=min(1.0, (ran + waited) / (result.seconds * workers.count)),
        others_share=max(0.0, machine_cpu() - all_before - ran) / (wall * CORES),
    )


def main(
    rounds: Annotated[int, cyclopts.Parameter(help="runs of each kind")] = 3,
    seconds: Annotated[float, cyclopts.Parameter(help="length of a run with one worker, in seconds")] = 4.0,
    only: Annotated[tuple[str, ...], cyclopts.Parameter(help="environments to measure (default: all)")] = (),
) -> None:
    """Measure steps per second with one and two workers; `expected` is what two free cores would give."""
    rows = []
    print("environment           1 worker  2 workers  ratio  others  ready  per CPU s  expected")
    for env_id in only or ENVIRONMENTS:
        env = make(env_id)
        policy = Network.random(
            *(int(s.shape[0]) for s in (env.observation_space, env.action_space) if s.shape)
        )
        trial = rollout(policy, env_id, 2)
        episodes = 2 * max(6, round(seconds * len(trial) / trial.seconds / 2))
        runs: dict[int, list[Run]] = {1: [], 2: []}
        for _ in range(rounds):
            for count, done in runs.items():
                with Workers(count) as workers:
                    done.append(measure(policy, env_id, episodes, workers))
        one, two = (max(done, key=lambda run: run.steps_per_second) for done in runs.values())
        ratio = two.steps_per_second / one.steps_per_second
        per_cpu = two.steps_per_cpu_second / one.steps_per_cpu_second
        others = max(one.others_share, two.others_share)
        print(
            f"{env_id:<20}{one.steps_per_second:>10.0f}{two.steps_per_second:>11.0f}{ratio:>7.2f}"
            f"{others:>8.0%}{two.ready_share:>7.0%}{per_cpu:>11.2f}{2 * two.ready_share * per_cpu:>10.2f}",
            flush=True,
        )
        rows.append(
            {"env": env_id, "episodes": episodes, "ratio": ratio, "per_cpu_ratio": per_cpu}
            | {f"{name}_worker": vars(run) for name, run in (("one", one), ("two", two))}
        )
    if only:
        return  # a part is to look at, not to keep
    out = Path(__file__).parent / "results" / "rollout.json"
    out.parent.mkdir(exist_ok=True)
    record = {
        "cores": CORES,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "rows": rows,
    }
    out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    cyclopts.run(main)
