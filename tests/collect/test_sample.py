"""The dataset that ships with the package is sound, small, and what its recipe says."""

import json
import re
from pathlib import Path

from slater import data
from slater.data import samples

FINGERPRINT = "cc7985b09face3ddd15a0bb4c90e0e17f241ed706ccc40b504fe2e4aa4dd77aa"


def test_the_sample_is_sound_and_covers_the_trade_off():
    path = samples.ballcircle()
    assert path.stat().st_size < 5e6
    dataset = data.load(path)
    assert dataset.fingerprint == FINGERPRINT
    assert not data.check(dataset).errors
    assert dataset.metadata.env_id == "bullet/BallCircle"
    returns, costs = dataset.episodes.returns, dataset.episodes.costs[:, 0]
    # safe episodes that earn something, and episodes that earn more by breaking a limit of 20
    assert returns[costs <= 20].max() > 500
    assert returns.max() > 1.2 * returns[costs <= 20].max()


def test_the_recipe_is_the_plan_in_the_file():
    recipe = (Path(__file__).parents[2] / "scripts" / "make_sample.sh").read_text()
    plan = json.loads(data.load(samples.ballcircle()).metadata.notes["plan"])
    for option in ("steps", "episodes", "thin", "seed"):
        assert int(re.search(rf"--{option} (\d+)", recipe)[1]) == plan[option]
    assert plan["penalties"] == [[0.0], [1.0], [3.0], [6.0]]
    assert "--penalty 0 1 3 6 " in recipe
    assert plan["config"]["hidden"] == [128, 128]
    assert plan["config"]["batch_size"] == int(re.search(r"--batch-size (\d+)", recipe)[1])
