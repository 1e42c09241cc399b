"""`slater data`: what a person types and what comes back."""

import json
from dataclasses import replace

import numpy as np
import pytest

from slater.cli import main
from slater.commands.data import Check
from slater.commands.parse import parse
from slater.commands.reading import Reading
from slater.data import Dataset, Metadata, load, save
from slater.data.files import open_file
from slater.data.summary import frontier, summarise
from slater.data.summary_views import draw, text_plot
from slater.limits import Limit

from .make import remembering, same, walk


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "walk.hdf5"
    save(walk(episodes=12, tail=2, metadata=Metadata(horizon=10)), path)
    return path


def run(capsys, *args):
    code = main(["data", *map(str, args)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_info_says_what_a_person_wants_to_know(capsys, file, tmp_path):
    data = walk(episodes=12, tail=2)
    code, out, err = run(capsys, "info", file, "--out", tmp_path / "picture.png")
    assert (code, err) == (0, "")
    for words in (
        "episodes      12, and one without an end",
        "by timeouts, at step 10; 4 by terminals",
        "<= 20:",
    ):
        assert words in out
    assert "horizon       10 steps (stated)" in out
    assert f"best return {data.episodes.returns[data.episodes.within(20)].max():.4g}" in out
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_info_as_json_with_given_limits(capsys, file):
    data = walk(episodes=12, tail=2)
    code, out, _ = run(capsys, "info", file, "--json", "--limit", "2", "3", "--limit", "0.2/step")
    record = json.loads(out)
    assert code == 0
    assert [share["per_episode"] for share in record["limits"]] == [[2], [3], [2]]
    table = data.episodes
    expected = [table.within(2), table.within(3), table.complete & (table.costs[:, 0] <= 0.2 * table.lengths)]
    for share, safe in zip(record["limits"], expected, strict=True):
        assert share["safe_episodes"] == safe.sum()
        assert share["share"] == pytest.approx(safe.sum() / 12)
    assert record["episodes"] == 12
    assert record["incomplete_episodes"] == 1
    assert record["fingerprint"] == load(file).fingerprint
    assert record["warnings"][0]["field"] == "timeouts"


def test_info_with_named_limits_on_two_costs(capsys, tmp_path):
    data = walk(episodes=9, costs=("near", "far"))
    save(data, tmp_path / "a.hdf5")
    code, out, _ = run(capsys, "info", tmp_path / "a.hdf5", "--json", "--limit", "far=1", "--limit", "near=3")
    (share,) = json.loads(out)["limits"]
    assert code == 0
    assert share["safe_episodes"] == data.episodes.within([3, 1]).sum()
    code, _, err = run(capsys, "info", tmp_path / "a.hdf5", "--limit", "far=1")
    assert code == 2
    assert "No limit for the cost near" in err
    assert "return against far" in run(capsys, "info", tmp_path / "a.hdf5")[1]


def test_every_panel_of_the_picture_has_the_share_within_its_own_limit(capsys, tmp_path, monkeypatch):
    """Few episodes keep both limits at once, so that the share of both is none of the labels."""
    from matplotlib.figure import Figure

    data = walk(episodes=40, costs=("near", "far"))
    save(data, tmp_path / "a.hdf5")
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    bounds = {name: float(np.median(data.episodes.costs[:, i])) for i, name in enumerate(data.cost_names)}
    limits = [f"{name}={bound!r}" for name, bound in bounds.items()]
    assert run(capsys, "info", tmp_path / "a.hdf5", "--out", tmp_path / "a.png", "--limit", *limits)[0] == 0
    both = data.episodes.within(list(bounds.values())).mean()
    for index, (panel, bound) in enumerate(zip(drawn[0].axes[:2], bounds.values(), strict=True)):
        own = (data.episodes.costs[:, index] <= bound).mean()
        assert own != both
        assert [text.get_text() for text in panel.texts] == [f" {bound:g}: {own:.0%} within"]


def test_info_on_discrete_actions(capsys, tmp_path):
    save(walk(discrete=True, metadata=Metadata(num_actions=4)), tmp_path / "a.npz")
    code, out, _ = run(capsys, "info", tmp_path / "a.npz", "--out", tmp_path / "a.svg")
    assert code == 0
    assert "4 discrete" in out
    assert "75% of the actions occur" in out


def test_check_lists_problems_and_sets_the_exit_code(capsys, file, tmp_path):
    assert run(capsys, "check", file)[0] == 0
    code, out, _ = run(capsys, "check", file, "--json", "--horizon", "5")
    record = json.loads(out)
    assert code == 1
    assert not record["ok"]
    assert record["errors"][0]["field"] == "horizon"
    assert record["errors"][0]["rows"][0] == 9
    (tmp_path / "bad.hdf5").write_bytes(b"not a dataset")
    code, out, _ = run(capsys, "check", tmp_path / "bad.hdf5", "--json")
    assert code == 1
    assert "bad.hdf5" in json.loads(out)["errors"][0]["message"]


def test_how_a_file_is_read_survives_as_words_of_a_command():
    given = Reading(
        columns=("observations=x,y", "costs=c"), cost_names=("wear",), env_id="bullet/BallRun", horizon=9,
        action_low=(-1.0, -2.0), action_high=(1.0,), num_actions=None, discrete=False, clip_actions=True,
        drop_missing=True,
    )  # fmt: skip
    assert parse(Check, ["a.csv", *given.words()], "data check").reading == given
    assert parse(Check, ["a.csv", *Reading(discrete=True).words()], "data check").reading.discrete is True
    assert Reading().words() == []


def test_convert(capsys, file, tmp_path):
    code, out, _ = run(capsys, "convert", file, tmp_path / "b.store")
    assert code == 0
    assert "13 episodes" in out
    code, out, _ = run(capsys, "convert", tmp_path / "b.store", tmp_path / "c.csv", "--json")
    assert code == 0
    assert json.loads(out)["episodes"] == 13
    code, _, err = run(capsys, "convert", file, tmp_path / "b.store")
    assert code == 2
    assert "--overwrite" in err
    code, _, err = run(capsys, "convert", tmp_path / "none.hdf5", tmp_path / "d.store")
    assert code == 2
    assert err.count("\n") == 1


def test_a_csv_with_a_column_map(capsys, tmp_path):
    (tmp_path / "a.csv").write_text("x,u,r,c,end\n0,0.5,1,0,0\n1,0.1,1,1,1\n")
    columns = ["observations=x", "actions=u", "rewards=r", "costs=c", "terminals=end"]
    code, out, _ = run(capsys, "info", tmp_path / "a.csv", "--columns", *columns)
    assert code == 0
    assert "episodes      1" in out


@pytest.mark.parametrize("costs", [[3, 1, 2, 1], [0, 0, 0, 0], [5, 4, 3, 2]])
def test_the_frontier_is_the_best_return_at_each_cost(costs):
    costs, returns = np.array(costs, float), np.array([4.0, 1.0, 5.0, 2.0])
    steps = frontier(costs, returns)
    for level in (0, 1, 1.5, 2, 3, 9):
        within = returns[costs <= level]
        reached = steps[steps[:, 0] <= level, 1]
        assert (reached.max() if len(reached) else None) == (within.max() if len(within) else None)
    assert (np.diff(steps, axis=0) > 0).all()


def test_a_long_file_is_sampled_evenly_for_coverage(tmp_path):
    """Half of the rows at 0.5, half at -0.5, in two long runs: both halves show in the histogram."""
    size = 1_000_000
    actions = np.where(np.arange(size) < size // 2, 0.5, -0.5)[:, None]
    data = Dataset.from_arrays(
        observations=np.zeros((size, 1)),
        actions=actions,
        rewards=np.ones(size),
        costs=np.ones(size),
        terminals=np.arange(size) % 1000 == 999,
    )
    save(data, tmp_path / "long.store")
    opened = open_file(tmp_path / "long.store")
    with opened.reader:
        summary = summarise(opened, [Limit.episode(1000)])
    shares = np.array(summary.record["actions"]["histogram"][0])
    assert sorted(shares[shares > 0]) == pytest.approx([0.5, 0.5], abs=0.01)
    assert summary.record["limits"][0]["share"] == 1
    assert len(text_plot(summary)) == 16
    draw(summary, tmp_path / "a.pdf")


def test_help_explains_the_options(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["data", "info", "--help"])
    assert stopped.value.code == 0
    assert "--limit" in capsys.readouterr().out


@pytest.mark.parametrize("ending", ["hdf5", "npz", "parquet", "csv", "store"])
def test_bare_takes_names_and_propensities_away_and_nothing_else(capsys, tmp_path, ending):
    full = remembering()
    save(full, tmp_path / f"full.{ending}")
    code, out, err = run(capsys, "bare", tmp_path / f"full.{ending}", tmp_path / f"bare.{ending}")
    assert (code, err) == (0, "")
    assert "taken away: propensity, source" in out
    bare = load(tmp_path / f"bare.{ending}")
    assert bare.source is None
    assert bare.propensity is None
    expected = replace(full, source=None, propensity=None)
    assert bare.fingerprint == expected.fingerprint
    assert replace(bare.metadata, notes={}) == replace(full.metadata, notes={})
    code, out, err = run(capsys, "bare", tmp_path / f"full.{ending}", tmp_path / f"bare.{ending}")
    assert code == 2
    assert "already there" in err


def test_bare_says_that_there_was_nothing_to_take_away(capsys, file, tmp_path):
    code, out, _ = run(capsys, "bare", file, tmp_path / "bare.npz", "--json")
    assert (code, json.loads(out)["taken_away"]) == (0, [])
    assert same(load(tmp_path / "bare.npz"), load(file))


def test_what_was_recognised_is_said_by_every_command(capsys, tmp_path):
    pytest.importorskip("pyarrow")
    lines = ["episode;obs_x;obs_sky;action;reward;cost"]
    skies = ("sun", "rain")
    lines += [f"{i // 5};{i},5;{skies[i % 2]};0,{i % 10};1,5;0" for i in range(20)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(lines))
    said = "semicolons between columns, decimal commas; as numbers: obs_sky (2 values)"
    for words in (["check", path], ["info", path], ["convert", path, tmp_path / "a.npz"]):
        code, out, _ = run(capsys, *words)
        assert code == 0
        assert said in out
    assert json.loads(run(capsys, "info", path, "--json")[1])["recognised"] == said
    assert load(tmp_path / "a.npz").metadata.entry_names(3) == ["obs_x", "obs_sky=rain", "obs_sky=sun"]


def test_named_choices_are_shown_by_their_names(capsys, tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.csv"
    rows = [f"{i // 5},{i},{('wait', 'go', 'go')[i % 3]},1,0" for i in range(15)]
    path.write_text("\n".join(["episode,obs,action,reward,cost", *rows]))
    code, out, _ = run(capsys, "info", path)
    assert code == 0
    assert "actions       2 discrete: go, wait" in out
    assert "shares  go: 66.7%, wait: 33.3%" in out
