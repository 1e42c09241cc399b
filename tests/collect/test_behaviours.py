"""Behaviours: trained, stopped and continued, kept as a file, recorded with names and densities."""

from __future__ import annotations

import importlib
import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slater import cli, data
from slater.collect import Recording, load_behaviour, record_behaviour, save_behaviour
from slater.collect import benchmark as benchmark_by_name
from slater.collect.behaviour import Behaviour, Trained, behaviour_of_training, chosen_policies
from slater.collect.benchmark import BENCHMARKS, Benchmark, behaviour_path
from slater.collect.recipes import RECIPES
from slater.collect.recording import recorded_source
from slater.collect.sac import SACConfig
from slater.collect.training import Recipe, Segment, train
from slater.deep import checkpoint
from slater.deep.engine.training import Interrupted
from slater.errors import InputError
from slater.policy import GaussianPolicy

QUICK = SACConfig(hidden=(32,), batch_size=64, learning_rate=3e-3, updates_per_step=1.0)
TOY = Recipe(
    "collect_toys:Pay?costs=pay", 10, 1_600, (2.0,), free=0.5, penalty_rate=10.0, keep=16, start_steps=80,
    config=QUICK,
)  # fmt: skip
TRAINED = sorted(path.stem for path in (Path(__file__).parents[2] / "behaviours").glob("*.safetensors"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one finished training."""
    folder = tmp_path_factory.mktemp("toy")
    train(TOY, folder)
    return folder


def test_the_penalty_makes_the_limit_bind(trained: Path) -> None:
    """Without a penalty the toy pays at every step; with one that moves, it comes down to the target."""
    curve = [json.loads(line) for line in (trained / "curve.jsonl").read_text().splitlines()]
    free = [line["mean_cost"] for line in curve if line["target"] is None]
    assert np.mean(free[-5:]) > 8.0
    assert np.mean([line["mean_cost"] for line in curve[-10:]]) < 5.0
    assert curve[-1]["penalty"] > 0.0


def test_stopped_and_continued_gives_the_same_policies(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked to stop it saves first; killed after a save, the rest is done again: to the same bits."""

    def asked(segment: Segment) -> None:
        if segment.steps >= 500:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="stopped after 520 of 1600 steps"):
        train(TOY, tmp_path, asked)
    assert checkpoint.read_record(tmp_path / "learner.safetensors")["segments"] * TOY.segment == 520
    monkeypatch.setattr("slater.collect.training.SAVE_SECONDS", 0.0)

    def killed(segment: Segment) -> None:
        if segment.steps >= 900:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        train(TOY, tmp_path, killed)
    train(TOY, tmp_path)
    names = sorted(path.name for path in (trained / "policies").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "policies").iterdir())
    assert len(names) >= 16
    for name in names:
        with np.load(trained / "policies" / name) as one, np.load(tmp_path / "policies" / name) as two:
            for key in one.files:
                np.testing.assert_array_equal(one[key], two[key])


def test_another_recipe_in_the_same_place_is_refused(trained: Path) -> None:
    """A folder belongs to one recipe."""
    with pytest.raises(InputError, match="is of another recipe"):
        train(Recipe("collect_toys:Pay?costs=pay", 10, 800, (2.0,), config=QUICK), trained)


def test_a_file_gives_back_the_behaviour(trained: Path, tmp_path: Path) -> None:
    """What is in the file is what was trained, in half precision, with its curve and its settings."""
    behaviour = behaviour_of_training(trained, (2.0,))
    save_behaviour(behaviour, tmp_path / "toy.safetensors")
    read = load_behaviour(tmp_path / "toy.safetensors")
    assert (read.env_id, read.limits, read.recipe) == (TOY.env_id, (2.0,), TOY.record())
    assert [line["steps"] for line in read.curve][-1] >= TOY.steps
    for one, two in zip(behaviour.sources, read.sources, strict=True):
        assert (one.name, one.steps, one.penalty) == (two.name, two.steps, two.penalty)
        for key, array in one.policy.tensors().items():
            np.testing.assert_array_equal(array, two.policy.tensors()[key])
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="is not a behaviour file"):
        load_behaviour(tmp_path / "bad.safetensors")


def test_the_command_writes_what_was_trained(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`slater behaviours train`, on a finished training, without processes; an unknown task is refused."""
    shutil.copytree(trained, tmp_path / "work" / "ballrun")
    monkeypatch.setitem(RECIPES, "ballrun", TOY)
    monkeypatch.setitem(BENCHMARKS, "ballrun", Benchmark(4, (2.0,)))
    words = ["behaviours", "train", "ballrun", "--work", str(tmp_path / "work"), "--out", str(tmp_path)]
    assert cli.main(words) == 0
    assert "ballrun.safetensors, 1,600 steps" in capsys.readouterr().out
    assert load_behaviour(tmp_path / "ballrun.safetensors").recipe == TOY.record()
    assert cli.main(["behaviours", "train", "cycling"]) == 2
    assert "there is no dataset 'cycling'" in capsys.readouterr().err


def test_choosing_covers_both_sides_of_every_limit() -> None:
    """Bad, middling, best; the best within each limit, the one nearest to it, and the cheapest."""
    kept = [(1, 0.0, 90.0), (2, 40.0, 90.0), (3, 70.0, 90.0), (4, 100.0, 90.0), (5, 80.0, 39.0)]
    kept += [(6, 60.0, 21.0), (7, 55.0, 18.0), (8, 50.0, 0.0)]
    roles = dict(chosen_policies(kept, (20.0, 40.0)))
    assert roles == {
        "first": 0, "third": 1, "two-thirds": 2, "best": 3, "within-40": 4, "within-20": 6, "near-20": 5,
        "cheapest": 7,
    }  # fmt: skip


def _toy_behaviour() -> Behaviour:
    rng = np.random.default_rng(0)
    bounds = np.ones(1, np.float32)

    def policy(shift: float) -> GaussianPolicy:
        weights = (
            rng.normal(size=(2, 8)).astype(np.float32),
            0.1 * rng.normal(size=(8, 2)).astype(np.float32),
        )
        biases = (np.zeros(8, np.float32), np.array([shift, -1.0], np.float32))
        return GaussianPolicy(
            weights, biases, np.zeros(2, np.float32), np.ones(2, np.float32), -bounds, bounds, (-5, 1)
        )

    sources = tuple(
        Trained(name, 10, 0.0, 0.0, 0.0, policy(shift)) for name, shift in (("pays", 1.0), ("saves", -1.0))
    )
    return Behaviour("collect_toys:Pay?costs=pay", (2.0,), sources)


@pytest.mark.parametrize("how", ["squashed", "clipped"])
def test_the_log_remembers_source_and_density(tmp_path: Path, how: str) -> None:
    """Recomputed from the file that was written, densities agree to 1e-5; twice the same data; any
    workers."""
    path = tmp_path / "toy.safetensors"
    save_behaviour(_toy_behaviour(), path)
    recording = Recording(episodes=20, noise=0.15, how=how)  # type: ignore[arg-type]
    made = record_behaviour(path, recording)
    assert record_behaviour(path, recording).fingerprint == made.fingerprint
    assert (
        record_behaviour(path, Recording(episodes=20, noise=0.15, how=how, seed=2)).fingerprint
        != made.fingerprint
    )  # type: ignore[arg-type]
    data.save(made, tmp_path / "toy.hdf5")
    read = data.load(tmp_path / "toy.hdf5")
    assert list(read.source) == ["pays"] * 20 + ["saves"] * 20  # type: ignore[arg-type]
    _check_densities(read, load_behaviour(path), recording)
    costs = read.episodes.costs[:, 0]
    assert costs[:20].mean() > 8.0 > 2.0 > costs[20:].mean()


def _check_densities(read: data.Dataset, behaviour: Behaviour, recording: Recording) -> None:
    """Every recorded density is the source's own, to 1e-5, and the weights of a source under itself are 1."""
    assert read.source is not None
    assert read.propensity is not None
    by_row = np.repeat(read.source, read.episodes.lengths)
    for trained_policy in behaviour.sources:
        own = by_row == trained_policy.name
        source = recorded_source(trained_policy.policy, recording)
        found = source.propensity(read.observations[own], read.actions[own])
        np.testing.assert_allclose(found, read.propensity[own], rtol=1e-5)
        assert np.mean(found / read.propensity[own]) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("name", TRAINED)
def test_densities_of_the_projects_behaviours(name: str, tmp_path: Path) -> None:
    """On every task: recorded, written, read, recomputed; and E_b[p/b] = 1 on the recorded states."""
    behaviour = load_behaviour(behaviour_path(name))
    few = Behaviour(behaviour.env_id, behaviour.limits, behaviour.sources[-2:])
    recording = Recording(episodes=1)
    made = record_behaviour(few, recording)
    data.save(made, tmp_path / "few.hdf5")
    _check_densities(data.load(tmp_path / "few.hdf5"), few, recording)
    # the source with a little more noise covers the source itself: draw from the one, weigh by the other
    wide = recorded_source(few.sources[0].policy, Recording(noise=0.15))
    narrow = recorded_source(few.sources[0].policy, recording)
    states = np.repeat(made.observations[:50], 100, axis=0)
    actions = wide.act(states, rng=np.random.default_rng(0))
    weights = narrow.propensity(states, actions) / wide.propensity(states, actions)
    assert weights.mean() == pytest.approx(1.0, abs=5 * weights.std() / np.sqrt(len(weights)))


def test_the_command_records_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`slater collect --behaviour FILE`, in our way and in the paper's."""
    path = tmp_path / "toy.safetensors"
    save_behaviour(_toy_behaviour(), path)
    words = ["collect", "--behaviour", str(path), "--episodes", "2", "--json"]
    assert cli.main([*words, "--noise", "0.2", "--out", str(tmp_path / "a.hdf5")]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 4
    assert cli.main([*words, "--preset", "paper", "--out", str(tmp_path / "b.hdf5")]) == 0
    notes = json.loads(data.load(tmp_path / "b.hdf5").metadata.notes["recording"])
    assert (notes["how"], notes["noise"], notes["mean_only"]) == ("clipped", 0.15, False)
    assert cli.main([*words, "--steps", "5", "--out", str(tmp_path / "c.hdf5")]) == 2


def test_a_dataset_by_name(tmp_path: Path) -> None:
    """Made once, then found; an unknown name, and behaviours that are not there, are said in one sentence."""
    assert len(BENCHMARKS) == 12
    with pytest.raises(InputError, match="there is no dataset 'cycling'"):
        benchmark_by_name("cycling", tmp_path)
    with pytest.raises(InputError, match="SLATER_BEHAVIOURS"):
        benchmark_by_name("walker", tmp_path, behaviours=tmp_path)


@pytest.fixture
def describing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script that describes datasets."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    return importlib.import_module("describe_data")


def test_the_best_mixture_of_sources(describing: Any) -> None:
    """A reckless and an idle source mix to the limit."""
    means = describing.SourceMeans
    sources = [means("idle", 1, 0.0, 0.0, 0.0, 0.0), means("reckless", 1, 100.0, 0.0, 80.0, 0.0)]
    reached, cost, weights = describing.best_mixture_of_sources(sources, 20.0)
    assert (reached, cost) == (pytest.approx(25.0), pytest.approx(20.0))
    assert weights == {"idle": pytest.approx(0.75), "reckless": pytest.approx(0.25)}


def test_datasets_are_made_compared_and_described_by_commands(
    describing: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the same fingerprint, another one is named; the page has every source and the picture."""
    monkeypatch.setitem(BENCHMARKS, "ballrun", Benchmark(4, (2.0,), "Its balls are toys."))
    save_behaviour(_toy_behaviour(), tmp_path / "behaviours" / "ballrun.safetensors")
    expected = tmp_path / "fingerprints"

    def make(folder: str, *more: str) -> str:
        words = ["behaviours", "data", "ballrun", "--folder", str(tmp_path / folder)]
        words += ["--behaviours", str(tmp_path / "behaviours"), "--fingerprints", str(expected), *more]
        assert cli.main(words) == 0
        return capsys.readouterr().out

    assert "ballrun: Its balls are toys." in make("one", "--update")
    everything = ["behaviours", "data", "--folder", str(tmp_path / "one"), "--behaviours"]
    assert cli.main([*everything, str(tmp_path / "behaviours")]) == 0
    assert "walker: left out, its behaviours are not trained" in capsys.readouterr().out
    assert "results will differ" not in make("two")
    expected.write_text("ballrun 0123\n")
    assert "has 0123: another processor" in make("two")
    words = [
        "behaviours",
        "data",
        "ballrun",
        "--preset",
        "paper",
        "--behaviours",
        str(tmp_path / "behaviours"),
    ]
    assert cli.main([*words, "--folder", str(tmp_path / "paper")]) == 0
    notes = json.loads(data.load(tmp_path / "paper" / "ballrun.hdf5").metadata.notes["recording"])
    assert (notes["how"], notes["noise"], notes["mean_only"]) == ("clipped", 0.15, False)
    assert cli.main([*words, "--folder", str(tmp_path / "one")]) == 2
    assert "is recorded in the way 'squashed'" in capsys.readouterr().err
    words = ["behaviours", "check", "--folder", str(tmp_path / "one"), "--behaviours"]
    assert cli.main([*words, str(tmp_path / "behaviours")]) == 0
    assert "mean weights of a source under itself: 1.000000 to 1.000000" in capsys.readouterr().out
    # the same names, other policies: the densities are not theirs
    other = _toy_behaviour()
    swapped = [
        replace(one, policy=two.policy) for one, two in zip(other.sources, other.sources[::-1], strict=True)
    ]
    save_behaviour(replace(other, sources=tuple(swapped)), tmp_path / "others" / "ballrun.safetensors")
    assert cli.main([*words, str(tmp_path / "others")]) == 1
    capsys.readouterr()
    page = tmp_path / "page.md"
    words = ["--folder", str(tmp_path / "one"), "--out", str(page)]
    words += ["--figures", str(tmp_path / "figures"), "--densities"]
    describing.main([*words, "--behaviours", str(tmp_path / "behaviours")])
    text = page.read_text()
    assert "| [ballrun](#ballrun) | 8 | 80 | 2 |" in text
    assert "`. **Its balls are toys.**" in text
    assert "| ballrun | 80 |" in text
    assert "| 1.000000 to 1.000000 |" in text
    assert "| pays | 4 |" in text
    assert "| saves | 4 |" in text
    assert "(figures/ballrun.png)" in text
    assert (tmp_path / "figures" / "ballrun.png").stat().st_size > 1_000


def test_the_page_of_the_datasets_says_what_each_fails_to_show() -> None:
    page = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text()
    weak = {name: one.weakness for name, one in BENCHMARKS.items() if one.weakness}
    assert {"antcircle", "quadruped", "humanoid", "walker"} <= set(weak)
    for name, words in weak.items():
        section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert f"**{words}**" in section
