"""Our environments as Gymnasium's own: known by name, checked by its checker, made again from their spec."""

from importlib.util import find_spec

import numpy as np
import pytest
from env_simulators import same_bits

from slater.envs import IDS, install
from slater.envs.making import gymnasium_id, make

if find_spec("gymnasium") is None:
    pytest.skip(install.GYMNASIUM, allow_module_level=True)

import gymnasium
from gymnasium.utils.env_checker import check_env

NEEDED = {"bullet": ("bullet_safety_gym", install.BULLET), "rwrl": ("dm_control", install.RWRL)}


def _skip_without(env_id):
    package, remedy = NEEDED[env_id.partition("/")[0]]
    if find_spec(package) is None:
        pytest.skip(remedy)


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.filterwarnings("ignore")  # the checker remarks on bounds that are not -1 and 1
def test_gymnasiums_checker_passes(env_id):
    _skip_without(env_id)
    env = make(env_id)
    assert env.unwrapped is env
    check_env(env)
    env.close()


@pytest.mark.parametrize("env_id", ["bullet/BallCircle", "rwrl/cartpole"])
def test_made_by_name_it_is_what_make_gives(env_id):
    """The same numbers from the same seed, costs by name, options passed on, and again from its spec."""
    _skip_without(env_id)
    options = {"costs": ("boundary",)} if env_id.startswith("bullet") else {"costs": ("slider_pos",)}
    ours = make(env_id, **options)
    theirs = gymnasium.make(gymnasium_id(env_id), **options)
    again = theirs.spec.make()
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1.0, 1.0, (20, *ours.action_space.shape)).astype(np.float32)

    def played(env):
        seen = [env.reset(seed=3)]
        return [*seen, *(env.step(action) for action in actions)]

    expected = played(ours)
    assert list(expected[-1][-1]["costs"]) == list(options["costs"])
    for env in (theirs, again):
        assert same_bits(played(env), expected)
        env.close()
    ours.close()
