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
from slater.collect import CollectionPlan, Recording, SACConfig, collect, load_behaviour
from slater.collect.collecting import PAPER, horizon_of, paper_plan
from slater.collect.recorded import CELLS, thin
from slater.collect.recording import check_densities
from slater.envs import make

sys.path.insert(0, str(Path(__file__).parent))  # for worker processes, which inherit it

QUICK = SACConfig(hidden=(32, 32), batch_size=64, learning_rate=3e-3, gamma=0.5, updates_per_step=1.0)
TOY = CollectionPlan(
    "collect_toys:Pay", ((0.0,),), steps=800, start_steps=80, recording=Recording(episodes=10, noise=0.05),
    config=QUICK,
)  # fmt: skip


@pytest.mark.parametrize("discrete", ["false", "true"])
def test_a_penalty_buys_safety(tmp_path, discrete):
    """Without one the policy takes all the reward; with a large one it pays nothing and still earns.

    Densities are those of the policies in the file beside the data.
    """
    plan = replace(
        TOY, env_id=f"collect_toys:Pay?discrete={discrete}", penalties=((0.0,), (5.0, 0.0)), steps=1_600
    )
    made = collect(plan, tmp_path / "toy.hdf5")
    assert list(made.source) == ["penalty 0"] * 10 + ["penalty 5,0"] * 10
    (free, safe), (free_cost, safe_cost) = (
        part.reshape(2, 10).mean(axis=1) for part in (made.episodes.returns, made.episodes.costs[:, 0])
    )
    assert free > 7.0
    assert free_cost > 9.0
    assert safe_cost < 1.5
    assert safe > -7.0  # entropy keeps it off the edge at 0
    behaviour = tmp_path / "toy.hdf5.behaviour.safetensors"
    assert [one.penalty for one in load_behaviour(behaviour).sources] == [(0.0,), (5.0, 0.0)]
    found = check_densities(data.load(tmp_path / "toy.hdf5"), behaviour)
    assert found.worst < 1e-5


def test_the_file_is_what_was_returned(tmp_path):
    made = collect(replace(TOY, steps=200, keep=2), tmp_path / "toy.hdf5")
    read = data.load(tmp_path / "toy.hdf5")
    assert read.fingerprint == made.fingerprint
    assert read.cost_names == ("pay", "extreme")
    assert read.metadata.env_id == "collect_toys:Pay"
    assert read.metadata.horizon == 10
    assert read.metadata.action_low == (-1.0,)
    assert load_behaviour(tmp_path / read.metadata.notes["behaviour"]).recipe["steps"] == 200
    assert list(read.source) == ["penalty 0, 120 steps"] * 10 + ["penalty 0"] * 10
    # costs belong to the action of their own row, and the next observation to the following row
    assert np.array_equal(read.costs[:, 0], read.actions[:, 0] > 0)
    inside = ~(read.terminals | read.timeouts)
    assert np.array_equal(read.next_observations[inside], read.observations[1:][inside[:-1]])
    assert read.timeouts.sum() == 20
    assert not (tmp_path / "toy.hdf5.parts").exists()


def test_noise_spreads_the_recorded_actions(tmp_path):
    def recorded(noise):
        way = replace(TOY.recording, how="clipped", noise=noise, mean_only=True)
        return collect(replace(TOY, steps=100, recording=way), tmp_path / f"{noise}.hdf5")

    calm, noisy = recorded(0.01), recorded(0.3)
    assert noisy.actions.std() > calm.actions.std() + 0.05
    assert np.abs(noisy.actions).max() <= 1.0


def test_stopped_and_continued_gives_the_same_bits(tmp_path, monkeypatch):
    plan = replace(TOY, steps=400, penalties=((0.0,), (1.0,)), keep=2)
    whole = collect(plan, tmp_path / "whole.hdf5")
    monkeypatch.setattr("slater.collect.training.SAVE_SECONDS", 0.0)
    heard = []

    def stop(name, segment):
        heard.append((name, segment["steps"]))
        if heard[-1] in stops:
            stops.remove(heard[-1])
            raise KeyboardInterrupt

    stops = [("00", 80), ("00", 240), ("01", 40), ("01", 360)]
    for name in ("00", "00", "01", "01"):
        with pytest.raises(KeyboardInterrupt):
            collect(plan, tmp_path / "parts.hdf5", watch=stop)
        with (tmp_path / "parts.hdf5.parts" / name / "curve.jsonl").open("a") as curve:
            curve.write('{"steps": 3')  # as a full disk leaves it
    parts = collect(plan, tmp_path / "parts.hdf5", watch=stop)
    assert not stops
    assert heard.count(("00", 80)) == 2  # done, lost because no checkpoint came after it, done again
    assert heard.count(("00", 200)) == 1  # kept
    assert parts.fingerprint == whole.fingerprint


def test_penalties_side_by_side_give_the_same_data_and_are_heard_of(tmp_path):
    plan = replace(TOY, steps=200, penalties=((0.0,), (1.0,)))
    together, recorded = {}, []
    one = collect(plan, tmp_path / "one.hdf5")

    def heard(name, segment):
        together[name] = segment["steps"]

    def episode(source, _):
        recorded.append(source)

    two = collect(plan, tmp_path / "two.hdf5", workers=2, watch=heard, progress=episode)
    assert one.fingerprint == two.fingerprint
    assert together == {"00": 200, "01": 200}
    assert len(recorded) == 20


def test_another_plan_in_the_same_place_is_refused(tmp_path):
    plan = replace(TOY, steps=100)

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(plan, tmp_path / "a.hdf5", watch=stop)
    with pytest.raises(InputError, match="is of another plan"):
        collect(replace(plan, steps=120), tmp_path / "a.hdf5")
    collect(plan, tmp_path / "a.hdf5")
    with pytest.raises(InputError, match="is already there"):
        collect(plan, tmp_path / "a.hdf5")


def test_the_longest_episode_is_declared_or_tried():
    """The toy is cut after ten steps; Gymnasium's CartPole falls early and is registered with 500."""
    assert horizon_of(make("collect_toys:Pay")) == 10
    assert horizon_of(make("CartPole-v1", costs=())) == 500


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


def test_the_papers_protocol_is_a_case_of_the_one_recipe():
    plan = paper_plan("rwrl/walker", steps=5_000, recording={"seed": 3})
    assert plan.env_id == "rwrl/walker?costs=joint_velocity"
    assert plan.penalties == ((1.0,), (1.8,), (2.0,))
    way = plan.recording
    assert (plan.steps, way.episodes, way.noise, way.how, way.mean_only) == (
        5_000, 1_000, 0.15, "clipped", False,
    )  # fmt: skip
    assert way.seed == 3
    assert set(PAPER) == {"rwrl/cartpole", "rwrl/walker", "rwrl/quadruped", "rwrl/humanoid"}
    with pytest.raises(InputError, match="the paper has no protocol for bullet/BallRun"):
        paper_plan("bullet/BallRun")


def test_the_command(tmp_path, capsys):
    out = tmp_path / "toy.hdf5"
    quick = ["--hidden", "16", "--batch-size", "16", "--start-steps", "50"]
    arguments = ["collect", "collect_toys:Pay", "--penalty", "0", "2,1", "--steps", "100", "--episodes", "5"]
    code = cli.main([*arguments, *quick, "--keep", "2", "--thin", "12", "--out", str(out), "--json"])
    shown = capsys.readouterr()
    assert code == 0
    result = json.loads(shown.out)
    assert (result["episodes"], result["rows"]) == (12, 120)
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
        (["--penalty", "1", "--noise", "0", "--deterministic"], "noise must be above 0"),
        (["--preset", "paper"], "the paper has no protocol for collect_toys:Pay"),
    ],
)
def test_arguments_that_cannot_be_used(tmp_path, capsys, arguments, message):
    assert cli.main(["collect", "collect_toys:Pay", "--out", str(tmp_path / "a.hdf5"), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_second_process_that_collects_into_the_same_file_is_refused(tmp_path):
    from slater.disk import locked

    with (
        locked(tmp_path / "out.npz.parts", beside=True),
        pytest.raises(InputError, match="is in use by process"),
    ):
        collect(replace(TOY, steps=20), tmp_path / "out.npz")
