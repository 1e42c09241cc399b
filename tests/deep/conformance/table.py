"""The conformance table: settings with which tests run every algorithm; and a finished short run of each.

A new algorithm gets a line in `QUICK_OF` per preset and one in `LEARNING_OF`.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import slater.deep as deep

from ..problems import PDCA_PHASES, QUICK, pointmass

#: settings that make a run short, per algorithm (name, preset)
QUICK_OF: dict[tuple[str, str | None], dict[str, Any]] = {
    ("pdca", None): PDCA_PHASES,
    ("pdca", "paper"): {},
    ("bc", None): {},
    ("bc", "released"): {},
    ("bc-safe", None): {},
    ("coptidice", None): {"epsilon": 0.01, "expectation": "network"},
    ("coptidice", "released"): {},
    ("cpq", None): {"vae_steps": 15, "vae_hidden": (16,)},
    ("cpq", "released"): {"vae_hidden": (16,)},
    ("mbcl", None): {"first_steps": 10, "fqi_steps": 5, "fqe_steps": 5},
    ("cdt", None): {"context": 3, "warmup": 5},
    ("cdt", "released"): {"context": 3, "targets": "data"},
    ("bcq-lag", None): {"warm_steps": 15, "vae_hidden": (16,), "act_samples": 3},
    ("bcq-lag", "released"): {"vae_hidden": (16,)},
    ("bear-lag", None): {"warm_steps": 15, "vae_hidden": (16,), "samples": 3},
    ("bear-lag", "released"): {"vae_hidden": (16,), "samples": 3},
    ("caps", None): {},
    ("caps", "released"): {},
    ("caps", "sac"): {},
    ("o3srl", None): {},
    ("o3srl", "paper"): {},
    ("pdocrl", None): {"warm_steps": 20},
    ("pdocrl", "released"): {},
    ("trac", None): {"clone_steps": 20, "segments": 4, "choose": "last"},
    ("trac", "published"): {"clone_steps": 20, "segments": 4},
    ("wsac", None): {"warm_steps": 20},
}
#: settings with which an algorithm learns a small problem, for the test of behaviour: a tabular one if it
#: knows discrete actions (discount .8), else the point on a line (discount .9)
LEARNING_OF: dict[str, dict[str, Any]] = {
    "pdca": {"steps": 3_000, "joint_steps": 249, "model_steps": 2_000, "batch_size": 128, "hidden": (64,)},
    "bc": {"steps": 500, "batch_size": 128, "hidden": (64,)},
    "bc-safe": {"steps": 1500, "batch_size": 128, "hidden": (64,)},
    "coptidice": {"steps": 4000, "batch_size": 256, "hidden": (64,), "eta": 1e-3, "eta_pi": 1e-3, "expectation": "network"},  # noqa: E501
    "cpq": {"steps": 4000, "batch_size": 128, "hidden": (64, 64), "vae_hidden": (32,), "vae_steps": 500, "eta_pi": 1e-3, "polyak": 0.01},  # noqa: E501
    "mbcl": {"steps": 6500, "batch_size": 128, "hidden": (64,), "first_steps": 500, "fqi_steps": 200, "fqe_steps": 400},  # noqa: E501
    "cdt": {},
    "bcq-lag": {"steps": 4000, "batch_size": 128, "hidden": (64, 64), "vae_hidden": (32,), "warm_steps": 500, "actor_rate": 1e-3, "polyak": 0.01, "phi": 0.5, "ki": 0.003},  # noqa: E501
    "bear-lag": {"steps": 3000, "batch_size": 128, "hidden": (64, 64), "vae_hidden": (32,), "warm_steps": 500, "actor_rate": 1e-3, "polyak": 0.01, "samples": 5, "epsilon": 1.0, "ki": 0.003},  # noqa: E501
    "caps": {"steps": 3000, "batch_size": 128, "hidden": (64,), "eta": 1e-3, "polyak": 0.01, "expectile": 0.9},  # noqa: E501
    "o3srl": {"steps": 4000, "batch_size": 128, "hidden": (64,), "eta_pi": 1e-3, "polyak": 0.01, "alpha": 100.0},  # noqa: E501
    "pdocrl": {"steps": 4000, "batch_size": 128, "hidden": (64,), "warm_steps": 500, "eta_slow": 1e-3, "polyak": 0.01, "keep_every": 250},  # noqa: E501
    "wsac": {"steps": 4000, "batch_size": 128, "hidden": (64,), "warm_steps": 500, "eta_slow": 1e-3, "polyak": 0.01, "keep_every": 250},  # noqa: E501
    "trac": {"steps": 2500, "hidden": (64,), "clone_steps": 1000, "eta": 1e-3, "segments": 64, "choose": "last"},  # noqa: E501
}  # fmt: skip
#: algorithms that take a limit only to be judged by it
IGNORES_LIMIT = {"bc"}
#: algorithms that only choose among the data's episodes: cheaper under a tighter limit, but no optimum
IMITATES = {"bc-safe", "trac"}
#: conditioned on the sums of an episode, which in a random world are luck as much as choice; its own test
#: has a world without luck (test_cdt)
CONDITIONED = {"cdt"}
#: algorithms that estimate every limit in its own unit
IN_ITS_UNIT = {("pdca", None), ("caps", None)}
#: SLATER_CONFORMANCE=FILE puts algorithms of other packages here instead of ours; FILE is JSON, as
#: {"NAME": {"quick": {SETTINGS}, "learning": {SETTINGS}, "ignores_limit": false, "imitates": false}}
OUTSIDE: dict[str, dict[str, Any]] = {}
if given := os.environ.get("SLATER_CONFORMANCE"):
    OUTSIDE = json.loads(Path(given).read_text())
    QUICK_OF = {(name, None): entry.get("quick", {}) for name, entry in OUTSIDE.items()}
    LEARNING_OF = {name: entry.get("learning", {}) for name, entry in OUTSIDE.items()}
    IGNORES_LIMIT = {name for name, entry in OUTSIDE.items() if entry.get("ignores_limit")}
    IMITATES = {name for name, entry in OUTSIDE.items() if entry.get("imitates")}


def kinds(name: str) -> list[tuple[bool, int]]:
    """(discrete, costs) of data that an algorithm must cope with: its kinds of actions, two costs if able."""
    algorithm = deep.find(name)
    wanted = ((False, 1), (True, 2), (False, 2), (True, 1))
    known = [
        (discrete, min(costs, algorithm.most_costs or costs))
        for discrete, costs in wanted
        if ("discrete" if discrete else "continuous") in algorithm.actions
    ]
    return list(dict.fromkeys(known))[:2]


def quick(
    name: str, preset: str | None, out: Path, data: Any, limit: str = "5",
    watcher: deep.Watcher | None = None, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    limits = [limit] * data.costs.shape[1]
    return deep.train(
        name, data, limits, out, seed=seed, preset=preset, options={"log_every": 10, "checkpoint_every": 10},
        watcher=watcher, **{**QUICK, **QUICK_OF[name, preset]},
    )  # fmt: skip


@cache
def finished_run(name: str, preset: str | None, kind: int = 0) -> tuple[Path, Any]:
    """A finished quick run, shared by the tests of a process, and its data."""
    discrete, costs = kinds(name)[kind]
    data, out = pointmass(discrete=discrete, costs=costs), Path(mkdtemp()) / "run"
    quick(name, preset, out, data)
    return out, data
