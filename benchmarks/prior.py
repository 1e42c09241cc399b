"""What the posterior's prior was learned on: candidates of small worlds, what the log model says, and the
truth.

    python -m benchmarks.prior --seeds 0 1 --episodes 100 300 --folder runs/prior

For every world and seed a bare log is recorded and fitted, every candidate is measured in the world, and the
prior's five numbers are fitted by the likelihood of the truth, for costs and for returns. Prints them with
the share of truths in 80% and 95% intervals; a world that is stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import pickle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from slater.deep.log_model.clones import one_of
from slater.deep.log_model.log_model import fit_log_model, settings_of
from slater.deep.ope import posterior as ope
from slater.deep.ope.rollouts import outcomes_of
from slater.deep.task import state_task
from slater.experiments.small_worlds import WORLDS
from slater.experiments.worlds import recorded, true_value
from slater.limits import resolve_limits

#: the state of `wear` is hidden: no function of the observation is right there
LEFT_OUT = ("wear",)


def measured(name: str, episodes: int, seed: int, folder: Path) -> dict[str, Any]:
    """What the posterior is made of for one log, and the truth, (P, 1+I) in J-units."""
    path = folder / f"{name}-{episodes}-{seed}.pkl"
    if path.exists():
        return dict(pickle.loads(path.read_bytes()))
    world = WORLDS[name]()
    dataset = recorded(world, episodes, seed)
    limits = resolve_limits([str(limit) for limit in world.limits], dataset.cost_names)
    task, key = state_task(dataset, limits, 0.99), jax.random.key(0)
    log = fit_log_model(dataset, task, settings_of(dataset))
    apart, far = ope.divergences([log.candidates], jnp.asarray(log.obs), log.whole, task.discrete, key)
    true = np.array(
        [true_value(world, one_of(log.candidates, k).export(task)) for k in range(len(log.kinds))]
    )
    found = {
        "values": outcomes_of(task, log.dynamics, log.candidates, log.first, key), "apart": apart, "far": far,
        "shown": ope._shown(log, key), "sums": log.sums, "event": log.event, "tau": task.tau,
        "true": true * task.scale / (world.horizon * 0.01),
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(found))
    return found


def standardised(runs: list[dict[str, Any]], prior: ope.Prior, cost: bool) -> tuple[float, np.ndarray]:
    """The mean negative log-likelihood of the truth, and its errors in standard deviations."""
    losses, errors = [], []
    for run in runs:
        for u in range(1, run["true"].shape[1]) if cost else [0]:
            shown = [(k, did[:, u], said[u]) for k, did, said in run["shown"]]
            mean, covariance, _ = ope._conditioned(
                run["values"][..., u], run["sums"][:, u], run["apart"], run["far"], shown, prior,
                float(run["event"][u]) if u else None,
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
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--episodes", type=int, nargs="+", default=[100, 300])
    parser.add_argument("--folder", type=Path, default=Path("runs/prior"))
    options = parser.parse_args()
    runs = [
        measured(name, episodes, seed, options.folder)
        for seed in options.seeds for episodes in options.episodes for name in WORLDS if name not in LEFT_OUT
    ]  # fmt: skip
    for cost, start in ((True, ope.COST_PRIOR), (False, ope.REWARD_PRIOR)):
        first = np.log(np.maximum(start, 1e-3))

        def loss(x: np.ndarray, cost: bool = cost, first: np.ndarray = first) -> float:
            return standardised(runs, ope.Prior(*np.exp(x)), cost)[0] + 0.01 * float(np.sum((x - first) ** 2))

        found = minimize(loss, first, method="Nelder-Mead", options={"maxiter": 250})
        for what, prior in (("in force", start), ("fitted", ope.Prior(*np.exp(found.x)))):
            value, z = standardised(runs, prior, cost)
            numbers = ", ".join(f"{name} {value:.3g}" for name, value in prior._asdict().items())
            print(
                f"{'costs' if cost else 'returns'}, {what}: {numbers}; loss {value:.3f}; in 80% intervals "
                f"{np.mean(np.abs(z) < 1.282):.0%}, in 95% intervals {np.mean(np.abs(z) < 1.96):.0%}"
            )


if __name__ == "__main__":
    main()
