"""An interrupted update continues in a new object and ends with the same bits."""

import io
from typing import Any

import pytest
import torch

from rl_training.algorithms.ppo import PPO
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.errors import CheckpointError
from tests.ppo_parts import ACTIONS, VECTOR, go_on, make_buffer, make_ppo, random_rollout

SETTINGS = {"batch_size": 12, "epochs": 3, "learning_rate": 0.01, "learning_rate_schedule": "linear", "seed": 3}
MINIBATCHES = 3 * 3


class Interrupted(Exception):
    pass


def stop_at(minibatch: int) -> Any:
    left = [minibatch]

    def poll() -> None:
        if left[0] == 0:
            raise Interrupted
        left[0] -= 1

    return poll


def through_a_file(state: dict[str, Any]) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


def in_a_new_process(ppo: PPO, buffer: RolloutBuffer, **changed: Any) -> tuple[PPO, RolloutBuffer]:
    """Agent and buffer as a resumed run makes them: new objects that know only the saved states."""
    again = make_ppo(VECTOR, ACTIONS["box"], **SETTINGS | changed)
    again.load_policy_state(through_a_file(ppo.policy_state()))
    again.load_state_dict(through_a_file(ppo.state_dict()))
    buffer_again = make_buffer(again, VECTOR, ACTIONS["box"])
    buffer_again.load_state_dict(through_a_file(buffer.state_dict()))
    return again, buffer_again


def bits(ppo: PPO) -> tuple[Any, ...]:
    optimizer = ppo.state.optimizer
    vectors = (ppo.parameters.vector, optimizer.mean, optimizer.square)
    generators = (ppo.state.action_rng, ppo.state.permutation_rng)
    return (*(v.numpy().tobytes() for v in vectors), *(str(g.bit_generator.state) for g in generators))


def uninterrupted() -> tuple[Any, dict[str, float]]:
    ppo = make_ppo(VECTOR, ACTIONS["box"], **SETTINGS)
    metrics = ppo.update(random_rollout(ppo, ACTIONS["box"]), 0.5, go_on)
    return bits(ppo), metrics


@pytest.mark.parametrize("minibatch", range(MINIBATCHES))
def test_an_update_interrupted_at_any_minibatch_ends_with_the_same_bits(minibatch: int) -> None:
    ppo = make_ppo(VECTOR, ACTIONS["box"], **SETTINGS)
    buffer = random_rollout(ppo, ACTIONS["box"])
    with pytest.raises(Interrupted):
        ppo.update(buffer, 0.5, stop_at(minibatch))
    assert ppo.state.optimizer.steps == minibatch
    again, buffer_again = in_a_new_process(ppo, buffer)
    metrics = again.update(buffer_again, 0.5, go_on)
    assert (bits(again), metrics) == uninterrupted()


def test_an_update_interrupted_before_every_minibatch_ends_with_the_same_bits() -> None:
    ppo = make_ppo(VECTOR, ACTIONS["box"], **SETTINGS)
    buffer = random_rollout(ppo, ACTIONS["box"])
    for done in range(MINIBATCHES):
        with pytest.raises(Interrupted):
            ppo.update(buffer, 0.5, stop_at(min(done, 1)))
        ppo, buffer = in_a_new_process(ppo, buffer)
    metrics = ppo.update(buffer, 0.5, go_on)
    assert (bits(ppo), metrics) == uninterrupted()


def test_actions_and_permutations_continue_between_updates() -> None:
    ppo = make_ppo(VECTOR, ACTIONS["box"], **SETTINGS)
    buffer = random_rollout(ppo, ACTIONS["box"])
    ppo.update(buffer, 0.0, go_on)
    again, _ = in_a_new_process(ppo, buffer)
    for agent in (ppo, again):
        agent.update(random_rollout(agent, ACTIONS["box"], seed=1), 0.1, go_on)
    assert bits(ppo) == bits(again)
    assert "cursor" not in ppo.state_dict()


def test_a_saved_state_does_not_change_with_the_agent() -> None:
    ppo = make_ppo(VECTOR, ACTIONS["box"], **SETTINGS)
    buffer = random_rollout(ppo, ACTIONS["box"])
    with pytest.raises(Interrupted):
        ppo.update(buffer, 0.5, stop_at(4))
    saved, kept = ppo.state_dict(), through_a_file(ppo.state_dict())
    ppo.update(buffer, 0.5, go_on)
    assert torch.equal(saved["optimizer"]["mean"], kept["optimizer"]["mean"])
    assert torch.equal(saved["cursor"]["order"], kept["cursor"]["order"])
    assert {k: v for k, v in saved["cursor"].items() if k != "order"} == {
        k: v for k, v in kept["cursor"].items() if k != "order"
    }


def test_an_update_does_not_continue_with_another_rollout() -> None:
    ppo = make_ppo(VECTOR, ACTIONS["box"], **SETTINGS)
    buffer = random_rollout(ppo, ACTIONS["box"])
    with pytest.raises(Interrupted):
        ppo.update(buffer, 0.5, stop_at(2))
    buffer.position = 4
    with pytest.raises(CheckpointError, match="the unfinished update has 32 transitions, but the rollout has 16"):
        ppo.update(buffer, 0.5, go_on)
