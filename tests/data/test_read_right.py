"""Data that were read as something else: each by the smallest table that shows it."""

import warnings
from dataclasses import replace

import h5py
import numpy as np
import pytest

from slater.data import Dataset, inspect, load, save
from slater.deep.task import normalised, scaled_actions, state_task
from slater.errors import InputError
from slater.limits import Limit

from .make import walk

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet as pq  # noqa: E402


def table(episodes=4, length=6, seed=0, **columns):
    """Columns of a small log in the order of time, by name; `columns` are put over them (None: left out)."""
    rng = np.random.default_rng(seed)
    size = episodes * length
    own = {
        "episode": np.repeat(np.arange(episodes), length),
        "obs_0": rng.normal(size=size),
        "obs_1": rng.normal(size=size),
        "action": rng.uniform(-1, 1, size),
        "reward": rng.normal(size=size),
        "cost": (rng.random(size) < 0.3).astype(float),
    }
    return {name: values for name, values in {**own, **columns}.items() if values is not None}


def csv(path, columns):
    names = list(columns)
    rows = zip(*(columns[name] for name in names), strict=True)
    lines = [",".join(names), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def quietly(path, **told):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load(path, **told)


def messages(path, **told):
    from slater.data.formats.base import read_options

    return "\n".join(map(str, inspect(path, read_options(**told)).problems))


# -- labels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "labels",
    [
        [f"{12345678901234567890 + i}" for i in range(4)],  # one float of double precision for all
        ["1", "01", "001", "0001"],
        ["1e3", "1000", "1000.0", "+1000"],
        ["a", "b", "A", "B"],
    ],
)
def test_labels_that_differ_as_text_are_different_episodes(tmp_path, labels):
    path = csv(tmp_path / "a.csv", table(episode=np.repeat(labels, 6)))
    assert len(quietly(path).episodes) == 4


def test_labels_that_no_float_can_tell_apart_are_refused(tmp_path):
    labels = np.repeat(2.0**60 + np.arange(4) * 512, 6)
    pq.write_table(pa.table(table(episode=labels)), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"episode: .*text or whole numbers"):
        load(tmp_path / "a.parquet")


def test_labels_that_begin_again_in_every_file_of_a_folder_are_its_own(tmp_path):
    for number in range(3):
        pq.write_table(
            pa.table(table(episodes=1, seed=number, episode=np.zeros(6, int))), tmp_path / f"{number}.parquet"
        )
    assert len(quietly(tmp_path).episodes) == 3
    assert "label" in messages(tmp_path)


def test_labels_from_0_in_every_file_of_a_folder_are_its_own(tmp_path):
    for number in range(3):
        pq.write_table(pa.table(table(episodes=2, seed=number)), tmp_path / f"{number}.parquet")
    assert len(quietly(tmp_path).episodes) == 6


def test_an_episode_may_go_on_in_the_next_file(tmp_path):
    whole = pa.table(table(episodes=4, length=6))
    for number, (start, stop) in enumerate([(0, 9), (9, 15), (15, 24)]):
        pq.write_table(whole.slice(start, stop - start), tmp_path / f"{number}.parquet")
    assert len(quietly(tmp_path).episodes) == 4


# -- names of columns ----------------------------------------------------------------------------------------


def test_the_plain_name_comes_before_names_that_only_begin_so(tmp_path):
    columns = table()
    extra = {"cost_total": np.cumsum(columns["cost"]), "action_logprob": np.full(24, -1.5)}
    path = csv(tmp_path / "a.csv", {**columns, **extra})
    data = quietly(path)
    np.testing.assert_array_equal(data.costs[:, 0], columns["cost"].astype(np.float32))
    assert (data.cost_names, data.action_dim) == (("cost",), 1)
    assert "cost_total" in messages(path)
    assert "action_logprob" in messages(path)


def test_numbered_actions_come_before_others_that_begin_so(tmp_path):
    columns = table(action=None)
    columns |= {f"action_{i}": np.linspace(-1, 1, 24) for i in range(2)}
    path = csv(tmp_path / "a.csv", {**columns, "action_logprob": np.full(24, -1.5)})
    assert quietly(path).action_dim == 2
    assert "action_logprob" in messages(path)


def test_a_running_total_is_remarked_upon(tmp_path):
    columns = table(episodes=6, length=20)
    total = np.concatenate([np.cumsum(part) for part in np.split(columns["cost"], 6)])
    path = csv(tmp_path / "a.csv", {**columns, "cost": total})
    assert "running total" in messages(path)
    assert "running total" not in messages(csv(tmp_path / "b.csv", columns))


@pytest.mark.parametrize("name", ["reward", "Reward", "return"])
def test_a_cost_is_not_called_as_the_reward_is(name):
    with pytest.raises(InputError, match=r"names? .*reward"):
        walk(costs=(name,))


# -- times ---------------------------------------------------------------------------------------------------

_MINUTES = np.datetime64("2026-01-01T00:00") + np.arange(24).astype("timedelta64[m]")


@pytest.mark.parametrize("zone", ["Z", "+01:00", " Europe/Vienna"])
def test_times_with_a_zone_are_times(tmp_path, zone):
    path = csv(tmp_path / "a.csv", table(time=[f"{t}:00{zone}" for t in _MINUTES]))
    found = messages(path)
    assert "error" not in str(inspect(path)).replace("0 error", "")
    assert ("gaps are not looked for" in found) == (zone == " Europe/Vienna")


@pytest.mark.parametrize("kind", [pa.timestamp("s", "UTC"), pa.timestamp("us", "Europe/Vienna"), pa.date32()])
def test_typed_times_in_parquet_are_times(tmp_path, kind):
    times = pa.array(_MINUTES.astype("datetime64[s]")).cast(pa.timestamp("s")).cast(kind)
    pq.write_table(pa.table({**table(), "time": times}), tmp_path / "a.parquet")
    assert not inspect(tmp_path / "a.parquet").errors
    back = pa.array(np.array(_MINUTES[::-1].astype("datetime64[s]"))).cast(pa.timestamp("s", "UTC"))
    pq.write_table(pa.table({**table(), "time": back}), tmp_path / "b.parquet")
    assert "goes back within an episode" in messages(tmp_path / "b.parquet")


# -- values --------------------------------------------------------------------------------------------------


def test_one_odd_action_among_indices_is_remarked_upon(tmp_path):
    actions = np.random.default_rng(0).integers(0, 7, 240).astype(float)
    actions[100] = 2.5
    columns = table(episodes=40, action=[f"{a:g}" for a in actions])
    assert "actions: all but 1" in messages(csv(tmp_path / "a.csv", columns))
    assert "[1 row: 100]" in messages(csv(tmp_path / "a.csv", columns))
    assert "all but" not in messages(csv(tmp_path / "a.csv", columns), discrete=False)


@pytest.mark.parametrize("value", [1e300, 3e38, -1e30])
@pytest.mark.parametrize("name", ["obs_1", "reward", "cost", "action"])
def test_numbers_beyond_all_measure_are_named_as_such(tmp_path, name, value):
    columns = table()
    columns[name] = columns[name].copy()
    columns[name][7] = value
    found = messages(csv(tmp_path / "a.csv", columns))
    assert "NaN or infinite" not in found
    assert "beyond 1e+18" in found
    assert "[1 row: 7]" in found
    with pytest.raises(InputError, match="beyond"):
        load(tmp_path / "a.csv")


def test_an_index_of_two_billion_is_no_action(tmp_path):
    actions = np.zeros(24, int)
    actions[3] = 2**31 - 1
    with pytest.raises(InputError, match=r"2147483647.*action"):
        load(csv(tmp_path / "a.csv", table(action=actions)))
    with pytest.raises(InputError, match="action"):
        Dataset.from_arrays(
            observations=np.zeros((24, 1)), actions=actions, rewards=np.zeros(24), costs=np.zeros(24),
            timeouts=np.arange(24) % 6 == 5, terminals=np.zeros(24),
        )  # fmt: skip


def test_copied_rows_inside_an_episode_are_found():
    data = walk(episodes=3, horizon=40, falls=False)
    order = np.r_[0:30, 20:30, 30:120]
    copied = Dataset.from_arrays(
        observations=data.observations[order], actions=data.actions[order], rewards=data.rewards[order],
        costs=data.costs[order], terminals=data.terminals[order], timeouts=data.timeouts[order],
        next_observations=data.next_observations[order],
    )  # fmt: skip
    from slater.data import check

    (found,) = [p for p in check(copied).problems if "copied" in p.message]
    assert (found.count, found.rows) == (10, (30, 31, 32, 33, 34))
    assert "copied" not in str(check(data))


def test_text_in_a_second_parquet_file_is_named(tmp_path):
    pq.write_table(pa.table(table()), tmp_path / "0.parquet")
    texts = np.array(["x"] * 24)
    pq.write_table(pa.table(table(obs_1=texts, episode=np.arange(24) // 6 + 4)), tmp_path / "1.parquet")
    with pytest.raises(InputError, match=r"1\.parquet.*'obs_1'"):
        load(tmp_path)
    assert "obs_1" in messages(tmp_path)


# -- logs of one-step episodes -------------------------------------------------------------------------------


def test_a_log_without_any_transition_teaches_nothing(tmp_path):
    path = csv(tmp_path / "a.csv", table(episodes=24, length=1))
    assert "no transition" in messages(path)
    with pytest.raises(InputError, match=r"no transition.*mark its end as a terminal"):
        state_task(quietly(path), (Limit.episode(1, "cost"),), 0.9)


def test_one_step_episodes_that_end_are_said_to_be_a_bandit_log(tmp_path):
    path = csv(tmp_path / "a.csv", table(episodes=24, length=1, terminal=np.ones(24, int)))
    assert "one step" in messages(path)
    assert quietly(path).horizon == 1


# -- scales --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1e-12, 1e-6, 1.0, 1e6])
def test_what_varies_is_scaled_whatever_its_unit(factor):
    data = walk()
    other = replace(
        data,
        observations=(data.observations * factor).astype(np.float32),
        next_observations=(data.next_observations * factor).astype(np.float32),
    )
    task = state_task(other, (Limit.episode(1, "cost"),), 0.9)
    seen = normalised(other.observations, task)
    np.testing.assert_allclose(seen.std(axis=0), 1, rtol=1e-3)


@pytest.mark.parametrize("value", [0.0, 1 / 3, 1e-9, 1e9])
def test_a_constant_observation_is_left_as_it_is(value):
    data = walk()
    column = np.full(data.size, value, np.float32)
    column[::2] = np.nextafter(column[0], np.float32(np.inf)) if value else value
    observations = np.column_stack([data.observations, column])
    other = replace(data, observations=observations, next_observations=observations)
    assert state_task(other, (Limit.episode(1, "cost"),), 0.9).obs_std[-1] == 1


@pytest.mark.parametrize("value", [5.0, -3e6, 1e-3])
def test_an_action_that_never_varies_keeps_its_value(tmp_path, value):
    data = walk()
    actions = np.column_stack([data.actions[:, 0] * 7, np.full(data.size, value, np.float32)])
    other = replace(data, actions=actions)
    assert (other.action_low < other.action_high).all()
    task = state_task(other, (Limit.episode(1, "cost"),), 0.9)
    scaled = scaled_actions(other.actions, task)
    assert np.abs(scaled).max() <= 1 + 1e-6
    np.testing.assert_allclose([task.action_low[1], task.action_high[1]], value, rtol=1e-2)
    save(other, tmp_path / "a.store")
    from slater.data import StoredDataset

    np.testing.assert_array_equal(StoredDataset(tmp_path / "a.store").action_low, other.action_low)


# -- files that take more than they give ---------------------------------------------------------------------


def test_an_archive_that_unpacks_to_a_thousand_times_its_size_is_refused(tmp_path):
    zeros = np.zeros((2**27, 1), np.int8)
    np.savez_compressed(tmp_path / "a.npz", observations=zeros, rewards=np.zeros(10), costs=np.zeros(10))
    with pytest.raises(InputError, match=r"a\.npz .*unpacks"):
        load(tmp_path / "a.npz")


def test_hdf5_columns_that_lie_in_other_files_are_refused(tmp_path):
    data = walk()
    secret = tmp_path / "secret.bin"
    secret.write_bytes(data.rewards.tobytes())
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name in ("observations", "actions", "terminals", "timeouts", "next_observations"):
            file[name] = getattr(data, name)
        file["costs"] = data.costs[:, 0]
        place = [(str(secret), 0, data.size * 4)]
        file.create_dataset("rewards", data.rewards.shape, np.float32, external=place)
    with pytest.raises(InputError, match=r"rewards.*outside"):
        load(tmp_path / "a.hdf5")


@pytest.mark.parametrize("how", ["link", "virtual"])
def test_hdf5_links_and_views_of_other_files_are_refused(tmp_path, how):
    data = walk()
    save(data, tmp_path / "other.hdf5")
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name in ("observations", "actions", "terminals", "timeouts", "next_observations"):
            file[name] = getattr(data, name)
        file["costs"] = data.costs[:, 0]
        if how == "link":
            file["rewards"] = h5py.ExternalLink("other.hdf5", "rewards")
        else:
            layout = h5py.VirtualLayout(shape=data.rewards.shape, dtype=np.float32)
            layout[:] = h5py.VirtualSource("other.hdf5", "rewards", shape=data.rewards.shape)
            file.create_virtual_dataset("rewards", layout)
    with pytest.raises(InputError, match="rewards"):
        load(tmp_path / "a.hdf5")
