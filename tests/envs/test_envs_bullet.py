# ruff: noqa: NPY002  the simulator draws from the global generator, so the tests must too
"""The Bullet adapter: exact from a seed, quiet, and with the costs that the state says."""

import contextlib
import io
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from env_simulators import needs_bullet, play, same_bits

import slater.envs
from slater.errors import InputError

pytestmark = [needs_bullet, pytest.mark.filterwarnings("ignore:overflow encountered in cast")]

# task: observation size, action size, time limit, speed limit in m/s, scale of positions and of velocities
# in the observation, number of position entries in it
TASKS = {
    "BallRun": (7, 2, 100, 2.5, 0.1, 0.2, 2),
    "BallCircle": (8, 2, 200, 2.5, 0.1, 0.2, 2),
    "CarRun": (7, 2, 200, 1.5, 0.1, 1.0, 2),
    "CarCircle": (8, 2, 300, 1.5, 0.1, 1.0, 2),
    "DroneRun": (17, 4, 200, 1.5, 0.1, 0.2, 3),
    "DroneCircle": (18, 4, 300, 1.5, 0.1, 0.2, 3),
    "AntRun": (33, 8, 200, 1.5, 0.1, 0.3, 3),
    "AntCircle": (34, 8, 500, 1.5, 0.1, 0.3, 3),
}
FULL = bool(os.environ.get("SLATER_FULL"))
all_tasks = pytest.mark.parametrize("task", TASKS)


def gentle(task, rng):
    """Actions that keep a drone in the air, and that move the others."""
    size = TASKS[task][1]
    scale = 0.05 if task.startswith("Drone") else 1.0
    table = rng.uniform(-scale, scale, (500, size))
    return lambda step: table[step]


@all_tasks
def test_shapes_and_time_limits(task):
    obs, act, limit, *_ = TASKS[task]
    env = slater.envs.make(f"bullet/{task}")
    assert env.observation_space.shape == (obs,)
    assert env.action_space.shape == (act,)
    assert env.cost_names == ("cost",)
    if task.startswith(("Ball", "Car")):  # the others can end early
        seen = play(env, 0, limit + 1)
        assert len(seen) == limit + 1
        assert seen[-1][2:4] == (False, True)
    env.close()


@all_tasks
def test_an_episode_depends_on_its_seed_alone(task):
    used = slater.envs.make(f"bullet/{task}")
    rng = np.random.default_rng(5)
    for seed in range(60 if FULL else 3):
        play(used, 1000 + seed, int(rng.integers(1, 200)), gentle(task, rng))
        actions = gentle(task, rng)
        fresh = slater.envs.make(f"bullet/{task}")
        first = play(fresh, seed, 60, actions)
        fresh.close()
        assert len(first) > 20
        assert same_bits(first, play(used, seed, 60, actions))
        assert not same_bits(first, play(used, seed + 1, 60, actions))
    used.close()


def test_contact_points_do_not_survive_a_reset():
    """Histories that changed a later episode while only the motors were freed."""
    ball, fresh = (slater.envs.make("bullet/BallRun") for _ in range(2))
    draw = np.random.default_rng(0)
    for index in range(25):
        # a constant push with some noise, of a random strength, for a random time
        scale, steps = draw.choice([0.02, 0.1, 1.0]), int(draw.integers(1, 200))
        play(ball, 1000 + index, steps, steady(scale, index))
        final = steady(draw.choice([0.02, 0.1, 1.0]), 500 + index)
        used = play(ball, index, 30, final)
    assert same_bits(used, play(fresh, index, 30, final))

    drone, fresh = (slater.envs.make("bullet/DroneRun") for _ in range(2))
    draw = np.random.default_rng(5)
    final = gentle("DroneRun", draw)
    for seed, steps in ((1, 40), (2, 150), (3, 7)):
        play(drone, seed, steps, gentle("DroneRun", draw))
    assert same_bits(play(fresh, 11, 150, final), play(drone, 11, 150, final))


def steady(scale, seed):
    rng = np.random.default_rng(seed)
    push, noise = rng.uniform(-scale, scale, 2), rng.uniform(-scale, scale, (501, 2))
    return lambda step: push + 0.3 * noise[step]


def bare_episode(env, seed, actions, steps=60):
    """An episode of the simulator without the adapter, from the start that `seed` gives the adapter."""
    import gymnasium as gym

    state = np.random.get_state()
    np.random.seed(int(gym.utils.seeding.np_random(seed)[0].integers(2**32)))
    observation, _ = env.reset()
    np.random.set_state(state)
    seen = [(observation, 0.0)]
    for step in range(steps):
        observation, reward, terminated, truncated, _ = env.step(actions(step))
        seen.append((observation, reward))
        if terminated or truncated:
            break
    return seen


@all_tasks
def test_the_adapter_plays_the_first_episode_of_the_bare_simulator(task):
    import gymnasium as gym

    env = slater.envs.make(f"bullet/{task}")
    actions = gentle(task, np.random.default_rng(0))
    play(env, 3, 30)
    ours = play(env, 9, 60, actions)
    bare = gym.make(f"Safety{task}-v0", disable_env_checker=True)
    theirs = bare_episode(bare, 9, lambda step: actions(step).astype(np.float32))
    assert len(ours) == len(theirs)
    for (observation, reward, *_), (their_observation, their_reward) in zip(ours, theirs, strict=True):
        assert np.array_equal(observation, their_observation)
        assert reward == their_reward
    env.close()
    bare.close()


@pytest.mark.parametrize("task", ["CarRun", "CarCircle", "DroneRun", "DroneCircle"])
def test_the_bare_simulator_leaks_through_reset(task):
    """What the adapter repairs; when this fails, the simulator has been mended."""
    import gymnasium as gym

    slater.envs.make(f"bullet/{task}").close()  # imports the simulator quietly
    env = gym.make(f"Safety{task}-v0", disable_env_checker=True)
    actions = gentle(task, np.random.default_rng(0))
    first, second = (bare_episode(env, 9, actions) for _ in range(2))
    assert not all(np.array_equal(a[0], b[0]) for a, b in zip(first, second, strict=False))
    env.close()


def test_without_a_seed_the_stream_goes_on():
    one, other = (slater.envs.make("bullet/BallCircle") for _ in range(2))
    one.reset(seed=4)
    other.reset(seed=4)
    for _ in range(5):
        one.step(np.ones(2))  # history must not matter
    starts = [one.reset()[0] for _ in range(3)]
    assert all(np.array_equal(start, other.reset()[0]) for start in starts)
    assert not np.array_equal(starts[0], starts[1])


def test_the_global_generator_is_left_alone():
    np.random.seed(123)
    expected = np.random.get_state()[1].copy()
    env = slater.envs.make("bullet/CarCircle")
    play(env, 0, 5)
    assert np.array_equal(np.random.get_state()[1], expected)
    np.random.rand(7)
    observation = env.reset(seed=0)[0]
    np.random.rand(7)
    assert np.array_equal(observation, env.reset(seed=0)[0])


@pytest.mark.parametrize("task", [task for task in TASKS if task.endswith("Run")])
def test_run_costs_are_speed_and_boundary_of_the_state(task):
    _, size, _, limit, metres, speed_scale, dims = TASKS[task]
    env = slater.envs.make(f"bullet/{task}", costs=("speed", "boundary"))
    assert env.cost_names == ("speed", "boundary")
    met = set()
    for seed, direction in enumerate(([1.0, 0.0], [0.0, 1.0], [-1.0, 0.3], [0.2, 0.1])):
        action = np.resize(direction, size) * (0.2 if task == "DroneRun" else 1.0)
        # turn round halfway, to be slow on the wrong side of the boundary too
        turned = play(env, seed, 200, lambda step: action if step < 50 else -action)  # noqa: B023
        for observation, _, _, _, cost, (speed, boundary) in turned[1:]:
            velocity = observation[dims : dims + 2] / speed_scale
            assert speed == float(np.linalg.norm(velocity) > limit)
            assert boundary == float(abs(observation[1] / metres) > 2.0)
            assert cost == max(speed, boundary)
            met.add((speed, boundary))
    if task == "BallRun":
        assert met == {(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)}
    env.close()


@pytest.mark.parametrize("task", [task for task in TASKS if task.endswith("Circle")])
def test_circle_cost_is_the_boundary(task):
    _, size, _, _, metres, *_ = TASKS[task]
    env = slater.envs.make(f"bullet/{task}", costs="cost,boundary")
    met = set()
    for seed in range(3):
        action = np.resize([1.0, 0.0], size) * (0.2 if task == "DroneCircle" else 1.0)
        for observation, _, _, _, cost, costs in play(env, seed, 200, lambda _: action)[1:]:  # noqa: B023
            assert costs == (cost, cost)
            assert cost == float(abs(observation[0] / metres) > 6.0)
            met.add(cost)
    if task in ("BallCircle", "CarCircle"):
        assert met == {0.0, 1.0}
    env.close()


def test_info_has_the_same_keys_at_reset_and_at_every_step():
    env = slater.envs.make("bullet/BallRun", costs="speed,boundary")
    _, info = env.reset(seed=0)
    assert info == {"cost": 0.0, "costs": {"speed": 0.0, "boundary": 0.0}}
    for _ in range(99):
        *_, info = env.step(np.array([1.0, 1.0]))
        assert set(info) == {"cost", "costs"}
        assert list(info["costs"]) == ["speed", "boundary"]
    assert info["costs"] == {"speed": 1.0, "boundary": 1.0}


def test_actions_beyond_the_bounds_are_clipped():
    env = slater.envs.make("bullet/AntRun")
    inside = play(env, 0, 20, lambda _: np.ones(8))
    assert same_bits(inside, play(env, 0, 20, lambda _: np.full(8, 50.0)))


def test_a_task_or_a_cost_that_is_not_there():
    with pytest.raises(InputError, match="after bullet/ comes one of BallRun"):
        slater.envs.make("bullet/BallFly")
    with pytest.raises(InputError, match="no cost 'speed'; choose from cost, boundary"):
        slater.envs.make("bullet/BallCircle", costs=("speed",))
    with pytest.raises(InputError, match="no option 'safety_coeff'"):
        slater.envs.make("bullet/BallCircle", safety_coeff=0.1)


PROGRAM = """
import contextlib, io, sys
{before}
import slater.envs
env = slater.envs.make("bullet/BallCircle")
other = slater.envs.make("bullet/DroneRun")
env.reset(seed=0)
{after}
"""


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("", "print('ours')", "ours\n"),
        ("sys.stdout = io.StringIO()", "sys.__stdout__.write('ours\\n')", "ours\n"),
        ("sys.stdout = sys.stderr = None", "sys.__stdout__.write('ours\\n')", "ours\n"),
        ("import os; os.close(1); os.close(2)", "", ""),
    ],
    ids=["file", "replaced", "none", "closed"],
)
def test_quiet_whatever_standard_output_is(tmp_path, before, after, expected):
    """Programs that print JSON must find nothing but JSON in their output."""
    out = tmp_path / "out.txt"
    with out.open("w") as stdout:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(before=before, after=after)],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert out.read_text() == expected


def test_works_under_redirected_output_in_this_process():
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        env = slater.envs.make("bullet/CarRun")
        env.reset(seed=0)
        env.close()
    assert text.getvalue() == ""


@pytest.mark.parametrize("capture", ["fd", "sys", "no", "tee-sys"] if FULL else ["fd", "sys"])
def test_works_under_every_pytest_capture(tmp_path, capture):
    """In a new process, because only the first import of the simulator touches the streams."""
    inner = tmp_path / "test_inner.py"
    inner.write_text(
        textwrap.dedent(
            """
            import slater.envs

            def test_step():
                env = slater.envs.make("bullet/BallRun")
                env.reset(seed=0)
                env.step([0.0, 0.0])
            """
        )
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--capture={capture}", str(inner)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "build time" not in done.stdout
