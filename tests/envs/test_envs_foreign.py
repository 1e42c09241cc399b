"""Any other environment: where costs are found, what becomes of spaces, and what is refused."""

import subprocess
import sys

import numpy as np
import pytest
from env_simulators import needs_gymnasium, play

import slater.envs
from slater.envs import install
from slater.errors import InputError

pytestmark = needs_gymnasium


@pytest.mark.parametrize(
    ("style", "options", "names"),
    [
        ("info", {}, ("cost",)),
        ("six", {}, ("cost",)),
        ("mapping", {}, ("left", "right", "other")),
        ("mapping", {"costs": ("right", "left")}, ("right", "left")),
        ("keys", {"costs": "left,right"}, ("left", "right")),
        ("vector", {}, ("left", "right")),
        ("vector", {"costs": ["right"]}, ("right",)),
        ("none", {"costs": ()}, ()),
    ],
)
def test_costs_are_found_wherever_they_are(style, options, names):
    env = slater.envs.make("env_toys:Line", style=style, **options)
    assert env.cost_names == names
    for observation, reward, _, _, cost, costs in play(env, 3, 7)[1:]:
        expected = {"left": float(reward < 0), "right": float(reward > 0), "cost": float(reward < 0)}
        expected["other"] = 5.0
        assert costs == tuple(expected[name] for name in names)
        assert observation == [reward]
        own = {"vector": 2.0 * expected["left"], "info": expected["left"], "six": expected["left"]}
        assert cost == own.get(style, sum(costs))


def test_options_may_stand_in_the_id():
    env = slater.envs.make("env_toys:Line?style=keys&costs=right&steps=3&discrete=true")
    assert env.cost_names == ("right",)
    assert env.action_space.n == 3
    assert len(play(env, 0, 9, lambda _: 2)) == 4
    assert slater.envs.make("CartPole-v1?costs=").cost_names == ()


def test_a_registered_environment_keeps_its_time_limit_with_six_values():
    import env_toys  # noqa: F401  registers it

    env = slater.envs.make("SlaterSix-v0")
    seen = play(env, 0, 50)
    assert len(seen) == 6
    assert seen[-1][2:4] == (False, True)
    seen = play(slater.envs.make("SlaterSix-v0", max_episode_steps=9), 0, 50)
    assert len(seen) == 10


def test_gymnasium_ids_with_discrete_actions():
    env = slater.envs.make("CartPole-v1", costs=())
    assert env.observation_space.shape == (4,)
    one, other = (play(env, 5, 20, lambda step: step % 2) for _ in range(2))
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(one, other, strict=True))
    assert slater.envs.make("env_toys:SlaterSix-v0").cost_names == ("cost",)  # Gymnasium's module:id


def test_observations_become_flat_vectors():
    numbered = slater.envs.make("env_toys:Grid", max_episode_steps=2)
    assert numbered.reset(seed=0)[0].tolist() == [0.0, 0.0, 1.0, 0.0]
    joined = slater.envs.make("env_toys:Grid", numbered=False)
    observation = joined.reset(seed=0)[0]
    assert observation.dtype == np.float64
    assert observation.tolist() == [0.5, 0.5, 0.5, 0.5, 0.0, 1.0]
    assert joined.observation_space.shape == (6,)


@pytest.mark.parametrize(
    ("env_id", "options", "message"),
    [
        (
            "no_such_module:build",
            {},
            "the module 'no_such_module' of 'no_such_module:build' cannot be imported",
        ),
        ("env_toys:nothing", {}, "'env_toys' has no callable 'nothing', and Gymnasium says"),
        ("env_toys:not_an_environment", {}, "returned a int; it must return a gymnasium.Env"),
        ("env_toys:Line", {"colour": 1}, "cannot be called with the options given: .*colour"),
        ("NoSuchThing-v0", {}, "there is no environment 'NoSuchThing-v0'"),
        ("CartPole-v1", {"colour": 1}, "CartPole-v1 cannot be made with the options given: .*colour"),
        ("Pendulum-v1", {"costs": "a,a"}, "name one cost twice"),
    ],
)
def test_an_id_that_cannot_be_used(env_id, options, message):
    with pytest.raises(InputError, match=message):
        slater.envs.make(env_id, **options)


@pytest.mark.parametrize(
    ("style", "costs", "message"),
    [
        ("none", None, r"gave no cost 'cost' in a step; put it in info\['cost'\]"),
        ("mapping", "left,heat", "gave no cost 'heat' in a step"),
        ("infinite", None, "gave the cost 'cost' the value inf"),
        ("six", "a,b", r"gave costs of shape \(1,\), but has the cost names a, b"),
    ],
)
def test_costs_that_are_missing(style, costs, message):
    env = slater.envs.make("env_toys:Line", style=style, costs=costs)
    env.reset(seed=0)
    with pytest.raises(InputError, match=message):
        env.step(np.zeros(1))


@pytest.mark.parametrize(
    ("discrete", "action", "message"),
    [
        (
            False,
            np.zeros(3),
            r"an action has shape \(3,\), but the environment takes actions of shape \(1,\)",
        ),
        (False, 0.0, r"an action has shape \(\)"),
        (False, np.array([np.inf]), "an action has the value inf at index 0"),
        (False, np.array([True]), "an action has type bool, but the environment takes real numbers"),
        (True, 3, "an action is 3, but the environment takes an integer from 0 to 2"),
        (True, 0.5, r"an action has shape \(\) and type float64, but the environment takes one integer"),
        (True, np.array([1]), r"an action has shape \(1,\)"),
    ],
)
def test_actions_are_checked(discrete, action, message):
    env = slater.envs.make("env_toys:Line", discrete=discrete)
    env.reset(seed=0)
    with pytest.raises(InputError, match=message):
        env.step(action)


@pytest.mark.parametrize(
    ("absent", "env_id", "line"),
    [
        ("bullet_safety_gym", "bullet/BallRun", install.BULLET),
        ("pybullet", "bullet/BallRun", install.BULLET),
        ("dm_control", "rwrl/walker", install.RWRL),
        ("gymnasium", "CartPole-v1", install.GYMNASIUM),
    ],
)
def test_a_missing_simulator_is_the_line_that_installs_it(absent, env_id, line):
    program = (
        f"import sys; sys.modules[{absent!r}] = None\n"
        "import slater.envs\n"
        "try:\n"
        f"    slater.envs.make({env_id!r})\n"
        "except slater.InputError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import slater\n{program}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.rstrip().endswith(f"run: {line}")
