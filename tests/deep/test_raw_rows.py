"""From a table with text, flags and times to a policy that takes such rows, and says so in its files."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest

import slater
from slater import InputError, cli
from slater.certify.verdict import EXIT_CODES
from slater.data import convert, load
from slater.data.formats.base import read_options

from .problems import QUICK

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

ROLES = {"rewards": "profit", "costs": "waste", "episode": "run"}


def orders(named: bool) -> "pd.DataFrame":
    """A small shop: shelf and weekday, what is ordered, and what is thrown away."""
    rng = np.random.default_rng(0)
    size = 240
    when = pd.Timestamp("2026-03-02 06:00") + pd.to_timedelta(np.arange(size) * 6, unit="h")
    stock, shelf = rng.uniform(0, 9, size), rng.choice(["fresh", "frozen", "dry"], size)
    amount = rng.integers(0, 3, size)
    return pd.DataFrame(
        {
            "run": np.arange(size) // 12, "stock": stock, "shelf": pd.Categorical(shelf), "when": when,
            "holiday": rng.random(size) < 0.2,
            "order": np.array(["none", "some", "many"])[amount] if named else amount + rng.random(size),
            "profit": np.minimum(stock + amount, 6), "waste": np.maximum(stock + amount - 8, 0),
        }
    )  # fmt: skip


COLUMNS = {**ROLES, "observations": ["stock", "shelf", "when", "holiday"], "actions": "order"}


def trained(data, folder, **told):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return slater.train(data, "bc", 3, out=folder, progress=False, estimate=False, **told, **QUICK)


@pytest.mark.parametrize("named", [False, True])
def test_a_policy_takes_rows_as_the_table_has_them(tmp_path, named):
    frame = orders(named)
    policy = trained(frame, tmp_path / "run", columns=COLUMNS).policy
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = load(frame, columns=COLUMNS)
    raw = frame[["holiday", "when", "shelf", "stock", "waste"]]
    expected = policy.act(data.observations, rng=np.random.default_rng(7))
    found = policy.predict(raw, seed=7)
    if named:
        names = ("many", "none", "some")
        assert policy.contract.action_names == names
        assert found.tolist() == [names[index] for index in expected]
        assert str(policy.contract).count("actions: one of 3: many, none, some") == 1
    else:
        np.testing.assert_array_equal(found, expected)
    one = policy.predict(frame.iloc[5].to_dict(), deterministic=True)
    expected = policy.predict(raw, deterministic=True)[5]
    assert one[0] == (expected if named else pytest.approx(expected))
    again = slater.load_policy(tmp_path / "run")
    assert again.predict(raw, seed=7).tolist() == found.tolist()
    by_episode = policy.predict(raw, seed=7, episode=frame["run"], deterministic=True)
    at_once = policy.predict(raw, deterministic=True)
    if named:
        assert by_episode.tolist() == at_once.tolist()
    else:
        np.testing.assert_allclose(by_episode, at_once, rtol=1e-5)


def test_what_is_told_of_a_file_can_be_told_of_a_frame(tmp_path):
    frame = orders(named=True)
    frame.loc[5, "stock"] = np.nan
    with pytest.raises(slater.InputError, match="'stock' is NaN"):
        trained(frame, tmp_path / "a", columns=COLUMNS)
    told = {"reading": {"missing": "forward"}}
    assert trained(frame, tmp_path / "b", columns=COLUMNS, options=told).policy.contract.rows == 240


def test_rows_that_do_not_fit_are_refused(tmp_path):
    policy = trained(orders(named=True), tmp_path / "run", columns=COLUMNS).policy
    rows = orders(named=True)
    with pytest.raises(slater.InputError, match="no column 'shelf'; did you mean 'Shelf'"):
        policy.predict(rows.rename(columns={"shelf": "Shelf"}))
    with pytest.raises(slater.InputError, match=r"'shelf' is 'warm' in row 0.*dry, fresh, frozen"):
        policy.predict(rows.astype({"shelf": str}).assign(shelf="warm"))
    with pytest.raises(slater.InputError, match="'stock' is missing or infinite in row 3"):
        policy.predict(rows.assign(stock=rows["stock"].where(rows.index != 3)))
    with pytest.raises(slater.InputError, match="240 rows; give one per row"):
        policy.predict(rows, episode=[1, 2])


def test_a_table_and_its_copies_give_the_same_contract(tmp_path):
    orders(named=True).to_csv(tmp_path / "a.csv", index=False)
    told = read_options(COLUMNS)
    contracts = []
    for name in ("a.csv", "b.hdf5", "c.parquet", "d.npz"):
        if name != "a.csv":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                convert(tmp_path / "a.csv", tmp_path / name, told)
        columns = COLUMNS if name == "a.csv" else None
        policy = trained(tmp_path / name, tmp_path / f"run-{name}", columns=columns).policy
        contracts.append(replace(policy.contract, data="", reading={}))
    assert contracts[0].columns[1].values == ("dry", "fresh", "frozen")
    assert [entry.name for entry in contracts[0].observations][:2] == ["stock", "shelf=dry"]
    for other in contracts[1:]:
        assert other == contracts[0]


def test_an_onnx_file_says_how_its_columns_are_encoded(tmp_path):
    onnx = pytest.importorskip("onnx")
    from slater.cli import main

    trained(orders(named=True), tmp_path / "run", columns=COLUMNS)
    assert main(["export", str(tmp_path / "run"), "--onnx", str(tmp_path / "a.onnx")]) == 0
    props = {prop.key: prop.value for prop in onnx.load(tmp_path / "a.onnx").metadata_props}
    about = json.loads(props["slater"])["contract"]
    assert about["columns"][1] == {"name": "shelf", "kind": "category", "values": ["dry", "fresh", "frozen"]}
    assert about["action_names"] == ["many", "none", "some"]


def test_episodes_of_the_policy_in_a_table_of_other_names_and_fewer_kinds_certify_it(tmp_path, capsys):
    run, pilot = tmp_path / "run", orders(named=True)
    trained(pilot, run, columns=COLUMNS)
    pilot = pilot[(pilot["shelf"] != "dry") & (pilot["order"] != "many")]
    german = ["lauf", "vorrat", "regal", "wann", "ferien", "menge", "gewinn", "abfall"]
    pilot = pilot.set_axis(german, axis=1)
    seen = ["vorrat", "regal", "wann", "ferien"]
    told = {
        "observations": seen,
        "actions": "menge",
        "rewards": "gewinn",
        "costs": "abfall",
        "episode": "lauf",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        by_frame = slater.certify(run, own=pilot, columns=told)
        assert by_frame.limits[0].cost == "waste"
        costs = np.ravel(by_frame.details["episode_costs"])
        np.testing.assert_allclose(costs, pilot.groupby("lauf")["abfall"].sum(), atol=1e-5)
        with pytest.raises(
            InputError, match=r"has the columns lauf, .*, abfall; say which.* Map them with --columns"
        ):
            slater.certify(run, own=pilot)
        with pytest.raises(
            InputError, match=r"observes stock, shelf, when, holiday, .*names vorrat; map as many"
        ):
            slater.certify(run, own=pilot, columns={**told, "observations": "vorrat"})
        more = pilot.assign(menge=["more", *pilot["menge"][1:]])
        with pytest.raises(InputError, match="has more, and the policy chooses among many, none, some"):
            slater.certify(run, own=more, columns=told)
    pilot.to_csv(tmp_path / "pilot.csv", index=False, sep=";", decimal=",")
    words = [f"{role}={names if isinstance(names, str) else ','.join(names)}" for role, names in told.items()]
    line = ["certify", str(run), "--own", str(tmp_path / "pilot.csv"), "--columns", *words, "--json"]
    assert cli.main(line) == EXIT_CODES[by_frame.verdict]
    (limit,) = json.loads(capsys.readouterr().out)["limits"]
    assert (limit["cost"], limit["upper"]) == ("waste", by_frame.limits[0].upper)
    assert cli.main(["certify", str(run), "--env", "x:Y", "--columns", *words]) == 2
    assert "--columns is about reading a file" in capsys.readouterr().err
