"""What the posterior's prior was learned on: policies of runs on small worlds, what is said of them, and the
truth.

    python -m benchmarks.prior --seeds 0 1 --episodes 100 300 --folder runs/prior

For every world and seed a bare log is recorded and the default is trained on it; every candidate and every
policy of the game is measured in the world, and the prior's five numbers are fitted by the likelihood of the
truth, for costs and for returns. Prints them with the share of truths in 80% and 95% intervals; a world that
is there already is read.
"""

from __future__ import annotations

import argparse
import pickle
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import numpy as np
from scipy.optimize import minimize

from slater import deep
from slater.deep.algorithms.pdca import output
from slater.deep.log_model.clones import one_of
from slater.deep.ope import posterior as ope
from slater.deep.ope.rollouts import outcomes_of
from slater.experiments.small_worlds import WORLDS
from slater.experiments.worlds import recorded, true_value, world_of

#: the state of `wear` is hidden: no function of the observation is right there
LEFT_OUT = ("wear",)


def trained(name: str, episodes: int, seed: int, folder: Path) -> tuple[Any, ...]:
    """What a run on a world's log asks the posterior last: the log model, policies, halves."""
    world, folder = world_of(name), folder / "run"
    shutil.rmtree(folder, ignore_errors=True)
    with patch.object(output, "posterior_of", wraps=ope.posterior_of) as asked:
        limits = [str(limit) for limit in world.limits]
        deep.train("pdca", recorded(world, episodes, seed), limits, out=folder, seed=seed)
    return tuple(asked.call_args.args)


def measured(name: str, episodes: int, seed: int, folder: Path) -> dict[str, Any]:
    """What the posterior is made of for one log, and the truth, (P, 1+I) in J-units."""
    episodes = episodes or getattr(world_of(name), "episodes", 100)
    path = folder / f"{name}-{episodes}-{seed}.pkl"
    if path.exists():
        return dict(pickle.loads(path.read_bytes()))
    folder.mkdir(parents=True, exist_ok=True)
    log, game, halves = trained(name, episodes, seed, folder)
    task, key, world = log.task, jax.random.key(0), world_of(name)
    policies = [one_of(log.candidates, k) for k in range(len(log.kinds))] + list(game)
    acting = ope.acting_of(log, policies, key)
    values = outcomes_of(task, log.dynamics, policies, log.first, key)
    true = np.array([true_value(world, policy.export(task), 1000) for policy in policies])
    found = {
        "values": values, "judges": ope.judges_of([None] * len(log.kinds) + list(halves)),
        "acting": acting._asdict(), "shown": ope.shown(log, key), "sums": log.sums, "event": log.event,
        "tau": task.tau, "past": log.past, "true": true * task.scale / (world.horizon * 0.01),
        "game": np.arange(len(policies)) >= len(log.kinds),
    }  # fmt: skip
    path.write_bytes(pickle.dumps(found))
    return found


def standardised(runs: list[dict[str, Any]], prior: ope.Prior, cost: bool) -> tuple[float, np.ndarray]:
    """The mean negative log-likelihood of the truth, and its errors in standard deviations."""
    losses, errors = [], []
    for run in runs:
        for u in range(1, run["true"].shape[1]) if cost else [0]:
            shown = [(k, did[:, u], said[u]) for k, did, said in run["shown"]]
            mean, covariance, _ = ope.conditioned(
                run["values"][..., [u, -1]], run["judges"], run["sums"][:, u], ope.Acting(**run["acting"]),
                shown, prior, float(run["event"][u]) if u else None,
            )  # fmt: skip
            unit = float(run["tau"][u - 1]) if u else float(run["sums"][:, 0].std())
            variance = np.maximum(np.diag(covariance), 0.0) + (0.01 * unit) ** 2
            z = (run["true"][:, u] - mean) / np.sqrt(variance)
            # a reckless policy is in no mixture: those near the limit count most
            weights = 1.0 / (1.0 + (run["true"][:, u] / unit / 2.0) ** 2) if u else np.ones(len(z))
            loss = 0.5 * np.minimum(z**2, 16.0) + 0.5 * np.log(variance / unit**2)
            losses.append(float(np.average(loss, weights=weights)))
            errors.append(z)
    return float(np.mean(losses)), np.concatenate(errors)


def main() -> None:
    """Measure, fit, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--worlds", nargs="+", default=[name for name in WORLDS if name not in LEFT_OUT])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--episodes", type=int, nargs="+", default=[100, 300], help="0: a task's own number")
    parser.add_argument("--folder", type=Path, default=Path("runs/prior"))
    options = parser.parse_args()
    runs = [
        measured(name, episodes, seed, options.folder)
        for seed in options.seeds for episodes in options.episodes for name in options.worlds
    ]  # fmt: skip
    runs = [run for run in runs if not run["past"]]
    game = np.concatenate([run["game"] for run in runs])
    game_costs = np.concatenate([np.tile(run["game"], run["true"].shape[1] - 1) for run in runs])
    for cost, start in ((True, ope.COST_PRIOR), (False, ope.REWARD_PRIOR)):
        first, own = np.log(np.maximum(start, 1e-3)), game_costs if cost else game

        def loss(x: np.ndarray, cost: bool = cost, first: np.ndarray = first) -> float:
            return standardised(runs, ope.Prior(*np.exp(x)), cost)[0] + 0.01 * float(np.sum((x - first) ** 2))

        found = minimize(loss, first, method="Nelder-Mead", options={"maxiter": 250})
        for what, prior in (("in force", start), ("fitted", ope.Prior(*np.exp(found.x)))):
            value, z = standardised(runs, prior, cost)
            numbers = ", ".join(f"{name} {value:.3g}" for name, value in prior._asdict().items())
            print(f"{'costs' if cost else 'returns'}, {what}: {numbers}; loss {value:.3f}")
            for kind, some in (("the log's candidates", z[~own]), ("the game's policies", z[own])):
                print(f"  {kind}: in 80% intervals {np.mean(np.abs(some) < 1.282):.0%}, in 95% intervals "
                      f"{np.mean(np.abs(some) < 1.96):.0%}")  # fmt: skip


if __name__ == "__main__":
    main()
