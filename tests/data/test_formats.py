"""Readers and writers: what goes out comes back, in every format, with its metadata."""

import json
import subprocess
import sys

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slater.data import Dataset, Metadata, ReadOptions, convert, inspect, load, save
from slater.data.files import open_file
from slater.data.formats.base import parse_columns
from slater.errors import InputError

from .make import BALL, needs_ball, same, walk

FILES = ["a.hdf5", "a.npz", "a.parquet", "a.csv", "a.tsv", "a.store"]
NOTES = Metadata("bullet/BallRun", 10, (-1.0, -1.0), (1.0, 1.0), None, {"seed": "7"})


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"metadata": NOTES},
        {"costs": ("speed", "heat")},
        {"discrete": True, "metadata": Metadata(num_actions=5)},
        {"discrete": True},
        {"given_next": False, "tail": 3},
        {"tail": 1, "costs": ("heat",), "obs": 1, "act": 1},
    ],
)
def test_round_trip(tmp_path, name, kind):
    data = walk(**kind)
    save(data, tmp_path / name)
    assert same(load(tmp_path / name), data)
    assert not inspect(tmp_path / name).errors
    assert not list(tmp_path.glob(".*partial"))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    target=st.sampled_from(FILES),
    size=st.integers(1, 30),
    widths=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)),
    seed=st.integers(0, 2**32 - 1),
    discrete=st.booleans(),
)
def test_round_trip_of_any_floats(tmp_path_factory, target, size, widths, seed, discrete):
    """Every float32 up to 1e18, subnormals too, comes back to the bit, text formats included."""
    rng = np.random.default_rng(seed)

    def floats(*shape):
        bits = rng.integers(0, 2**32, shape, dtype=np.uint32).view(np.float32)
        return np.where(np.abs(bits) <= 1e18, bits, np.float32(1.5))

    data = Dataset.from_arrays(
        observations=floats(size, widths[0]),
        actions=rng.integers(0, 7, size) if discrete else floats(size, widths[1]),
        rewards=floats(size),
        costs=np.abs(floats(size, widths[2])),
        terminals=np.append(rng.random(size - 1) < 0.2, True),
        timeouts=rng.random(size) < 0.1,
        next_observations=floats(size, widths[0]),
    )
    path = tmp_path_factory.mktemp("any") / target
    save(data, path)
    assert load(path).fingerprint == data.fingerprint


@pytest.mark.parametrize("first", FILES)
@pytest.mark.parametrize("second", FILES)
def test_conversions_keep_the_content_and_the_metadata(tmp_path, first, second):
    data = walk(episodes=4, costs=("speed", "heat"), metadata=NOTES)
    save(data, tmp_path / first)
    _, episodes = convert(tmp_path / first, tmp_path / ("out" + second))
    assert same(load(tmp_path / ("out" + second)), data)
    np.testing.assert_allclose(episodes.costs, data.episodes.costs)


def test_a_target_is_not_overwritten_unless_asked_and_errors_leave_none(tmp_path):
    save(walk(), tmp_path / "a.hdf5")
    save(walk(seed=1), tmp_path / "b.store")
    with pytest.raises(InputError, match="already there"):
        convert(tmp_path / "a.hdf5", tmp_path / "b.store")
    convert(tmp_path / "a.hdf5", tmp_path / "b.store", overwrite=True)
    assert same(load(tmp_path / "b.store"), walk())
    with pytest.raises(InputError, match="onto itself"):
        convert(tmp_path / "a.hdf5", tmp_path / "a.hdf5", overwrite=True)
    for name in ("c.hdf5", "c.store", "c.parquet", "c.csv", "c.npz"):
        with pytest.raises(InputError, match="longer than the stated horizon"):
            convert(tmp_path / "a.hdf5", tmp_path / name, ReadOptions(horizon=3))
        assert not (tmp_path / name).exists()
    assert {path.name for path in tmp_path.iterdir()} == {"a.hdf5", "b.store"}
    with pytest.raises(InputError, match="no known format"):
        convert(tmp_path / "a.hdf5", tmp_path / "c.xyz")
    with pytest.raises(InputError, match="no folder"):
        convert(tmp_path / "a.hdf5", tmp_path / "none" / "c.hdf5")


@pytest.mark.parametrize("name", FILES)
def test_a_full_disk_gives_one_sentence_and_leaves_nothing_behind(tmp_path, name):
    """The kernel refuses to write more than 20 kB to a file, as a full disk would."""
    save(walk(episodes=200), tmp_path / "source.npz")
    program = (
        # nor may the limit leave half a compiled module behind, where none was compiled before
        "import resource, sys; sys.dont_write_bytecode = True; from slater.cli import main; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); "
        "sys.exit(main(['data', 'convert', *sys.argv[1:]]))"
    )
    (tmp_path / "out").mkdir()
    arguments = [str(tmp_path / "source.npz"), str(tmp_path / "out" / name)]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "out").iterdir())


# -- DSRL ------------------------------------------------------------------------------------------


def dsrl_file(path, data, **changes):
    """A file as the DSRL authors write it: gzip, no attributes."""
    with h5py.File(path, "w") as file:
        for name in ("observations", "next_observations", "actions", "rewards", "terminals", "timeouts"):
            file.create_dataset(name, data=changes.get(name, getattr(data, name)), compression="gzip")
        file.create_dataset("costs", data=changes.get("costs", data.costs[:, 0]), compression="gzip")
    return path


def test_a_dsrl_file_with_float_flags_and_column_vectors(tmp_path):
    data = walk()
    path = dsrl_file(
        tmp_path / "a.hdf5",
        data,
        terminals=data.terminals.astype(np.float32)[:, None],
        timeouts=data.timeouts.astype(np.float32),
        rewards=data.rewards[:, None],
        costs=data.costs,
        observations=data.observations.astype(np.float64),
    )
    assert load(path).fingerprint == data.fingerprint


@pytest.mark.parametrize("height", [1, 3, 7, 64, 1000])
@pytest.mark.parametrize(
    "filters", [{}, {"compression": "gzip"}, {"compression": "gzip", "shuffle": True}, "all"]
)
def test_chunks_of_any_height_read_in_blocks_of_any_size(tmp_path, height, filters):
    """Sparse flags fill whole chunks with zeros, which must not be taken for lost ones."""
    if filters == "all":
        filters = {"compression": "gzip", "shuffle": True, "fletcher32": True}
    data = walk(episodes=12, horizon=25)
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name in ("observations", "next_observations", "actions", "rewards", "terminals", "timeouts"):
            array = getattr(data, name)
            chunks = (min(height, len(array)), 1)[: array.ndim]
            file.create_dataset(name, data=array, chunks=chunks, maxshape=(None, *array.shape[1:]), **filters)
        file["costs"] = data.costs[:, 0]
    for block in (1, 5, 64, 10_000):
        opened = open_file(tmp_path / "a.hdf5")
        with opened.reader:
            rows = np.concatenate([part["timeouts"] for part in opened.rows(block)])
        assert not opened.report.errors
        np.testing.assert_array_equal(rows, data.timeouts)


def test_what_we_write_is_the_dsrl_schema(tmp_path):
    data = walk(costs=("speed", "heat"))
    save(data, tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "a.hdf5") as file:
        assert set(file) == {
            "observations",
            "next_observations",
            "actions",
            "rewards",
            "costs",
            "terminals",
            "timeouts",
            "cost_vector",
        }
        assert file["costs"].shape == (data.size,)
        np.testing.assert_allclose(file["costs"][:], data.costs.sum(axis=1))
        assert file["observations"].dtype == np.float32
    save(walk(), tmp_path / "b.hdf5")
    with h5py.File(tmp_path / "b.hdf5") as file:
        assert "cost_vector" not in file
        assert "next_known" not in file


@pytest.mark.parametrize("kind", [{}, {"costs": ("speed", "heat")}, {"given_next": False}])
def test_files_load_in_the_dsrl_package(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("DSRL_DATASET_DIR", str(tmp_path))
    offline_env = pytest.importorskip("dsrl.offline_env", reason="pip install --no-deps dsrl tqdm")
    from gymnasium import spaces

    data = walk(**kind)
    save(data, tmp_path / "a.hdf5")
    env = offline_env.OfflineEnv()
    env.observation_space = spaces.Box(-np.inf, np.inf, (3,))
    env.action_space = spaces.Box(-1, 1, (2,))
    read = env.get_dataset(h5path=str(tmp_path / "a.hdf5"))
    for name in ("observations", "next_observations", "actions", "rewards", "terminals", "timeouts"):
        np.testing.assert_array_equal(read[name], getattr(data, name))
    np.testing.assert_array_equal(read["costs"], data.costs.sum(axis=1))


def test_a_published_name_brings_its_horizon_and_bounds_and_clips(tmp_path):
    data = walk(obs=7, horizon=100, episodes=3)
    path = dsrl_file(tmp_path / "SafetyBallRun-v0-80-940.hdf5", data, actions=data.actions * 1.5)
    read = load(path)
    assert (read.metadata.env_id, read.horizon) == ("bullet/BallRun", 100)
    assert np.abs(read.actions).max() == 1
    assert any("clipped" in problem.message for problem in inspect(path).warnings)


def test_other_names_in_hdf5_and_npz(tmp_path):
    data = walk(costs=("speed", "heat"))
    arrays = {
        "obs": data.observations,
        "act": data.actions,
        "rew": data.rewards,
        "info/speed": data.costs[:, 0],
        "info/heat": data.costs[:, 1],
        "done": data.terminals,
        "cut": data.timeouts,
        "obs_after": data.next_observations,
    }
    columns = parse_columns(
        [
            "observations=obs",
            "actions=act",
            "rewards=rew",
            "costs=info/speed,info/heat",
            "terminals=done",
            "timeouts=cut",
            "next_observations=obs_after",
        ]
    )
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name, array in arrays.items():
            file[name] = array
    assert same(load(tmp_path / "a.hdf5", ReadOptions(columns=columns)), data)
    np.savez(tmp_path / "a.npz", **arrays)
    assert same(load(tmp_path / "a.npz", ReadOptions(columns=columns)), data)
    renamed = load(tmp_path / "a.npz", ReadOptions(columns=columns, cost_names=("fast", "hot")))
    assert renamed.cost_names == ("fast", "hot")
    with pytest.raises(InputError, match="There is no column 'nothing'"):
        load(tmp_path / "a.npz", ReadOptions(columns={"costs": ("nothing",)}))
    for wrong in (["observations"], ["observations="], ["a=b", "a=c"]):
        with pytest.raises(InputError):
            parse_columns(wrong)
    with pytest.raises(InputError, match="no role"):
        ReadOptions(columns={"states": ("obs",)})


@needs_ball
def test_the_starter_data_has_the_figures_of_its_readme(tmp_path):
    data = load(BALL)
    assert (data.size, len(data.episodes), data.observation_dim, data.action_dim) == (120_000, 600, 8, 2)
    best = [data.episodes.returns[data.episodes.within(limit)].max() for limit in (0, 10, 20, 40)]
    np.testing.assert_allclose(best, [383, 460, 470, 477], atol=0.6)
    assert data.episodes.returns.max() == pytest.approx(630, abs=0.6)
    assert not inspect(BALL).problems
    convert(BALL, tmp_path / "ball.store")
    convert(tmp_path / "ball.store", tmp_path / "ball.parquet")
    assert load(tmp_path / "ball.parquet").fingerprint == data.fingerprint


# -- tables ----------------------------------------------------------------------------------------


def test_a_csv_from_a_spreadsheet_with_a_column_map(tmp_path):
    (tmp_path / "a.csv").write_text(
        "trip,x,v,throttle,profit,wear,crashed\n"
        "a,0,1,0.5,1,0,False\na,1,1,0.25,2,0.5,true\nb,5,1,-0.5,1,0,0\nb,6,2,0,3,1,0\n"
    )
    columns = parse_columns(
        [
            "observations=x,v",
            "actions=throttle",
            "rewards=profit",
            "costs=wear",
            "terminals=crashed",
            "episode=trip",
        ]
    )
    data = load(tmp_path / "a.csv", ReadOptions(columns=columns))
    np.testing.assert_array_equal(data.terminals, [False, True, False, False])
    np.testing.assert_array_equal(data.timeouts, [False, False, False, True])
    np.testing.assert_array_equal(data.episodes.returns, [3, 4])
    np.testing.assert_array_equal(data.next_observations[0], [1, 1])
    np.testing.assert_array_equal(data.next_known, [True, True, True, False])
    assert not data.discrete
    assert data.cost_names == ("wear",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("obs_0,action_0,reward,cost,terminal\n1,2,3,4\n", "line 2 has 4 values, not 5"),
        (
            "obs_0,action_0,reward,cost,terminal\n1,2,oops,4,1\n",
            "'reward' \\(rewards\\) holds text \\('oops' in row 0\\)",
        ),
        ("obs_0,action_0,reward,cost,terminal\n1,2,3,4,maybe\n", "neither 0 nor 1"),
        ("obs_0,action_0,reward,cost,terminal\n1,0.5,,4,1\n", "NaN"),
        ("obs_0,action_0,action_0,cost,terminal\n1,2,3,4,1\n", "twice"),
        ("obs_0,action_0,reward,cost\n1,2,3,4\n", "nothing says where episodes end"),
        ("obs_0,action_0,reward,cost,terminal\n", "damaged|none"),
        ("a,b\n1,2\n", "say which is which"),
    ],
)
def test_bad_tables_are_explained(tmp_path, text, words):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError, match=words):
        load(tmp_path / "a.csv")


def test_parquet_with_a_list_per_row(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pip install 'slater-rl[tables]'")
    import pyarrow.parquet as pq

    data = walk(discrete=True)
    columns = {
        "observations": pa.array(list(data.observations)),
        "next_observations": pa.array(list(data.next_observations)),
        "action": data.actions,
        "reward": data.rewards,
        "cost": data.costs[:, 0],
        "terminal": data.terminals,
        "timeout": data.timeouts,
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert load(tmp_path / "a.parquet").fingerprint == data.fingerprint
    columns["observations"] = pa.array(
        [list(row)[: 2 + (index != 5)] for index, row in enumerate(data.observations)]
    )
    pq.write_table(pa.table(columns), tmp_path / "b.parquet")
    with pytest.raises(InputError, match="differ in length"):
        load(tmp_path / "b.parquet")


# -- Minari ----------------------------------------------------------------------------------------


@pytest.fixture
def minari_home(tmp_path, monkeypatch):
    pytest.importorskip("minari", reason="pip install 'slater-rl[minari]'")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    (tmp_path / "minari").mkdir()
    return tmp_path / "minari"


@pytest.mark.parametrize(
    "kind", [{"metadata": NOTES}, {"costs": ("speed", "heat", "air")}, {"discrete": True}]
)
def test_minari_round_trip(minari_home, kind):
    data = walk(**kind)
    save(data, "minari:bullet/ball-v0")
    assert same(load("minari:bullet/ball-v0"), data)
    assert load(minari_home / "bullet" / "ball-v0").fingerprint == data.fingerprint
    minari = pytest.importorskip("minari", reason="pip install 'slater-rl[minari]'")
    theirs = minari.load_dataset("bullet/ball-v0")
    assert theirs.total_episodes == len(data.episodes)
    np.testing.assert_array_equal(theirs[0].observations[:-1], data.observations[: data.episodes.lengths[0]])
    with pytest.raises(InputError, match="cannot be written"):
        save(data, "minari:bullet/ball-v0")


@pytest.mark.filterwarnings("ignore::UserWarning:minari")
def test_minari_datasets_of_others(minari_home):
    """Costs per reset and step, mappings as observations, no spaces in the notes, unflagged ends."""
    import minari
    from gymnasium import spaces
    from minari.data_collector import EpisodeBuffer

    rng = np.random.default_rng(0)
    episodes = []
    for number in range(3):
        steps = 4 + number
        episodes.append(
            EpisodeBuffer(
                id=number,
                observations={"b": rng.normal(size=(steps + 1, 2)), "a": rng.normal(size=(steps + 1, 1))},
                actions=rng.integers(0, 3, steps),
                rewards=np.arange(steps, dtype=float),
                terminations=np.zeros(steps, dtype=bool),
                truncations=np.zeros(steps, dtype=bool),
                infos={"cost": np.arange(steps + 1, dtype=float), "heat": np.ones(steps)},
            )
        )
    space = spaces.Dict(
        {"a": spaces.Box(-9, 9, (1,), dtype=np.float64), "b": spaces.Box(-9, 9, (2,), dtype=np.float64)}
    )
    minari.create_dataset_from_buffers(
        "their/data-v0", episodes, observation_space=space, action_space=spaces.Discrete(3)
    )
    data = load("minari:their/data-v0")
    np.testing.assert_array_equal(data.episodes.lengths, [4, 5, 6])
    np.testing.assert_array_equal(data.episodes.costs[:, 0], [10, 15, 21])  # the reset's entry is left out
    assert data.next_known.all()
    assert data.num_actions == 3
    np.testing.assert_allclose(data.observations[0, 1:], episodes[0].observations["b"][0], rtol=1e-6)
    named = load("minari:their/data-v0", ReadOptions(columns={"costs": ("infos/heat",)}))
    np.testing.assert_array_equal(named.episodes.costs[:, 0], [4, 5, 6])
    with pytest.raises(InputError, match="no field 'infos/speed'"):
        load("minari:their/data-v0", ReadOptions(columns={"costs": ("infos/speed",)}))
    with pytest.raises(InputError, match="no Minari dataset"):
        load("minari:their/other-v0")


def test_minari_notes_without_spaces_need_no_environment(minari_home):
    data = walk()
    save(data, "minari:bullet/ball-v0")
    notes = minari_home / "bullet" / "ball-v0" / "data" / "metadata.json"
    record = json.loads(notes.read_text())
    del record["observation_space"], record["action_space"], record["slater"]
    record["env_spec"] = json.dumps(
        {"id": "SafetyBallRun-v0", "max_episode_steps": 10, "entry_point": "no.such:Env"}
    )
    notes.write_text(json.dumps(record))
    read = load("minari:bullet/ball-v0")
    assert read.fingerprint == data.fingerprint
    assert (read.metadata.env_id, read.horizon) == ("SafetyBallRun-v0", 10)


def test_minari_refuses_what_it_cannot_hold(minari_home):
    for data, words in ((walk(tail=2), "no end"), (walk(given_next=False), "after the last step")):
        with pytest.raises(InputError, match=words):
            save(data, "minari:bullet/ball-v1")


@pytest.mark.parametrize("name", ["a.hdf5", "a.npz", "a.parquet", "a.csv", "a.store", "minari:some/data-v0"])
def test_no_reader_imports_a_simulator(tmp_path, minari_home, name):
    path = name if name.startswith("minari:") else str(tmp_path / name)
    save(walk(), path)
    program = (
        "import sys; from slater.data import load; load(sys.argv[1]); "
        "simulators = {'pybullet', 'bullet_safety_gym', 'dm_control', 'mujoco', 'jax', 'torch'}; "
        "print(sorted(simulators & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
