"""The folder of a run as `slater train` leaves it, written by hand: reading needs no training."""

import json
from pathlib import Path

LIMIT = {
    "cost": "cost", "given": "cost=20", "episode": 20.0, "discounted": 9.0, "step": 0.1, "normalised": 1.0
}  # fmt: skip
RECORD = {
    "version": "0.1.0",
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
            "step": 40, "kind": "fallback", "weight": 0.25, "careful": True,
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
    "fallback": {"share": 0.5, "step": 40, "weight": 0.25},
    "warnings": ["something"],
}  # fmt: skip


def write_run(folder: Path, *, finished: bool = True, result: dict | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(RECORD))
    (folder / "metrics.jsonl").write_text(
        '{"step": 100, "eval/cost": 3.0}\n{"step": 200, "loss/pi": 1.0}\n{"step": 2'
    )
    if finished:
        (folder / "result.json").write_text(json.dumps(RESULT if result is None else result))
    return folder
