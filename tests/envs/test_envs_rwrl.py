"""The Real-World RL tasks: dm_control's own dynamics, and every constraint computed anew from the state.

The reference below never touches the code under test: it reads raw `qpos` and `qvel`, computes
orientations from them, and gets accelerations and forces by stepping a copy of MuJoCo's state itself.
"""

import copy
import math

import numpy as np
import pytest
from env_simulators import needs_rwrl, play, same_bits

import slater.envs
from slater.envs.constraints import DOMAINS
from slater.errors import InputError

pytestmark = needs_rwrl

# domain: observation size, action size
SIZES = {"cartpole": (5, 1), "walker": (24, 6), "quadruped": (78, 12), "humanoid": (67, 21)}
all_domains = pytest.mark.parametrize("domain", SIZES)


def physics_of(env):
    return env.env.dm_env.physics


def root_up(quaternion):
    """The cosine of the angle between a body's z axis and the vertical."""
    _, x, y, _ = quaternion / np.linalg.norm(quaternion)
    return 1.0 - 2.0 * (x * x + y * y)


def norm_of_sensor(model, data, name):
    sensor = model.sensor(name)
    return np.linalg.norm(data.sensordata[sensor.adr[0] : sensor.adr[0] + sensor.dim[0]])


def satisfied(domain, c, model, data):
    """The suite's flags, True = satisfied, from a bare MuJoCo model and state."""
    qpos, qvel = data.qpos, data.qvel
    if domain == "cartpole":
        fast_at_top = math.cos(qpos[1]) > math.cos((1 - c) / 0.5 + 0.15) and abs(qvel[1]) > 0.5 * c
        return {
            "slider_pos": -2 * c < qpos[0] < 2 * c,
            "slider_accel": abs(data.qacc[0]) < 130 * c,
            "balance_velocity": not fast_at_top,
        }
    if domain == "walker":
        # qpos: height, forward, pitch; then right hip, knee, ankle; left hip, knee, ankle
        degrees = np.rad2deg(qpos[3:9])
        low = c * np.array([-30, -160, -75, -30, -160, -75])
        high = c * np.array([110, 15, 60, 110, 15, 60])
        return {
            "joint_angle": any(degrees > low) and any(degrees < high),
            "joint_velocity": max(abs(qvel[3:9])) < 65 * c,
            "dangerous_fall": math.sin(qpos[2]) > -0.5 * c,
            "torso_upright": math.cos(qpos[2]) > 1 - c,
        }
    if domain == "quadruped":
        toes = [f"force_toe_{end}_{side}" for end in ("front", "back") for side in ("left", "right")]
        return {
            "joint_angle": max(abs(np.rad2deg(qpos[7:23]))) < 60 * c,
            "joint_velocity": max(abs(qvel[6:22])) < 20 * c,
            "upright": root_up(qpos[3:7]) > 1 - 0.7 * c,
            "foot_force": max(norm_of_sensor(model, data, toe) for toe in toes) < 20000 * c,
        }
    feet = [f"{one}_{other}_foot_touch" for one in ("left", "right") for other in ("left", "right")]
    return {
        "joint_angle": max(abs(qpos[7:28])) < c * math.pi,
        "joint_velocity": max(abs(qvel[7:27])) < 90 * c,
        "upright": root_up(qpos[3:7]) > 1 - c,
        "dangerous_fall": max(norm_of_sensor(model, data, s) for s in ("head_touch", "torso_touch"))
        < 100 * c,
        "foot_force": max(norm_of_sensor(model, data, foot) for foot in feet) < 8000 * c,
    }


def stepped_copy(env, action):
    """MuJoCo's model, and its state after one control step, advanced here and not by dm_control."""
    import mujoco

    physics = physics_of(env)
    model, data = physics.model.ptr, copy.copy(physics.data.ptr)
    substeps = round(env.env.dm_env.control_timestep() / model.opt.timestep)
    data.ctrl[:] = action
    if model.opt.integrator == mujoco.mjtIntegrator.mjINT_RK4:
        mujoco.mj_step(model, data)
    else:
        mujoco.mj_step2(model, data)
    for _ in range(substeps - 1):
        mujoco.mj_step(model, data)
    mujoco.mj_step1(model, data)
    return model, data


@all_domains
@pytest.mark.parametrize("coefficient", [None, 0.02, 0.2, 0.8, 1.0])
def test_costs_are_the_negated_flags_of_the_suite(domain, coefficient):
    env = slater.envs.make(f"rwrl/{domain}", safety_coeff=coefficient)
    c = DOMAINS[domain].paper_coefficient if coefficient is None else coefficient
    rng = np.random.default_rng(3)
    env.reset(seed=1)
    for step in range(120):
        if step % 10 == 0:  # hard pushes reach fast joints, falls and hard contacts
            push = rng.choice([-1.0, 1.0], env.action_space.shape)
        action = np.clip(push, env.action_space.low, env.action_space.high).astype(np.float32)
        model, data = stepped_copy(env, action)
        *_, info = env.step(action)
        assert np.array_equal(physics_of(env).data.qpos, data.qpos)
        flags = satisfied(domain, c, model, data)
        assert info["costs"] == {name: float(not flag) for name, flag in flags.items()}
        assert info["cost"] == info["costs"][DOMAINS[domain].paper_cost]
        assert list(info["costs"]) == list(flags) == list(env.cost_names)


def put(env, qpos=None, qvel=None):
    """Set parts of the state, `{index: value}`, and bring what depends on it up to date."""
    data = physics_of(env).data
    for vector, values in ((data.qpos, qpos), (data.qvel, qvel)):
        for index, value in (values or {}).items():
            vector[index] = value
    physics_of(env).forward()


# domain, coefficient, cost, a state that violates it, the same state made harmless
KNOWN = [
    ("cartpole", 0.3, "slider_pos", {"qpos": {0: 0.7}}, {"qpos": {0: 0.5}}),
    ("cartpole", 0.3, "slider_pos", {"qpos": {0: -0.7}}, {"qpos": {0: -0.5}}),
    ("cartpole", 0.5, "slider_pos", {"qpos": {0: 1.1}}, {"qpos": {0: 0.7}}),
    (
        "cartpole",
        0.9,
        "balance_velocity",
        {"qpos": {1: 0.0}, "qvel": {1: -2.0}},
        {"qpos": {1: 0.0}, "qvel": {1: 0.0}},
    ),
    ("walker", 0.3, "joint_velocity", {"qvel": {5: -40.0}}, {}),
    ("walker", 0.6, "joint_velocity", {"qvel": {3: -300.0}}, {}),
    (
        "walker",
        0.1,
        "joint_angle",  # violated only with every joint beyond the same side
        {"qpos": {3: -1.0, 4: -1.0, 5: -1.0, 6: -1.0, 7: -1.0, 8: -1.0}},
        {"qpos": {3: -1.0, 4: -1.0, 5: -1.0, 6: -1.0, 7: -1.0, 8: 0.0}},
    ),
    ("walker", 0.3, "dangerous_fall", {"qpos": {2: -1.0}}, {"qpos": {2: 1.0}}),
    ("walker", 0.3, "torso_upright", {"qpos": {2: 1.5}}, {"qpos": {2: 0.1}}),
    ("quadruped", 0.5, "joint_angle", {"qpos": {8: 0.9}}, {}),
    ("quadruped", 0.9, "joint_angle", {"qpos": {8: 1.03}}, {"qpos": {8: 0.6}}),
    ("quadruped", 0.5, "joint_velocity", {"qvel": {6: 60.0}}, {}),
    ("quadruped", 0.5, "upright", {"qpos": {3: 0.0, 4: 1.0, 5: 0.0, 6: 0.0}}, {}),
    ("humanoid", 0.5, "joint_angle", {"qpos": {13: -2.4}}, {"qpos": {13: -0.5}}),
    ("humanoid", 0.8, "joint_angle", {"qpos": {13: -2.7}}, {"qpos": {13: -2.1}}),
    ("humanoid", 0.5, "upright", {"qpos": {3: 0.0, 4: 1.0, 5: 0.0, 6: 0.0}}, {}),
]


@pytest.mark.parametrize(("domain", "c", "cost", "bad", "good"), KNOWN)
def test_one_means_violated(domain, c, cost, bad, good):
    env = slater.envs.make(f"rwrl/{domain}?safety_coeff={c}")
    for state, expected in ((bad, 1.0), (good, 0.0)):
        env.reset(seed=0)
        calm = dict.fromkeys(range(physics_of(env).model.nv), 0.0)
        # high in the air and at rest, so that nothing but the given state matters
        lifted = {2: 10.0} if domain in ("quadruped", "humanoid") else {}
        joints = {"walker": range(3, 9), "quadruped": range(7, 23), "humanoid": range(7, 28)}.get(domain, [])
        upright = {3: 1.0, 4: 0.0, 5: 0.0, 6: 0.0} if lifted else {}
        put(env, dict.fromkeys(joints, 0.0) | lifted | upright, calm)
        if domain == "walker":
            put(env, {0: 5.0, 2: 0.0})
        put(env, **state)
        *_, info = env.step(np.zeros(env.action_space.shape))
        assert info["costs"][cost] == expected


def test_forces_and_accelerations_can_be_violated():
    """Contacts and pushes, where the number itself comes from the solver."""
    env = slater.envs.make("rwrl/cartpole", safety_coeff=0.02)
    env.reset(seed=0)
    assert env.step(np.array([1.0]))[4]["costs"]["slider_accel"] == 1.0
    env.reset(seed=0)
    assert env.step(np.array([0.0]))[4]["costs"]["slider_accel"] == 0.0
    for domain, cost in (
        ("quadruped", "foot_force"),
        ("humanoid", "dangerous_fall"),
        ("humanoid", "foot_force"),
    ):
        env = slater.envs.make(f"rwrl/{domain}", safety_coeff=0.02)
        env.reset(seed=0)
        height = 0.0 if cost != "dangerous_fall" else -1.0
        turned = {3: 1.0, 4: 0.0} if cost != "dangerous_fall" else {3: 0.0, 4: 1.0}  # on its head, or not
        seen = set()
        put(env, {2: 2.0 + height, 5: 0.0, 6: 0.0} | turned)
        for _ in range(60):
            seen.add(env.step(np.zeros(env.action_space.shape))[4]["costs"][cost])
        assert seen == {0.0, 1.0}


@all_domains
def test_shapes_bounds_and_length(domain):
    env = slater.envs.make(f"rwrl/{domain}")
    assert (env.observation_space.shape[0], env.action_space.shape[0]) == SIZES[domain]
    if domain == "quadruped":
        assert np.allclose(env.action_space.high, np.tile([1.0, 1.1, 0.8], 4))
        assert np.allclose(env.action_space.low, np.tile([-1.0, -1.0, -0.8], 4))
    else:
        assert np.all(env.action_space.high == 1.0)
        assert np.all(env.action_space.low == -1.0)
    seen = play(env, 0, 1001)
    assert len(seen) == 1001
    assert seen[-1][2:4] == (False, True)


@pytest.mark.parametrize("domain", ["cartpole", "walker", "humanoid"])
def test_rewards_and_observations_are_those_of_dm_control(domain):
    import gymnasium as gym
    from dm_control import suite

    ours = slater.envs.make(f"rwrl/{domain}")
    seed = int(gym.utils.seeding.np_random(7)[0].integers(2**32))
    plain = suite.load(domain, DOMAINS[domain].task, task_kwargs={"random": np.random.RandomState(seed)})

    def flat(step):
        return np.concatenate([np.ravel(part) for part in step.observation.values()])

    assert np.array_equal(ours.reset(seed=7)[0], flat(plain.reset()))
    rng = np.random.default_rng(0)
    for _ in range(200):
        action = rng.uniform(-1, 1, ours.action_space.shape).astype(np.float32)
        observation, reward, *_ = ours.step(action)
        step = plain.step(action.astype(np.float64))
        assert np.array_equal(observation, flat(step))
        assert reward == step.reward


def test_the_quadruped_starts_upright_and_just_off_the_ground():
    env = slater.envs.make("rwrl/quadruped")
    headings = []
    for seed in range(30):
        env.reset(seed=seed)
        data = physics_of(env).data
        quaternion = data.qpos[3:7]
        assert np.allclose(quaternion[1:3], 0.0)
        headings.append(2.0 * math.atan2(quaternion[3], quaternion[0]) % (2.0 * math.pi))
        assert data.ncon == 0
        put(env, {2: data.qpos[2] - 0.011})
        assert physics_of(env).data.ncon > 0
    # thirty headings, uniform over the circle, fall in every quarter of it
    assert len(set(np.floor(np.array(headings) / (math.pi / 2.0)))) == 4


@all_domains
def test_an_episode_depends_on_its_seed_alone(domain):
    fresh, used = (slater.envs.make(f"rwrl/{domain}") for _ in range(2))
    first = play(fresh, 11, 60)
    play(used, 1, 35)
    play(used, 2, 5)
    assert same_bits(first, play(used, 11, 60))
    assert not same_bits(first, play(used, 12, 60))
    fresh.reset(seed=1)
    used.reset(seed=1)
    assert np.array_equal(fresh.reset()[0], used.reset()[0])


def test_costs_can_be_chosen():
    env = slater.envs.make("rwrl/walker?costs=joint_velocity")
    assert env.cost_names == ("joint_velocity",)
    _, info = env.reset(seed=0)
    assert info == {"cost": 0.0, "costs": {"joint_velocity": 0.0}}
    *_, info = env.step(np.zeros(6))
    assert list(info["costs"]) == ["joint_velocity"]
    assert info["cost"] == info["costs"]["joint_velocity"]


def test_what_is_not_there():
    with pytest.raises(InputError, match=r"safety_coeff is 1\.5; it must be a number from 0 to 1"):
        slater.envs.make("rwrl/walker", safety_coeff=1.5)
    with pytest.raises(InputError, match="safety_coeff is 'tight'"):
        slater.envs.make("rwrl/walker?safety_coeff=tight")
    with pytest.raises(InputError, match="no cost 'heat'; choose from joint_angle, joint_velocity"):
        slater.envs.make("rwrl/walker", costs="heat")
    with pytest.raises(InputError, match="comes one of cartpole, walker, quadruped, humanoid"):
        slater.envs.make("rwrl/fish")
