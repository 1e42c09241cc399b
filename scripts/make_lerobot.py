"""Write tests/data/lerobot_written with LeRobot's own package: `python scripts/make_lerobot.py FOLDER`.

It was run with lerobot 0.4.4, datasets 4 and torch 2.13 for the CPU, in an environment of its own.
Of torchvision only the names are needed: it is for pictures, of which this dataset has none.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types

import numpy as np

FOLDER = sys.argv[1]


def _nothing(what: str) -> type:
    if what.startswith("__"):
        raise AttributeError(what)
    return type(what, (), {})


for name in ("", ".transforms", ".transforms.functional", ".transforms.v2", ".transforms.v2.functional"):
    empty = types.ModuleType(f"torchvision{name}")
    empty.__getattr__ = _nothing
    empty.__spec__, empty.__path__ = importlib.machinery.ModuleSpec(empty.__name__, None), []
    sys.modules[empty.__name__] = empty

from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: E402

SHAPES = {"observation.state": 3, "action": 2, "next.reward": 1, "cost": 1, "next.done": 1}
features = {
    name: {"dtype": "bool" if name == "next.done" else "float32", "shape": (size,), "names": None}
    for name, size in SHAPES.items()
}
dataset = LeRobotDataset.create(
    repo_id="slater/pick", fps=10, features=features, root=FOLDER, use_videos=False
)
rng = np.random.default_rng(0)
for episode in range(4):
    for step in range(steps := 7 + episode):
        row = {name: rng.random(size, np.float32) for name, size in SHAPES.items() if name != "next.done"}
        dataset.add_frame({**row, "next.done": np.array([step == steps - 1]), "task": "pick"})
    dataset.save_episode()
dataset.finalize()
