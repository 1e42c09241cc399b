import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slater import policy as policies
from slater.errors import InputError
from slater.policy import CategoricalPolicy, GaussianPolicy, Mixture, Policy


def layers(rng: np.random.Generator, *sizes: int) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    pairs = list(itertools.pairwise(sizes))
    return (
        tuple(rng.normal(size=p).astype(np.float32) for p in pairs),
        tuple(rng.normal(size=p[1]).astype(np.float32) for p in pairs),
    )


def gaussian(seed: int = 0, obs: int = 3, act: int = 2) -> GaussianPolicy:
    rng = np.random.default_rng(seed)
    low = -rng.uniform(1, 2, act).astype(np.float32)
    return GaussianPolicy(
        *layers(rng, obs, 8, 2 * act),
        np.ones(obs, np.float32),
        np.full(obs, 2, np.float32),
        low,
        -2 * low,
        (-5.0, -1.0),
    )


def categorical(seed: int = 0, obs: int = 3, actions: int = 4) -> CategoricalPolicy:
    rng = np.random.default_rng(seed)
    return CategoricalPolicy(
        *layers(rng, obs, 8, actions), np.zeros(obs, np.float32), np.ones(obs, np.float32)
    )


@pytest.mark.parametrize("made", [gaussian(), categorical(), Mixture.uniform([gaussian(1), gaussian(2)])])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_saved_policy_acts_the_same_bits(made, deterministic, tmp_path):
    assert isinstance(made, Policy)
    policies.save(made, tmp_path / "p.safetensors")
    back = policies.load(tmp_path / "p.safetensors")
    obs = np.random.default_rng(3).normal(size=(50, 3))
    one = made.act(obs, rng=np.random.default_rng(4), deterministic=deterministic)
    two = back.act(obs, rng=np.random.default_rng(4), deterministic=deterministic)
    np.testing.assert_array_equal(one, two)


def test_loading_and_acting_needs_no_jax(tmp_path):
    policies.save(Mixture.uniform([gaussian(), gaussian(1)]), tmp_path / "p.safetensors")
    code = (
        "import sys, numpy as np, slater.policy as p\n"
        "m = p.load(sys.argv[1]); r = np.random.default_rng(0)\n"
        "m.begin(rng=r).act(np.zeros(3)); assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "p.safetensors")], check=True)


@given(st.integers(0, 1000), st.floats(-1e6, 1e6))
def test_gaussian_actions_stay_in_their_box(seed, size):
    policy = gaussian(seed)
    actions = policy.act(np.full((5, 3), size), rng=np.random.default_rng(seed))
    assert actions.dtype == np.float32
    assert np.all((actions >= policy.low) & (actions <= policy.high))


def test_categorical_actions_follow_the_probabilities():
    policy = categorical()
    obs = np.tile(np.array([[0.1, -0.2, 0.3]]), (40_000, 1))
    actions = policy.act(obs, rng=np.random.default_rng(0))
    share = np.bincount(actions, minlength=4) / len(actions)
    np.testing.assert_allclose(share, policy.probabilities(obs[:1])[0], atol=0.012)
    greedy = policy.act(obs[:1], rng=np.random.default_rng(0), deterministic=True)
    assert greedy[0] == policy.probabilities(obs[:1])[0].argmax()


def test_a_mixture_keeps_its_member_for_an_episode_and_draws_by_weight():
    members = (gaussian(1), gaussian(2))
    mixture = Mixture(members, np.array([0.8, 0.2]))
    obs = np.array([0.3, -0.1, 0.7])
    answers = [m.act(obs[None], rng=np.random.default_rng(0), deterministic=True)[0] for m in members]
    rng, first = np.random.default_rng(0), 0
    for _ in range(2000):
        actor = mixture.begin(rng=rng, deterministic=True)
        actions = [actor.act(obs) for _ in range(3)]
        assert all(np.array_equal(a, actions[0]) for a in actions)
        first += np.array_equal(actions[0], answers[0])
    assert abs(first / 2000 - 0.8) < 0.04


@pytest.mark.parametrize("weights", [[0.5, 0.6], [-0.1, 1.1], [1.0], [np.nan, 1.0]])
def test_bad_mixture_weights_are_refused(weights):
    with pytest.raises(InputError):
        Mixture((gaussian(1), gaussian(2)), np.array(weights))


def test_a_wrong_observation_is_one_sentence():
    with pytest.raises(InputError, match=r"\(batch, 3\)"):
        gaussian().act(np.zeros((2, 5)), rng=np.random.default_rng(0))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_read_right(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    policies.save(gaussian(), folder / "p.safetensors")
    content = bytearray((folder / "p.safetensors").read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        # the header only: a changed weight is still a policy
        size = 8 + int.from_bytes(content[:8], "little")
        for _ in range(data.draw(st.integers(1, 5))):
            content[data.draw(st.integers(0, size - 1))] = data.draw(st.integers(0, 255))
    (folder / "q.safetensors").write_bytes(content)
    try:
        loaded = policies.load(folder / "q.safetensors")
    except InputError:
        return
    loaded.begin(rng=np.random.default_rng(0))


def test_one_action_takes_microseconds():
    import time

    rng = np.random.default_rng(0)
    policy = GaussianPolicy(
        *layers(rng, 8, 256, 256, 4), np.zeros(8, np.float32), np.ones(8, np.float32),
        -np.ones(2, np.float32), np.ones(2, np.float32), (-5.0, -1.0),
    )  # fmt: skip
    actor, obs = policy.begin(rng=rng), np.zeros(8, np.float32)
    times = []
    for _ in range(300):
        start = time.perf_counter()
        actor.act(obs)
        times.append(time.perf_counter() - start)
    assert np.median(times) < 1e-3  # some 50 microseconds on an idle core; the bound allows for a busy one
