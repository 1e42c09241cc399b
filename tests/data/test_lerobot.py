"""LeRobot's datasets (v3): one that lerobot 0.4.4 wrote, and others laid out as it does.

The package is not run by the tests, since it brings torch and some seventy others; `scripts/make_lerobot.py`
ran it once.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from slater.data import load
from slater.errors import InputError

pa = pytest.importorskip("pyarrow", reason="pip install 'slater-rl[tables]'")
parquet = pytest.importorskip("pyarrow.parquet", reason="pip install 'slater-rl[tables]'")

STEPS, EPISODES = 7, 4


def lerobot(folder, version="v3.0", **columns):
    """Two files of two episodes each, and `meta`, whose tables have other columns."""
    rng = np.random.default_rng(0)
    features = {
        "observation.state": {"dtype": "float32", "shape": [3]},
        "action": {"dtype": "float32", "shape": [2]},
    }
    info = {"codebase_version": version, "fps": 10, "total_episodes": EPISODES, "features": features}
    (folder / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    index = pa.table({"episode_index": list(range(EPISODES)), "length": [STEPS] * EPISODES})
    parquet.write_table(index, folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    parquet.write_table(pa.table({"task_index": [0]}), folder / "meta" / "tasks.parquet")
    (folder / "data" / "chunk-000").mkdir(parents=True)
    rows = EPISODES * STEPS
    frame = np.tile(np.arange(STEPS), EPISODES)
    state = rng.standard_normal((rows, 3)).astype(np.float32)
    action = rng.uniform(-1, 1, (rows, 2)).astype(np.float32)
    table = pa.table({
        "observation.state": pa.FixedSizeListArray.from_arrays(pa.array(state.ravel()), 3),
        "action": pa.FixedSizeListArray.from_arrays(pa.array(action.ravel()), 2),
        "next.reward": rng.random(rows).astype(np.float32), "cost": rng.random(rows).astype(np.float32),
        "timestamp": (frame / 10).astype(np.float32), "frame_index": frame,
        "episode_index": np.repeat(np.arange(EPISODES), STEPS), "index": np.arange(rows),
        "task_index": np.zeros(rows, int), "next.done": frame == STEPS - 1, **columns,
    })  # fmt: skip
    for number in range(2):
        part = table.slice(number * rows // 2, rows // 2)
        parquet.write_table(part, folder / "data" / "chunk-000" / f"file-{number:03d}.parquet")
    return folder, state, action


def test_a_dataset_of_lerobot_is_read_by_its_own_names(tmp_path):
    folder, state, action = lerobot(tmp_path / "pick")
    data = load(folder)
    np.testing.assert_array_equal(data.observations, state)
    np.testing.assert_array_equal(data.actions, action)
    assert data.episodes.lengths.tolist() == [STEPS] * EPISODES
    assert data.metadata.step == pytest.approx(0.1)
    assert data.cost_names == ("cost",)
    # `next.done` does not say whether an episode ended or was cut off: who knows says it
    assert not data.terminals.any()
    assert load(folder, columns={"terminals": "next.done"}).terminals.sum() == EPISODES


def test_what_the_package_wrote_is_read():
    data = load(Path(__file__).parent / "lerobot_written", columns={"terminals": "next.done"})
    sizes = {"observation.state": 3, "action": 2, "next.reward": 1, "cost": 1}
    rng = np.random.default_rng(0)
    rows = [np.concatenate([rng.random(n, np.float32) for n in sizes.values()]) for _ in range(34)]
    found = (data.observations, data.actions, data.rewards[:, None], data.costs)
    np.testing.assert_array_equal(np.concatenate(found, axis=1, dtype=np.float32), rows)
    assert data.episodes.lengths.tolist() == [7, 8, 9, 10]
    assert data.terminals.sum() == 4
    assert data.metadata.step == pytest.approx(0.1)


def test_an_older_dataset_of_lerobot_is_named(tmp_path):
    folder, *_ = lerobot(tmp_path / "old", version="v2.1")
    with pytest.raises(InputError, match=r"v2\.1; convert it"):
        load(folder)
