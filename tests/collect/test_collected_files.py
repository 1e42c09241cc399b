"""A collected file is the same data in the `dsrl` package, in Minari after conversion, and here."""

import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from slater.envs import install

if find_spec("pybullet") is None or find_spec("bullet_safety_gym") is None:
    pytest.skip(install.BULLET, allow_module_level=True)

from slater import data
from slater.collect import CollectionPlan, Recording, SACConfig, collect

FIELDS = ("observations", "next_observations", "actions", "rewards", "costs", "terminals", "timeouts")

READ_BY_DSRL = """
import sys
import warnings
warnings.simplefilter("ignore")
import slater.envs
slater.envs.make("bullet/BallCircle")  # imports the simulator whatever the output is
import gymnasium, numpy, dsrl
env = gymnasium.make("OfflineBallCircle-v0", disable_env_checker=True)
numpy.savez(sys.argv[2], **env.unwrapped.get_dataset(h5path=sys.argv[1]))
"""


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    path = tmp_path_factory.mktemp("collected") / "SafetyBallCircle-v0-200-4.hdf5"
    # two short looks at the task, without learning: what is tested is the file
    plan = CollectionPlan(
        "bullet/BallCircle", ((0.0,),), steps=800, start_steps=10_000, recording=Recording(episodes=4),
        config=SACConfig(hidden=(8,), batch_size=8),
    )  # fmt: skip
    return path, collect(plan, path)


@pytest.mark.skipif(find_spec("dsrl") is None, reason="pip install --no-deps 'dsrl==0.1.0'")
def test_in_the_dsrl_package(collected, tmp_path):
    path, made = collected
    out = tmp_path / "read.npz"
    done = subprocess.run(
        [sys.executable, "-c", READ_BY_DSRL, str(path), str(out)],
        env={**os.environ, "DSRL_DATASET_DIR": str(tmp_path)},  # else it makes a folder in the home directory
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with np.load(out) as read:
        for name in FIELDS:
            ours = getattr(made, name)
            assert np.array_equal(np.asarray(read[name]).reshape(ours.shape), ours), name


def test_in_minari_and_here(collected, tmp_path, monkeypatch):
    path, made = collected
    assert data.load(path).fingerprint == made.fingerprint
    if find_spec("minari") is None:
        pytest.skip("pip install 'slater-rl[minari]'")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    data.convert(path, "minari:slater/ballcircle-v0")
    back = data.load("minari:slater/ballcircle-v0")
    for name in FIELDS:
        assert np.array_equal(getattr(back, name), getattr(made, name)), name
    import minari

    episodes = list(minari.load_dataset("slater/ballcircle-v0").iterate_episodes())
    assert len(episodes) == len(made.episodes.starts) == 4
    for episode, start, stop in zip(episodes, made.episodes.starts, made.episodes.stops, strict=True):
        assert np.array_equal(episode.actions, made.actions[start:stop])
        assert np.array_equal(episode.rewards.astype(np.float32), made.rewards[start:stop])
        assert np.array_equal(episode.observations[1:], made.next_observations[start:stop])
