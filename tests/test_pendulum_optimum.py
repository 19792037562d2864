"""The best possible return on Pendulum-v1, which the learning benchmark's rows are read beside."""

import gymnasium as gym
import numpy as np

from benchmarks.learning.pendulum_optimum import Grid, play, step


def test_a_step_is_that_of_the_environment() -> None:
    env = gym.make("Pendulum-v1").unwrapped
    for state, torque in (((0.3, -1.0), 1.5), ((3.0, 7.9), 2.0), ((-4.0, 0.0), -0.25)):
        env.reset(seed=0)
        env.state = np.array(state)
        reward = env.step(np.array([torque], np.float32))[1]
        angle, speed, ours = step(*map(np.array, state), np.array(torque))
        np.testing.assert_allclose([*env.state, reward], [angle, speed, ours], rtol=1e-6)


def test_values_between_the_points_of_the_grid_are_interpolated() -> None:
    grid = Grid(angles=4, speeds=3)  # angles of -180, -90, 0 and 90 degrees; speeds of -8, 0 and 8
    values = np.arange(12.0)  # 3 for each angle and 1 for each speed
    angles, speeds = np.array([0.0, -np.pi / 4, 0.75 * np.pi]), np.array([0.0, 4.0, -8.0])
    np.testing.assert_allclose(grid.interpolate(values, angles, speeds), [7.0, 6.0, 4.5])  # half-way from 9 to 0


def test_no_steps_have_no_reward_and_one_has_that_of_no_torque() -> None:
    grid = Grid(angles=8, speeds=5)
    none, one = grid.solve(1)
    angles, speeds = grid.states()
    assert not none.any()
    np.testing.assert_allclose(one, -(angles.ravel() ** 2 + 0.1 * speeds.ravel() ** 2))


def test_the_best_policy_reaches_the_value_of_its_start() -> None:
    grid = Grid(angles=181, speeds=121)
    values = grid.solve(200)
    env = gym.make("Pendulum-v1")
    seeds = range(4)
    starts = []
    for seed in seeds:
        env.reset(seed=seed)
        starts.append(env.unwrapped.state)
    expected = grid.interpolate(values[-1], *np.transpose(starts))
    returns = play(grid, values[-2::-1], 1.0, seeds)
    np.testing.assert_allclose(returns, expected, atol=3.0)  # the coarse grid's own error
    assert min(returns) < -100  # one of them starts low
