"""Every policy that a run kept, in the simulator: its estimate beside the truth, and other outputs.

What a mixture is worth is the weighted sum of what its members are worth, so one set of rollouts judges all
ways to choose among them:

    mixture    the weights that the run chose
    last       the last kept policy alone
    uniform    all that the game made, with equal weight: the paper's output
    best       of those that keep the limits by their estimates, the one with the best estimated reward
    hindsight  the weights that the linear program finds from the true values: what choosing could give
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slater.errors import InputError
from slater.runs import Member, TaskRecord, open_run
from slater.runs.evaluations import Evaluation, add_evaluation
from slater.runs.folder import kept_path
from slater.runs.result import from_log

F64 = NDArray[np.float64]


def measure_members(
    folder: Path, env: str, *, episodes: int = 5, seed: int = 0,
    tick: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """`members`: step, weight, measured and estimated sums per episode; `outputs`: what each is worth.

    folder: a finished run, whose `evaluations.jsonl` gets a line per member. episodes: per member.
    tick(done, total) hears of every member.
    """
    from slater.envs import rollout

    saved = open_run(folder)
    result, task = saved.result, saved.task
    if any(limit.episode is None for limit in result.limits):
        raise InputError("the run knows no horizon, so its limits cannot be stated per episode.")
    limits = np.array([limit.episode for limit in result.limits], dtype=np.float64)
    costs = [limit.cost for limit in result.limits]
    rows = result.members
    measured = np.zeros((len(rows), 1 + len(limits)))
    for index, row in enumerate(rows):
        ran = rollout(
            saved.kept_policy(row), env, episodes=episodes, seed=seed + 10_000 * index, discount=task.gamma
        )
        measured[index] = [ran.returns.mean(), *ran.mean_costs(costs)]
        file = kept_path(folder, row.step)
        add_evaluation(folder, Evaluation.of(file.name, file, ran, task, None))
        if tick is not None:
            tick(index + 1, len(rows))
    estimated = _estimates(rows, costs, task)
    names = ("return", *costs)
    members = []
    for index, row in enumerate(rows):
        line = {"step": row.step, "kind": row.kind, "weight": row.weight} | _named(names, measured[index])
        if estimated is not None:
            line |= {f"estimated_{name}": value for name, value in _named(names, estimated[index]).items()}
        members.append(line)
    weights = _outputs(rows, measured, estimated, limits)
    outputs = [{"output": name, **_named(names, w @ measured)} for name, w in weights.items()]
    return {"limits": limits.tolist(), "episodes": episodes, "members": members, "outputs": outputs}


def _outputs(rows: Sequence[Member], measured: F64, estimated: F64 | None, limits: F64) -> dict[str, F64]:
    """Weights over the members, by the name of the output."""
    from slater.mixing import lp_weights

    each = np.eye(len(rows))
    played = np.array([not from_log(row.kind) for row in rows])
    answer = {
        "mixture": np.array([row.weight for row in rows]), "last": each[-1],
        "uniform": played / played.sum(),
    }  # fmt: skip
    if estimated is not None:
        excess = np.max(estimated[:, 1:] / np.maximum(limits, 1e-9), axis=1)
        safe = excess <= 1
        best = np.where(safe, estimated[:, 0], -np.inf).argmax() if safe.any() else excess.argmin()
        answer["best"] = each[best]
    return answer | {"hindsight": lp_weights(measured, limits)}


def _estimates(rows: Sequence[Member], costs: Sequence[str], task: TaskRecord) -> F64 | None:
    """Estimated sums per episode, shape (K, 1+I), or None where there are none."""
    found = [task.per_episode(row.estimates) for row in rows if row.estimates is not None]
    if len(found) < len(rows):
        return None
    return np.array([[row[name] for name in ("reward", *costs)] for row in found])


def _named(names: Sequence[str], values: F64) -> dict[str, float]:
    return dict(zip(names, map(float, values), strict=True))
