"""Policies as ONNX: the graph, in a real runtime, does what NumPy does."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.special import ndtr

from slater.errors import InputError
from slater.policy import CategoricalPolicy, GaussianMixturePolicy, GaussianPolicy, Mixture
from slater.policy.budget import Budget
from slater.policy.onnx_file import OPSET, save_onnx
from slater.policy.sequence import SequencePolicy, Targets
from slater.policy.switching import SwitchingPolicy

from .made import candidates, layers

onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'slater-rl[onnx]' onnxruntime")

ROWS = 10_000


def gaussian(seed: int) -> GaussianPolicy:
    rng = np.random.default_rng(seed)
    weights, biases = zip(*layers(rng, 8, 64, 64, 4), strict=True)
    mean, std = rng.normal(size=8).astype(np.float32), rng.uniform(0.5, 2, 8).astype(np.float32)
    low, high = np.array([-1, -2], np.float32), np.array([1, 3], np.float32)
    return GaussianPolicy(weights, biases, mean, std, low, high, (-5.0, 0.0))


def gaussian_mixture(seed: int, components: int = 3) -> GaussianMixturePolicy:
    one, rng = gaussian(seed), np.random.default_rng(seed)
    weights, biases = zip(*layers(rng, 8, 64, components * 5), strict=True)
    # modes apart and logits of some size
    biases = (*biases[:-1], (biases[-1] + rng.normal(size=biases[-1].shape)).astype(np.float32))
    return GaussianMixturePolicy(
        weights, biases, one.obs_mean, one.obs_std, one.low, one.high, (-5.0, 0.0), components
    )


def categorical(seed: int) -> CategoricalPolicy:
    rng = np.random.default_rng(seed)
    weights, biases = zip(*layers(rng, 8, 64, 5), strict=True)
    return CategoricalPolicy(weights, biases, np.zeros(8, np.float32), np.ones(8, np.float32))


def observations(rows: int = ROWS) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, 8)).astype(np.float32)


class Fixed:
    """A generator that gives one array, as NumPy's policies ask for their noise."""

    def __init__(self, noise: np.ndarray) -> None:
        self.noise = noise

    def standard_normal(self, shape, dtype=np.float32):
        return self.noise.reshape(shape)

    def gumbel(self, size):
        return self.noise.reshape(size)


class Halves(Fixed):
    """The same for a mixture of K Gaussians: the first K columns draw the component."""

    def __init__(self, noise: np.ndarray, components: int) -> None:
        self.gumbels = -np.log(-np.log(ndtr(noise[:, :components].astype(np.float64))))
        self.noise = noise[:, -2:]

    def gumbel(self, size):
        return self.gumbels.reshape(size)


def run(path, **inputs):
    (action,) = onnxruntime.InferenceSession(str(path)).run(None, inputs)
    return action


def test_a_gaussian_drawn_and_mean(tmp_path):
    policy, obs = gaussian(1), observations()
    save_onnx(policy, tmp_path / "p.onnx")
    noise = np.random.default_rng(1).standard_normal((ROWS, 2), dtype=np.float32)
    np.testing.assert_allclose(
        run(tmp_path / "p.onnx", observation=obs, noise=noise), policy.act(obs, rng=Fixed(noise)), atol=1e-6
    )
    mean = policy.act(obs, rng=np.random.default_rng(0), deterministic=True)
    np.testing.assert_allclose(run(tmp_path / "p.onnx", observation=obs, noise=0 * noise), mean, atol=1e-6)


def test_a_mixture_of_gaussians_drawn_and_likeliest_mean(tmp_path):
    policy, obs = gaussian_mixture(1), observations()
    save_onnx(policy, tmp_path / "p.onnx")
    noise = np.random.default_rng(1).standard_normal((ROWS, 3 + 2), dtype=np.float32)
    found = run(tmp_path / "p.onnx", observation=obs, noise=noise)
    wanted = policy.act(obs, rng=Halves(noise, 3))
    # another component may win where two logits are closer than rounding
    assert np.mean(np.abs(found - wanted).max(axis=1) > 1e-5) <= 1e-3
    mean = policy.act(obs, rng=np.random.default_rng(0), deterministic=True)
    np.testing.assert_allclose(run(tmp_path / "p.onnx", observation=obs, noise=0 * noise), mean, atol=1e-6)
    # every component is drawn as often as in NumPy, and noise of any size gives an action
    np.testing.assert_allclose(
        found.mean(axis=0), policy.act(obs, rng=np.random.default_rng(2)).mean(axis=0), atol=0.05
    )
    for size in (-40.0, 40.0):
        assert np.isfinite(run(tmp_path / "p.onnx", observation=obs, noise=np.full_like(noise, size))).all()


def test_a_mixture_of_members_of_both_kinds(tmp_path):
    members, obs = (gaussian(1), gaussian_mixture(2, 2), gaussian_mixture(3, 4)), observations(1000)
    save_onnx(Mixture(members, np.array([0.25, 0.25, 0.5])), tmp_path / "m.onnx")
    noise = np.random.default_rng(1).standard_normal((1000, 4 + 2), dtype=np.float32)
    for index, (member, rng) in enumerate(
        zip(members, (Fixed(noise[:, -2:]), Halves(noise, 2), Halves(noise, 4)), strict=True)
    ):
        found = run(tmp_path / "m.onnx", observation=obs, noise=noise, member=np.array(index))
        assert np.mean(np.abs(found - member.act(obs, rng=rng)).max(axis=1) > 1e-5) <= 1e-3


def test_discrete_actions_are_the_same(tmp_path):
    policy, obs = categorical(2), observations()
    save_onnx(policy, tmp_path / "p.onnx")
    noise = np.random.default_rng(1).gumbel(size=(ROWS, 5)).astype(np.float32)
    drawn = run(tmp_path / "p.onnx", observation=obs, noise=noise)
    assert drawn.dtype == np.int64
    # equal but where two logits are closer than rounding
    assert np.mean(drawn != policy.act(obs, rng=Fixed(noise))) <= 1e-4


def test_the_best_of_several_proposals(tmp_path):
    policy, obs = candidates(3), observations(2000)
    save_onnx(policy, tmp_path / "p.onnx")
    noise = np.random.default_rng(1).standard_normal((2000, 6, 4), dtype=np.float32)
    found, wanted = run(tmp_path / "p.onnx", observation=obs, noise=noise), policy.act(obs, rng=Fixed(noise))
    # another proposal may win where two scores are closer than rounding
    assert np.mean(np.abs(found - wanted).max(axis=1) > 1e-6) <= 1e-3
    mean = policy.act(obs, rng=np.random.default_rng(0), deterministic=True)
    np.testing.assert_allclose(run(tmp_path / "p.onnx", observation=obs, noise=0 * noise), mean, atol=1e-6)


def test_a_mixture_acts_with_the_member_that_it_is_told(tmp_path):
    import onnx

    members, obs = (gaussian(1), gaussian(2)), observations()
    save_onnx(Mixture(members, np.array([0.25, 0.75])), tmp_path / "m.onnx", contract={"limits": ["cost=20"]})
    noise = np.random.default_rng(1).standard_normal((ROWS, 2), dtype=np.float32)
    for index, member in enumerate(members):
        found = run(tmp_path / "m.onnx", observation=obs, noise=noise, member=np.array(index))
        np.testing.assert_allclose(found, member.act(obs, rng=Fixed(noise)), atol=1e-6)
    model = onnx.load(tmp_path / "m.onnx")
    about = json.loads({p.key: p.value for p in model.metadata_props}["slater"])
    assert about["weights"] == [0.25, 0.75]
    assert about["limits"] == ["cost=20"]
    assert model.opset_import[0].version == OPSET


def switching(seed: int, *, discrete: bool, ends: str) -> SwitchingPolicy:
    rng, heads, size = np.random.default_rng(seed), 3, 2 if not discrete else 5
    seen = 8 + (ends == "horizon")
    critics = tuple(
        tuple(layers(rng, seen + (0 if discrete else size), 32, size if discrete else 1) for _ in range(2))
        for _ in range(3)
    )
    bounds = (None, None) if discrete else (np.array([-1, -2], np.float32), np.array([1, 3], np.float32))
    return SwitchingPolicy(
        layers(rng, seen, 32, heads * size * (1 if discrete else 2)), critics, heads, Budget(ends, 12, 0.9),
        np.array([2.0, 3.0], np.float32), np.array([0.5, 1.0], np.float32),
        rng.normal(size=8).astype(np.float32), rng.uniform(0.5, 2, 8).astype(np.float32), *bounds,
        (-5.0, 0.0), True, ("heat", "wear"),
    )  # fmt: skip


def sequence(seed: int, *, discrete: bool) -> SequencePolicy:
    rng, width, size = np.random.default_rng(seed), 16, 5 if discrete else 2

    def matrix(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)

    arrays = {f"embed.{name}_weight": matrix(rows, width)
              for name, rows in (("return", 1), ("cost", 2), ("obs", 8), ("action", size))}  # fmt: skip
    arrays |= {"embed.token_bias": matrix(4, width), "embed.time": matrix(9, width)}
    arrays |= {"embed.norm_in": 1 + matrix(2, width), "embed.norm_out": 1 + matrix(2, width)}
    for block in range(2):
        shapes = {"norm_1": (2, width), "qkv_weight": (width, 3 * width), "qkv_bias": (3 * width,),
                  "out_weight": (width, width), "out_bias": (width,), "norm_2": (2, width),
                  "up_weight": (width, 64), "up_bias": (64,), "down_weight": (64, width),
                  "down_bias": (width,)}  # fmt: skip
        arrays |= {f"blocks.{block}.{name}": matrix(*shape) for name, shape in shapes.items()}
    outputs = size * (1 if discrete else 2)
    arrays |= {"action_weight": matrix(width, outputs), "action_bias": matrix(outputs)}
    targets = Targets(
        rng.uniform(0, 9, (20, 3)).astype(np.float32), 0.9, None, np.full(3, 2, np.float32),
        np.full(3, 3, np.float32), np.zeros(3, np.float32), np.full(3, 9, np.float32),
    )  # fmt: skip
    bounds = (None, None) if discrete else (np.array([-1, -2], np.float32), np.array([1, 3], np.float32))
    return SequencePolicy(
        arrays, 4, 4, 2, np.zeros(8, np.float32), np.ones(8, np.float32), *bounds, (-5.0, 0.0), targets,
        np.array([5.0, 6.0], np.float32), ("heat", "wear"),
    )  # fmt: skip


BUDGETED = {
    **{f"switching-{ends}-{kind}": switching(4, discrete=kind == "discrete", ends=ends)
       for ends in ("horizon", "never", "timeouts") for kind in ("continuous", "discrete")},
    "sequence-continuous": sequence(5, discrete=False), "sequence-discrete": sequence(6, discrete=True),
}  # fmt: skip


@pytest.mark.parametrize("name", BUDGETED)
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_policy_that_keeps_a_budget_acts_alike_through_whole_episodes(name, deterministic, tmp_path):
    """State and budget go in and come out; past the horizon too, and with a limit changed on the way."""
    import onnx

    policy, rng = BUDGETED[name], np.random.default_rng(7)
    # a mixture of which one member is ever drawn is that member
    save_onnx(Mixture((policy, policy), np.array([0.0, 1.0])), tmp_path / "p.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "p.onnx"))
    about = {p.key: p.value for p in onnx.load(tmp_path / "p.onnx").metadata_props}["slater"]
    begin, names = json.loads(about)["start"], [output.name for output in session.get_outputs()]
    shape = next(i.shape for i in session.get_inputs() if i.name == "noise")[1:]
    different = 0
    for episode in range(10):
        actor = policy.begin(rng=Fixed(None), deterministic=deterministic)
        state = {k: np.array([v], np.float32) for k, v in begin.items() if k not in ("time", "tokens")}
        state["time"] = np.array(0)
        if "tokens" in begin:
            state["tokens"] = np.zeros((1, 0, 16), np.float32)
        for step in range(14):
            obs = rng.normal(size=8).astype(np.float32)
            noise = rng.normal(size=(1, *shape)).astype(np.float32) * (not deterministic)
            if step == 5 and episode % 2:
                actor.change_limits([4.0, 1.0])
                old, new = policy.budget.start(policy.limits), policy.budget.start([4.0, 1.0])
                # what is left at this call is of the step before: the difference grows with the discount
                grown = policy.budget.gamma ** (step - 1) if policy.budget.ends == "never" else 1.0
                state["left"] = state["left"] + ((new - old) / grown).astype(np.float32)
                if "want" in state:
                    more = policy.with_limits([4.0, 1.0]).target_return - policy.target_return
                    state["want"] = state["want"] + np.float32(more)
            actor.rng = Fixed(noise)
            wanted = actor.act(obs)
            given = session.run(names, {"observation": obs[None], "noise": noise, **state})
            found = dict(zip(names, given, strict=True))
            if not np.allclose(found["action"][0], wanted, atol=1e-4):
                different += 1
                break  # another head won by rounding: from here on they are in different episodes
            costs, reward = rng.uniform(0, 0.6, 2), float(rng.normal())
            actor.observe(reward, costs)
            state |= {k.removesuffix("_out"): v for k, v in found.items() if k != "action"}
            state["costs"] = costs[None].astype(np.float32)
            if "reward" in state:
                state["reward"] = np.array([[reward]], np.float32)
            np.testing.assert_allclose(found["time_out"], step + 1)
    assert different <= 1


def test_budgets_of_several_members_are_refused_in_a_sentence(tmp_path):
    policy = BUDGETED["switching-horizon-discrete"]
    with pytest.raises(InputError, match="keep budgets of their own"):
        save_onnx(Mixture.uniform([policy, policy]), tmp_path / "p.onnx")
    assert not list(tmp_path.iterdir())
