"""Collection: learning under a penalty, recording, thinning, and going on after a stop."""

import json
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slater.envs import install
from slater.errors import InputError

if find_spec("gymnasium") is None:
    pytest.skip(install.GYMNASIUM, allow_module_level=True)

from slater import cli, data
from slater.collect import CollectionPlan, SACConfig, collect, learning
from slater.collect.plan import PAPER, paper_plan
from slater.collect.thinning import CELLS, thin

sys.path.insert(0, str(Path(__file__).parent))  # for worker processes, which inherit it

QUICK = SACConfig(hidden=(32, 32), batch_size=64, learning_rate=3e-3, start_steps=100, gamma=0.5)
TOY = CollectionPlan("collect_toys:Pay", ((0.0,),), steps=800, episodes=10, noise=0.0, config=QUICK)


@pytest.mark.parametrize("discrete", ["false", "true"])
def test_a_penalty_buys_safety(tmp_path, discrete):
    """Without one the policy takes all the reward; with a large one it pays nothing and still earns."""
    plan = replace(TOY, env_id=f"collect_toys:Pay?discrete={discrete}", penalties=((0.0,), (5.0, 0.0)))
    stages = []
    collect(plan, tmp_path / "toy.hdf5", finished=stages.append)
    free, safe = stages
    assert free.mean_return > 8.0
    assert free.mean_cost > 9.5
    assert safe.mean_cost < 1.0
    assert safe.mean_return > -6.0  # entropy keeps it off the edge at 0


def test_the_file_is_what_was_returned(tmp_path):
    made = collect(replace(TOY, steps=200, noise=0.3, keep_training=True), tmp_path / "toy.hdf5")
    read = data.load(tmp_path / "toy.hdf5")
    assert read.fingerprint == made.fingerprint
    assert read.cost_names == ("pay", "extreme")
    assert read.metadata.env_id == "collect_toys:Pay"
    assert read.metadata.horizon == 10
    assert read.metadata.action_low == (-1.0,)
    assert json.loads(read.metadata.notes["plan"])["steps"] == 200
    assert len(read.episodes.starts) == 20 + 10
    # costs belong to the action of their own row, and the next observation to the following row
    assert np.array_equal(read.costs[:, 0], read.actions[:, 0] > 0)
    inside = ~(read.terminals | read.timeouts)
    assert np.array_equal(read.next_observations[inside], read.observations[1:][inside[:-1]])
    assert read.timeouts.sum() == 30
    assert not (tmp_path / "toy.hdf5.parts").exists()


def test_noise_spreads_the_recorded_actions(tmp_path):
    calm = collect(replace(TOY, steps=100), tmp_path / "calm.hdf5")
    noisy = collect(replace(TOY, steps=100, noise=0.3), tmp_path / "noisy.hdf5")
    assert len(np.unique(noisy.actions)) > 20
    assert noisy.actions.std() > calm.actions.std() + 0.05
    assert np.abs(noisy.actions).max() <= 1.0


def test_stopped_and_continued_gives_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(learning, "CHECKPOINT_STEPS", 100)
    plan = replace(TOY, steps=400, penalties=((0.0,), (1.0,)), keep_training=True, noise=0.1)
    whole = collect(plan, tmp_path / "whole.hdf5")
    heard = []

    def stop(index, steps, *_):
        heard.append((index, steps))
        if (index, steps) in stops:
            stops.remove((index, steps))
            raise KeyboardInterrupt

    stops = [(0, 50), (0, 250), (1, 10), (1, 390)]
    for index in (0, 0, 1, 1):
        with pytest.raises(KeyboardInterrupt):
            collect(plan, tmp_path / "parts.hdf5", watch=stop)
        with (tmp_path / "parts.hdf5.parts" / f"{index:02d}" / "curve.jsonl").open("a") as curve:
            curve.write('{"steps": 3')  # as a full disk leaves it
    parts = collect(plan, tmp_path / "parts.hdf5", watch=stop)
    assert not stops
    assert heard.count((0, 40)) == 2  # done, lost because no checkpoint came after it, done again
    assert heard.count((0, 200)) == 1  # kept
    assert parts.fingerprint == whole.fingerprint
    curves = [(tmp_path / f"{name}.hdf5.curves.jsonl").read_text() for name in ("parts", "whole")]
    assert curves[0] == curves[1]
    assert [json.loads(line)["steps"] for line in curves[0].splitlines()] == 2 * list(range(10, 401, 10))


def test_penalties_side_by_side_give_the_same_data_and_are_heard_of(tmp_path):
    plan = replace(TOY, steps=200, penalties=((0.0,), (1.0,)))
    alone, together = [], []
    one = collect(plan, tmp_path / "one.hdf5", watch=lambda *said: alone.append(said))
    two = collect(plan, tmp_path / "two.hdf5", workers=2, watch=lambda *said: together.append(said))
    assert one.fingerprint == two.fingerprint
    assert sorted(together) == sorted(alone)
    assert len(alone) == 2 * 20


def test_another_plan_in_the_same_place_is_refused(tmp_path):
    plan = replace(TOY, steps=100)

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(plan, tmp_path / "a.hdf5", watch=stop)
    with pytest.raises(InputError, match="is of another plan"):
        collect(replace(plan, seed=1), tmp_path / "a.hdf5")
    collect(plan, tmp_path / "a.hdf5")
    with pytest.raises(InputError, match="is already there"):
        collect(plan, tmp_path / "a.hdf5")


@settings(deadline=None)
@given(
    points=st.lists(st.tuples(st.floats(-1e3, 1e3), st.integers(0, 5)), min_size=1, max_size=80),
    keep=st.integers(1, 100),
)
def test_thinning_takes_evenly_from_the_grid(points, keep):
    returns, costs = np.array(points, dtype=np.float64).T
    kept = thin(returns, costs, keep, np.random.default_rng(0))
    assert len(kept) == min(keep, len(points))
    assert np.all(np.diff(kept) > 0)

    def cell(values):
        span = np.ptp(values) or 1.0
        return np.minimum(((values - values.min()) / span * CELLS).astype(int), CELLS - 1)

    cells = list(zip(cell(returns), cell(costs), strict=True))
    there = {c: cells.count(c) for c in set(cells)}
    taken = {c: sum(cells[k] == c for k in kept) for c in set(cells)}
    most = max(taken.values())
    # a cell that gave fewer than another by two or more has nothing left to give
    assert all(taken[c] >= most - 1 or taken[c] == there[c] for c in there)


def test_the_papers_protocol():
    plan = paper_plan("rwrl/walker", steps=5_000)
    assert plan.env_id == "rwrl/walker?costs=joint_velocity"
    assert plan.penalties == ((1.0,), (1.8,), (2.0,))
    assert (plan.steps, plan.episodes, plan.noise) == (5_000, 1_000, 0.15)
    assert set(PAPER) == {"rwrl/cartpole", "rwrl/walker", "rwrl/quadruped", "rwrl/humanoid"}
    with pytest.raises(InputError, match="the paper has no protocol for bullet/BallRun"):
        paper_plan("bullet/BallRun")


def test_the_command(tmp_path, capsys):
    out = tmp_path / "toy.hdf5"
    quick = ["--hidden", "16", "--batch-size", "16", "--start-steps", "50"]
    arguments = ["collect", "collect_toys:Pay", "--penalty", "0", "2,1", "--steps", "100", "--episodes", "5"]
    code = cli.main([*arguments, *quick, "--keep-training", "--thin", "12", "--out", str(out), "--json"])
    shown = capsys.readouterr()
    assert code == 0
    result = json.loads(shown.out)
    assert (result["episodes"], result["rows"]) == (12, 120)
    assert "penalty          0: return" in shown.err
    assert data.load(out).fingerprint == result["fingerprint"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give the penalties"),
        (["--penalty", "much"], "the penalty 'much' is not a number"),
        (["--penalty", "1,2,3"], "has 3 numbers, but collect_toys:Pay has the costs pay, extreme"),
        (["--penalty", "-1"], "must have finite numbers of at least 0"),
        (["--penalty", "1", "--steps", "0"], "steps must be at least 1"),
        (["--penalty", "1", "--noise", "-1"], "noise must be a number of at least 0"),
        (["--preset", "paper"], "the paper has no protocol for collect_toys:Pay"),
    ],
)
def test_arguments_that_cannot_be_used(tmp_path, capsys, arguments, message):
    assert cli.main(["collect", "collect_toys:Pay", "--out", str(tmp_path / "a.hdf5"), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_second_process_that_collects_into_the_same_file_is_refused(tmp_path):
    from slater.disk import locked

    plan = CollectionPlan("collect_toys:Pay", ((0.0,),), steps=20, episodes=1)
    with (
        locked(tmp_path / "out.npz.parts", beside=True),
        pytest.raises(InputError, match="is in use by process"),
    ):
        collect(plan, tmp_path / "out.npz")
