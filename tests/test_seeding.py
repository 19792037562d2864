"""One seed, independent streams, and reset seeds that never collide or depend on one another."""

import itertools

import numpy as np
import pytest

from rl_training.seeding import (
    ENV_SEED_BITS,
    STREAMS,
    derived_seed,
    env_seeds,
    episode_seeds,
    generator,
    generator_state,
    restore_generator,
    stream,
)


def test_the_order_of_streams_is_part_of_what_makes_a_run_repeatable():
    first = ("init", "action", "replay", "permutation", "envs", "evaluation", "held_out")
    assert (*first, "update_noise") == STREAMS


def test_streams_are_the_children_of_one_seed_sequence():
    children = np.random.SeedSequence(7).spawn(len(STREAMS))
    for name, child in zip(STREAMS, children, strict=True):
        assert stream(7, name).generate_state(4).tolist() == child.generate_state(4).tolist()


def test_the_numbers_of_seed_0_stay_as_they_were():
    """A change here would silently change every run."""
    assert env_seeds(0, 3) == [1104759318, 362335023, 1986831198]
    assert episode_seeds(0, "evaluation", 3) == [866377809, 459356102, 1958476795]
    assert episode_seeds(0, "held_out", 3) == [1705995787, 1845029999, 1524734946]
    assert generator(0, "permutation").permutation(8).tolist() == [6, 2, 0, 3, 4, 1, 7, 5]


def test_generators_of_different_streams_and_seeds_differ():
    draws = {
        (seed, name): tuple(generator(seed, name).integers(0, 2**63, 4).tolist()) for seed in (0, 1) for name in STREAMS
    }
    assert len(set(draws.values())) == 2 * len(STREAMS)
    assert tuple(generator(0, "init").integers(0, 2**63, 4).tolist()) == draws[0, "init"]


def test_an_unknown_stream_is_an_error():
    with pytest.raises(ValueError, match="tuple"):
        stream(0, "no such stream")


def test_env_seeds_are_all_different_and_repeatable():
    first, second = env_seeds(0, 4), env_seeds(1, 4)
    assert len({*first, *second}) == 8
    assert env_seeds(0, 4) == first
    assert all(0 <= seed < 2**ENV_SEED_BITS for seed in first + second)


def test_runs_with_neighbouring_seeds_share_no_env_seed():
    seeds = list(itertools.chain.from_iterable(env_seeds(seed, 64) for seed in range(50)))
    assert len(set(seeds)) == len(seeds)


def test_evaluation_seeds_are_in_neither_training_set():
    evaluation = episode_seeds(0, "evaluation", 100)
    held_out = episode_seeds(0, "held_out", 100)
    training = env_seeds(0, 100) + env_seeds(1, 100)
    assert len({*evaluation, *held_out, *training}) == 400


def test_more_envs_or_episodes_keep_the_first_ones():
    assert env_seeds(3, 64)[:4] == env_seeds(3, 4)
    assert episode_seeds(3, "evaluation", 500)[:10] == episode_seeds(3, "evaluation", 10)


def test_many_episode_seeds_are_all_different():
    seeds = episode_seeds(0, "held_out", 20_000)
    assert len(seeds) == len(set(seeds)) == 20_000


def test_a_generator_continues_where_its_state_was_taken():
    rng = generator(5, "permutation")
    rng.permutation(10)
    rng.random(3, dtype=np.float32)  # leaves half of a 64-bit draw in the generator
    state = generator_state(rng)
    expected = (rng.permutation(100).tolist(), rng.random(5, dtype=np.float32).tolist(), rng.normal(size=3).tolist())
    again = restore_generator(state)
    assert (
        again.permutation(100).tolist(),
        again.random(5, dtype=np.float32).tolist(),
        again.normal(size=3).tolist(),
    ) == expected
    assert all(isinstance(value, str) or 0 <= value < 2**32 for value in state.values())


def test_a_derived_seed_belongs_to_its_identity_and_to_the_settings_seed():
    """A change here would silently change every retraining."""
    assert derived_seed(0, "flow run 1") == 2680997605
    seeds = {derived_seed(seed, f"flow run {i}") for seed in (0, 1) for i in range(1_000)}
    assert len(seeds) == 2_000
    assert all(0 <= seed < 2**32 for seed in seeds)
