"""The folder of a run as `slater train` leaves it, written by hand: reading needs no training."""

import json
from pathlib import Path

LIMIT = {
    "cost": "cost", "given": "cost=20", "episode": 20.0, "discounted": 9.0, "step": 0.1, "normalised": 1.0
}  # fmt: skip
RECORD = {
    "version": "0.1.0",
    "versions": {},
    "env_id": None,
    "run": {
        "algorithm": "pdca", "limits": ["cost=20"], "settings": {"steps": "200"}, "preset": None, "seed": 3,
        "data": "ball.hdf5", "fingerprint": "ab", "log_every": 100, "checkpoint_every": 1000, "env": None,
        "eval_every": None, "eval_episodes": 10, "memory": 4.0,
    },
    "config": {"steps": 200, "gamma": 0.99},
    "problem": {
        "obs_dim": 8, "action_dim": 2, "discrete": False, "costs": ["cost"], "gamma": 0.99, "horizon": 200,
        "limits": [LIMIT], "scale": [1.0, 1.0], "action_low": [-1.0, -1.0], "action_high": [1.0, 1.0],
        "identity": "cd",
    },
}  # fmt: skip
RESULT = {
    "algorithm": "pdca",
    "seed": 3,
    "steps": 200,
    "limits": [LIMIT],
    "members": [
        {
            "step": 40, "kind": "clone of the log", "weight": 0.25, "careful": True,
            "estimates": {"reward": 1.0, "cost": 2.0},
        },
        {
            "step": 200, "kind": "iterate", "weight": 0.75, "careful": True,
            "estimates": {"reward": 3.0, "cost": 4.0},
        },
    ],
    "limit_status": {"cost": "within"},
    "trusted": True,
    "mixture_estimates": {"reward": 2.5, "cost": 3.5},
    "mixture_per_episode": {"reward": 5.0, "cost": 7.0},
    "posterior": {"confidence": 0.95, "at_most": {"cost": 9.0}, "behaviours": 1, "scale": [1.0, 1.0]},
    "warnings": ["something"],
}  # fmt: skip


def write_two_costs(folder: Path, names: tuple[str, str]) -> Path:
    """A finished run under limits on two costs, listed in this order, with two policies that it kept."""
    import numpy as np

    from slater.policy import Contract, GaussianPolicy, save

    limits = [{**LIMIT, "cost": name, "given": f"{name}=20"} for name in names]
    values = [{"reward": 1.0, "a": 2.0, "b": 9.0}, {"reward": 3.0, "a": 6.0, "b": 1.0}]
    members = [
        {
            "step": 20 * (k + 1), "kind": "iterate", "weight": 0.5,
            "estimates": {name: sums[name] for name in ("reward", *names)},
        }
        for k, sums in enumerate(values)
    ]  # fmt: skip
    known = dict.fromkeys(names, "within")
    result = {**RESULT, "limits": limits, "members": members, "limit_status": known}
    result = {name: value for name, value in result.items() if not name.startswith("mixture_")}
    write_run(folder, result=result)
    problem = {**RECORD["problem"], "costs": list(names), "limits": limits, "scale": [1.0, 1.0, 1.0]}
    run = {**RECORD["run"], "limits": [limit["given"] for limit in limits]}
    (folder / "run.json").write_text(json.dumps({**RECORD, "problem": problem, "run": run}))
    (folder / "policies").mkdir()
    for member in members:
        weight, bias = np.zeros((8, 4), np.float32), np.zeros(4, np.float32)
        side = np.ones(2, np.float32)
        policy = GaussianPolicy(
            (weight,), (bias,), np.zeros(8, np.float32), np.ones(8, np.float32), -side, side, (-5.0, 0.0)
        )
        contract = Contract(
            (), (), None, tuple(run["limits"]), (), "pdca", member["step"], 3, 0.99, 200, None, "ball.hdf5",
            "ab", 1, 1, known,
        )  # fmt: skip
        save(policy, folder / "policies" / f"{member['step']:08d}.safetensors", contract)
    return folder


def write_run(folder: Path, *, finished: bool = True, result: dict | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(RECORD))
    (folder / "metrics.jsonl").write_text(
        '{"step": 100, "eval/cost": 3.0}\n{"step": 200, "loss/pi": 1.0}\n{"step": 2'
    )
    if finished:
        (folder / "result.json").write_text(json.dumps(RESULT if result is None else result))
    return folder
