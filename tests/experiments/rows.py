"""Rows of finished cells, as the benchmarks write them, without the training: for tables and reports."""

from __future__ import annotations

import numpy as np

from slater.jobs.engines import Row


def make_row(
    task: str = "BallCircle", algorithm: str = "pdca", preset: str | None = None, limit: str = "20",
    seed: int = 0, steps: int = 1000, data: str = "a" * 64, source: str = "own", horizon: int = 200,
) -> Row:  # fmt: skip
    rng = np.random.default_rng([seed, len(algorithm), int(float(limit.split("/")[0]) * 100)])
    per_episode = float(limit.split("/")[0]) * (horizon if "/step" in limit else 1)
    reward, cost = 400 + 100 * rng.random(), per_episode * (0.5 + rng.random())
    return {
        "task": task, "algorithm": algorithm, "preset": preset, "limits": [limit], "seed": seed,
        "settings": {"steps": str(steps)}, "data": data, "source": source, "episodes": 20,
        "deterministic": False, "curve_every": 250, "curve_episodes": 5,
        "command": f"slater reproduce table2 --tasks {task} --seed {seed}", "run": f"runs/{task}-{seed}",
        "seconds": 60.0, "versions": {"slater": "0.1.0", "jax": "0.5"}, "machine": "x86_64, 2 cores",
        "date": "2026-01-01",
        "results": [
            {
                "limit": limit, "limit_per_episode": per_episode, "horizon": horizon,
                "normalised_reward": reward / 881, "normalised_cost": cost / per_episode,
                "return": reward, "cost": cost, "discounted_return": 1.0, "discounted_cost": 2.0,
                "return_se": 1.0, "cost_se": 0.5, "discounted_return_se": 0.1, "discounted_cost_se": 0.1,
                "members": 3, "estimated_reward": 1.1, "estimated_cost": 2.1,
                "curve": [[k * 250, 100.0 * k + 10 * seed, 10.0 * k] for k in range(1, 5)],
            }
        ],
    }  # fmt: skip
