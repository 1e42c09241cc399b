"""The front door: quick, without JAX until it is needed, and one call each."""

import subprocess
import sys

import numpy as np
import pytest

import slater
from slater.data import Dataset
from slater.runs import Result

from .deep.problems import QUICK as SHORT
from .deep.problems import pointmass
from .runs.example import write_run

QUICK = {**SHORT, "estimate": False}


def test_import_is_quick_and_loads_neither_jax_nor_numpy():
    code = (
        "import sys, slater; heavy = {'jax', 'numpy', 'scipy', 'rich', 'h5py'} & set(sys.modules); "
        "assert set(slater.__all__) <= set(dir(slater)); sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_names_that_need_no_training_load_no_jax():
    code = "import sys, slater; slater.load, slater.Limit, slater.load_policy; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        _ = slater.trian  # type: ignore[attr-defined]


def test_five_lines_train_a_policy_in_a_folder_of_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = pointmass()
    result = slater.train(data, "bc", limits=["5"], **QUICK)
    assert isinstance(result, Result)
    assert str(result.folder) == "runs/bc"
    assert slater.train(data, "bc", limits=["5"], progress=False, **QUICK).folder.name == "bc-2"
    actor = result.policy.begin(rng=np.random.default_rng(0))
    assert actor.act(data.observations[0]).shape == (data.action_dim,)
    said = capsys.readouterr()
    assert "bc: 60 steps" in said.err  # no terminal here: plain lines
    assert str(result) not in said.out + said.err  # who is given the result prints it: once
    assert np.array_equal(
        slater.load_policy("runs/bc").members[0].obs_mean, result.policy.members[0].obs_mean
    )


def test_a_path_is_enough_and_a_mistake_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(slater.InputError, match=r"nowhere\.hdf5"):
        slater.train("nowhere.hdf5", "bc", limits=["5"])
    with pytest.raises(slater.InputError, match="no algorithm 'pdcaa'"):
        slater.train(pointmass(), "pdcaa", limits=["5"])
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir())


def test_a_limit_is_never_read_letter_by_letter(tmp_path):
    """`limits="20"` once meant a limit of 2 and a limit of 0 where there were two costs."""
    with pytest.raises(slater.InputError, match="1 limit for 2 costs"):
        slater.train(pointmass(costs=2), "bc", limits="20", out=tmp_path / "a", progress=False, **QUICK)
    given = {"c1": "0.5/step", "c0": 20}
    result = slater.train(pointmass(costs=2), "bc", limits=given, out=tmp_path / "b", progress=False, **QUICK)
    assert [limit.given for limit in result.limits] == ["c0=20", "c1=0.5/step"]


def test_seeds_that_would_repeat_smaller_ones_are_refused(tmp_path):
    for seed in (2**32, -1):
        with pytest.raises(slater.InputError, match="seed must be from 0 to 4294967295"):
            slater.train(pointmass(), "bc", limits=5, seed=seed, out=tmp_path / "a", **QUICK)


@pytest.mark.parametrize("algorithm", ["bc", "pdca"])
def test_a_log_of_one_step_episodes_without_terminals_is_refused_in_a_sentence(tmp_path, algorithm):
    rng = np.random.default_rng(0)
    data = Dataset.from_arrays(
        observations=rng.normal(size=(60, 2)), actions=rng.uniform(-1, 1, (60, 1)),
        rewards=rng.normal(size=60), costs=rng.random(60), episode=np.arange(60),
    )  # fmt: skip
    with pytest.raises(slater.InputError, match="mark its end as a terminal"):
        slater.train(data, algorithm, limits=1, out=tmp_path / "a", progress=False)


def test_evaluate_says_what_is_missing(tmp_path):
    with pytest.raises(slater.InputError, match="no run or policy file nowhere"):
        slater.evaluate("nowhere")


def test_a_result_prints_well(tmp_path):
    from slater.runs import open_run

    result = open_run(write_run(tmp_path / "run")).result
    assert repr(result) == (
        f"<Result of pdca in {tmp_path}/run: reward 5, cost 7 of 20, estimated per episode; 1 warning>"
    )
    assert str(result).splitlines() == [
        f"pdca, 200 steps, seed 3, in {tmp_path}/run",
        "Within its limit, as far as the log tells.",
        "  per episode  estimated  limit",
        "  reward               5",
        "  cost                 7     20  within",
        "each episode is played by one of 2 policies, drawn at its start: "
        "75% the policy after 200 steps, "
        "25% an imitation of the log",
        "with 95% probability, as far as the log tells: cost at most 9",
        "warning: something",
    ]
    assert "<td>within</td>" in result._repr_html_()
