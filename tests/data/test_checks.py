"""Checks: every problem at once, with rows, errors apart from warnings."""

import h5py
import numpy as np
import pytest

from slater.data import Metadata, ReadOptions, check, inspect, load, save
from slater.errors import InputError

from .make import walk


def write(path, **arrays):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)
    return path


def raw(data):
    """The arrays of a DSRL file, writable."""
    names = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
    return {**{name: getattr(data, name).copy() for name in names}, "costs": data.costs[:, 0].copy()}


def found(report, severity, field, words):
    matches = [
        p for p in report.problems if p.severity == severity and p.field == field and words in p.message
    ]
    assert matches, str(report)
    return matches[0]


def test_good_data_has_no_problems(tmp_path):
    data = walk()
    assert check(data).problems == ()
    assert inspect(write(tmp_path / "a.hdf5", **raw(data))).problems == ()


def test_every_problem_is_listed_at_once_with_its_rows(tmp_path):
    data = walk(episodes=9, falls=False)
    arrays = raw(data)
    arrays["observations"][7, 1] = np.nan
    arrays["rewards"][[3, 4]] = np.inf
    arrays["actions"][11] = 5
    arrays["costs"][20] = -1
    arrays["terminals"][33] = True  # the next row goes on from this one
    arrays["timeouts"][-1] = False
    arrays["next_observations"][52] += 1  # not where the next row begins, and no end is marked
    path = write(tmp_path / "bad.hdf5", **arrays)
    report = inspect(path, ReadOptions(horizon=10, action_low=(-1,), action_high=(1,)))
    assert found(report, "error", "observations", "NaN").rows == (7,)
    assert found(report, "error", "rewards", "NaN or infinite").rows == (3, 4)
    assert found(report, "error", "actions", "outside the stated bounds").rows == (11,)
    assert found(report, "warning", "costs", "negative").rows == (20,)
    assert found(report, "warning", "terminals", "middle of an episode").rows == (33,)
    assert found(report, "warning", "next_observations", "no end is marked").rows == (52,)
    assert found(report, "warning", "timeouts", "have no end").count == 0
    assert found(report, "warning", "horizon", "before the stated horizon").rows == (39,)
    assert [p.severity for p in report.problems] == sorted(p.severity for p in report.problems)
    with pytest.raises(InputError, match="and 2 more"):
        load(path, ReadOptions(horizon=10, action_low=(-1,), action_high=(1,)))


def test_the_same_problems_are_found_however_the_file_is_cut_in_blocks(tmp_path):
    from slater.data.files import open_file

    arrays = raw(walk(episodes=9, falls=False))
    arrays["terminals"][33] = True
    arrays["next_observations"][52] += 1
    arrays["rewards"][60:] = np.nan
    path = write(tmp_path / "bad.hdf5", **arrays)
    reports = []
    for block in (1, 7, 34, 1000):
        opened = open_file(path, ReadOptions(horizon=9))
        with opened.reader:
            for _ in opened.rows(block):
                pass
        reports.append(opened.report.to_json())
    assert all(report == reports[0] for report in reports)
    assert reports[0]["errors"]


def test_lengths_and_shapes_are_structural_errors(tmp_path):
    arrays = raw(walk())
    arrays["rewards"] = arrays["rewards"][:-3]
    report = inspect(write(tmp_path / "a.hdf5", **arrays))
    assert "rewards has 49" in found(report, "error", "rows", "differ in length").message
    arrays = raw(walk())
    arrays["rewards"] = np.stack([arrays["rewards"]] * 2, axis=1)
    arrays["observations"] = arrays["observations"].reshape(-1, 3, 1, 1)
    del arrays["costs"]
    report = inspect(write(tmp_path / "b.hdf5", **arrays))
    found(report, "error", "rewards", "one number per row")
    found(report, "error", "observations", "flat")
    found(report, "error", "costs", "missing")


def test_no_episode_end_and_no_rows(tmp_path):
    arrays = raw(walk(falls=False))
    arrays["timeouts"][:] = False
    found(inspect(write(tmp_path / "a.hdf5", **arrays)), "error", "terminals", "no episode end")
    empty = {name: array[:0] for name, array in arrays.items()}
    found(inspect(write(tmp_path / "b.hdf5", **empty)), "error", "rows", "none")
    del arrays["timeouts"], arrays["terminals"]
    found(
        inspect(write(tmp_path / "c.hdf5", **arrays)), "error", "terminals", "nothing says where episodes end"
    )


def test_a_horizon_that_does_not_fit(tmp_path):
    path = write(tmp_path / "a.hdf5", **raw(walk(falls=False)))
    problem = found(
        inspect(path, ReadOptions(horizon=8)), "error", "horizon", "longer than the stated horizon"
    )
    assert problem.rows[:2] == (9, 19)
    problem = found(inspect(path, ReadOptions(horizon=12)), "warning", "horizon", "before the stated horizon")
    assert problem.count == 6


def test_costs_that_are_all_zero_or_flags_that_are_not_flags(tmp_path):
    arrays = raw(walk())
    arrays["costs"][:] = 0
    found(inspect(write(tmp_path / "a.hdf5", **arrays)), "warning", "costs", "zero in every row")
    arrays["timeouts"] = arrays["timeouts"].astype(np.float32) * 2
    found(inspect(write(tmp_path / "b.hdf5", **arrays)), "error", "timeouts", "neither 0 nor 1")
    arrays["timeouts"] = np.full(len(arrays["costs"]), np.nan)
    found(inspect(write(tmp_path / "c.hdf5", **arrays)), "error", "timeouts", "neither 0 nor 1")


def test_numbers_too_large_for_float32_are_reported_not_silently_infinite(tmp_path):
    arrays = raw(walk())
    arrays["rewards"] = arrays["rewards"].astype(np.float64)
    arrays["rewards"][2] = 1e300
    assert found(inspect(write(tmp_path / "a.hdf5", **arrays)), "error", "rewards", "beyond").rows == (2,)


def test_actions_outside_the_bounds_can_be_clipped_with_a_warning(tmp_path):
    arrays = raw(walk())
    arrays["actions"][4] = 3
    path = write(tmp_path / "a.hdf5", **arrays)
    options = ReadOptions(action_low=(-1,), action_high=(1,), clip_actions=True)
    assert found(inspect(path, options), "warning", "actions", "clipped").rows == (4,)
    assert load(path, options).actions.max() <= 1
    with pytest.raises(InputError, match="give their bounds"):
        load(path, ReadOptions(clip_actions=True))


def test_discrete_actions_must_be_indices_below_the_stated_number(tmp_path):
    data = walk(discrete=True)
    save(data, tmp_path / "a.hdf5")
    report = inspect(tmp_path / "a.hdf5", ReadOptions(num_actions=2))
    assert found(report, "error", "actions", "not below the stated number").count == int(
        (data.actions == 2).sum()
    )
    arrays = raw(data)
    arrays["actions"] = arrays["actions"] - 1
    found(inspect(write(tmp_path / "b.hdf5", **arrays)), "error", "actions", "not a whole number from 0")


@pytest.mark.parametrize(
    "content", [b"", b"\x89HDF\r\n\x1a\n", b"PK\x03\x04 no", b"PAR1", b"a,b\n1,2\n", b"%PDF-1.4"]
)
@pytest.mark.parametrize("name", ["a.hdf5", "a.npz", "a.parquet", "a.csv", "a.txt"])
def test_foreign_files_give_one_sentence(tmp_path, content, name):
    (tmp_path / name).write_bytes(content)
    report = inspect(tmp_path / name)
    assert report.errors
    assert all("\n" not in str(problem) for problem in report.problems)
    with pytest.raises(InputError):
        load(tmp_path / name)


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(InputError, match="There is no file"):
        load(tmp_path / "none.hdf5")
    with pytest.raises(InputError, match="is a folder"):
        load(tmp_path)


def test_a_column_almost_of_the_right_name_is_refused_not_ignored(tmp_path):
    arrays = raw(walk())
    arrays["timeout"] = arrays.pop("timeouts")
    path = write(tmp_path / "a.hdf5", **arrays)
    with pytest.raises(InputError, match="timeouts=timeout"):
        load(path)
    assert load(path, ReadOptions(columns={"timeouts": ("timeout",)})).fingerprint == walk().fingerprint


def test_a_report_as_json():
    record = check(walk(tail=3, metadata=Metadata(horizon=10))).to_json()
    assert record["ok"] is True
    assert record["warnings"][0]["field"] == "timeouts"
