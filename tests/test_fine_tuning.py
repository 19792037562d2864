"""Fine-tuning: a new run that starts from a checkpoint's weights alone, and what is refused without it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from case_envs.plain import Plain
from gymnasium import spaces
from waiting import LIMIT

from rl_training.config.resume_rules import FIXED_IN_FINE_TUNING, Rule, get_rule
from rl_training.config.sections import EvaluationConfig
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import config_from_mapping
from rl_training.runtime.checkpoint import Checkpoint, load_policy_state, newest_good, open_checkpoint
from rl_training.runtime.trainer import TrainResult
from tests.off_policy_parts import VECTOR, make_dqn, make_sac, moves, random_batch

MANAGER = DefaultExperimentManager()
PLAIN = "case_envs:Plain-v0"


@pytest.fixture(autouse=True)
def own_home(home: Path) -> Path:
    return home


def settings(**fields: Any) -> Any:
    base = {
        "algo": "ppo",
        "env_id": PLAIN,
        "total_timesteps": 64,
        "num_envs": 2,
        "rollout_steps": 16,
        "batch_size": 32,
        "epochs": 1,
        "network": {"hidden": [8, 8]},
        "normalization": {"observation": True, "reward": True},
        "evaluation": {"every": 1_000, "episodes": 1, "final_episodes": 1, "video": False},
    }
    return config_from_mapping({**base, **fields})


def final(result: TrainResult) -> Checkpoint:
    newest, _ = newest_good(result.run_dir / "checkpoints")
    assert newest is not None
    return newest


def policy_at_start(trainer: Any) -> dict[str, Any]:
    """The policy's state in the checkpoint that a run has from its first moment on."""
    trainer.stop.request("callback")
    result = trainer.train()
    assert result.num_timesteps == 0
    return load_policy_state(final(result))


def origin_of(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "metadata.json").read_text())["forked_from"]


def test_weights_and_observation_statistics_come_over_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    source = MANAGER.setup(settings()).train()
    before = load_policy_state(final(source))
    changed = {"env_id": "CartPole-v1", "learning_rate": 1e-5, "seed": 5, "num_envs": 4, "total_timesteps": 16}
    trainer: Any = MANAGER.resume(source.run_dir, fine_tune=True, batch_size=64, **changed)
    assert "the weights alone (8 tensors carried over; observation statistics: carried over)" in caplog.text
    after = policy_at_start(trainer)
    assert all(torch.equal(after["weights"][name], weight) for name, weight in before["weights"].items())
    assert after["observation_normalizer"]["count"] == before["observation_normalizer"]["count"] == 64
    np.testing.assert_array_equal(after["observation_normalizer"]["mean"], before["observation_normalizer"]["mean"])
    assert trainer.envs.reward_normalizer.statistics.count == 0
    assert (trainer.num_timesteps, trainer.algorithm.state.optimizer.steps, trainer.buffer.position) == (0, 0, 0)
    assert trainer.run.run_uid != source.run_uid

    origin = origin_of(trainer.run.run_dir)
    assert (origin["run_uid"], origin["num_timesteps"]) == (source.run_uid, 64)
    keys = [line.split(":")[0] for line in origin["differences"]]
    assert keys == [
        "batch_size",
        "env_id",
        "learning_rate",
        "num_envs",
        "seed",
        "total_timesteps",
        "observation_space",
    ]
    assert origin["differences"][1] == f"env_id: '{PLAIN}' -> 'CartPole-v1' (may change)"
    assert origin["differences"][6].startswith("observation_space: Box(-1.0, 1.0, (4,), float32) -> Box([-4.8 -inf ")
    assert origin["fine_tuning"]["fresh"] == []

    # The fine-tuned run is a run like any other: it can be resumed with its own settings.
    done = MANAGER.resume(trainer.run.run_dir).train()
    assert (done.run_uid, done.num_timesteps) == (trainer.run.run_uid, 16)


def test_layers_of_other_shapes_are_fresh_and_named(caplog: pytest.LogCaptureFixture) -> None:
    source = MANAGER.setup(settings()).train()
    before = load_policy_state(final(source))["weights"]
    trainer: Any = MANAGER.resume(source.run_dir, fine_tune=True, env_id="Acrobot-v1")
    state = policy_at_start(trainer)
    fresh = {"mlps.weights.0", "mlps.biases.0", "mlps.head_weights.0", "mlps.head_biases.0"}  # input, policy's head
    assert (
        "4 tensors carried over, 4 initialised because no layer of the checkpoint fits (mlps.weights.0, " in caplog.text
    )
    assert set(origin_of(trainer.run.run_dir)["fine_tuning"]["fresh"]) == fresh
    unrelated = policy_at_start(MANAGER.setup(settings(env_id="Acrobot-v1")))["weights"]
    for name, weight in state["weights"].items():
        assert torch.equal(weight, (unrelated if name in fresh else before)[name]), name
    assert not torch.equal(unrelated["mlps.weights.1"], before["mlps.weights.1"])
    # The statistics are of four features, and there are six now.
    assert "observation statistics: fresh" in caplog.text
    assert state["observation_normalizer"]["count"] == 0


def test_another_environment_begins_without_the_old_ones_arguments() -> None:
    source = MANAGER.setup(settings(env_id="CartPole-v1", env_kwargs={"sutton_barto_reward": True})).train()
    assert MANAGER.resume(source.run_dir, fine_tune=True).config.env_kwargs == {"sutton_barto_reward": True}
    assert MANAGER.resume(source.run_dir, fine_tune=True, env_id=PLAIN).config.env_kwargs == {}
    own = {"env_id": "LunarLander-v3", "env_kwargs": {"gravity": -5.0}}
    assert MANAGER.resume(source.run_dir, fine_tune=True, **own).config.env_kwargs == {"gravity": -5.0}


def test_another_environment_is_not_offered_to_the_old_ones_champion() -> None:
    promotion = {"model": "balance", "floor": 475.0, "worst_episode": 100.0, "episodes": 30}
    source = MANAGER.setup(settings(env_id="CartPole-v1", promotion=promotion)).train()
    same = MANAGER.resume(source.run_dir, fine_tune=True).config.promotion
    assert (same.model, same.floor, same.worst_episode, same.episodes) == ("balance", 475.0, 100.0, 30)
    other = MANAGER.resume(source.run_dir, fine_tune=True, env_id=PLAIN).config.promotion
    assert (other.model, other.floor, other.worst_episode, other.episodes) == (None, None, None, 30)
    given = MANAGER.resume(source.run_dir, fine_tune=True, env_id=PLAIN, promotion={"floor": 5.0}).config.promotion
    assert (given.model, given.floor) == (None, 5.0)


def test_another_environment_begins_without_what_the_old_one_was_shaped_and_judged_by() -> None:
    clipped = {"name": "ClipReward", "kwargs": {"min_reward": 0.0, "max_reward": 1.0}}
    own = {"env_id": "CartPole-v1", "env_kwargs": {}, "wrappers": [], "reset_options": {"low": -0.02, "high": 0.02}}
    judged = {"stop_at_return": 400.0, "stop_after": 3, "every": 999, "final_episodes": 1, "video": False}
    old = {
        "env_id": "CartPole-v1",
        "reset_options": {"low": -0.01, "high": 0.01},
        "curriculum": [{"attributes": {"length": 0.4}}],
        "training_wrappers": [clipped],
        "evaluation": {**own, **judged},
        "promotion": {"success_floor": 0.5},
    }
    source = MANAGER.setup(settings(**old)).train()
    fields = ("reset_options", "curriculum", "training_wrappers")
    same = MANAGER.resume(source.run_dir, fine_tune=True).config
    assert [getattr(same, name) for name in fields] == [getattr(settings(**old), name) for name in fields]
    other = MANAGER.resume(source.run_dir, fine_tune=True, env_id=PLAIN).config
    assert [getattr(other, name) for name in fields] == [{}, (), ()]
    assert other.evaluation == EvaluationConfig(every=999, final_episodes=1, video=False)
    assert other.promotion.success_floor is None


def test_what_the_weights_are_weights_of_may_not_change(own_home: Path) -> None:
    source = MANAGER.setup(settings()).train()
    for changed, said in [
        ({"network": {"hidden": (8, 16)}}, "network.hidden: [8, 8] -> [8, 16] (must be equal)"),
        ({"network.activation": "relu"}, "network.activation: 'tanh' -> 'relu' (must be equal)"),
        ({"normalization.observation": False}, "normalization.observation: True -> False (must be equal)"),
        ({"algo": "dqn"}, "algo: 'ppo' -> 'dqn' (must be equal)"),
    ]:
        for fine_tune in (False, True):
            with pytest.raises(CheckpointError) as refused:
                MANAGER.resume(source.run_dir, fine_tune=fine_tune, **changed)
            message = str(refused.value)
            assert said in message
            assert message.endswith("; keep the checkpoint's values, or start a new run")
            assert "\n" not in message
    with pytest.raises(ConfigError, match="did you mean learning_rate"):
        MANAGER.resume(source.run_dir, fine_tune=True, learing_rate=1.0)
    assert list((own_home / "runs").iterdir()) == [source.run_dir]


def test_without_asking_another_environment_or_space_is_refused_in_one_line(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = MANAGER.setup(settings()).train()
    make, offer = Plain.__init__, "or start a new run from the checkpoint's weights with --fine-tune"

    def wider(self: Plain, **options: Any) -> None:
        make(self, **options)
        self.observation_space = spaces.Box(-2.0, 2.0, (4,), np.float32)

    def more_actions(self: Plain, **options: Any) -> None:
        make(self, **options)
        self.action_space = spaces.Discrete(3)

    boxes = "Box(-1.0, 1.0, (4,), float32) -> Box(-2.0, 2.0, (4,), float32)"
    for init, changed, said in [
        (make, {"env_id": "CartPole-v1"}, f"env_id: '{PLAIN}' -> 'CartPole-v1' (must be equal)"),
        (wider, {}, f"observation_space: {boxes} (must be equal)"),  # though the network would fit
        (more_actions, {}, "action_space: Discrete(2) -> Discrete(3) (must be equal)"),
        (wider, {"total_timesteps": 128}, f"observation_space: {boxes} (must be equal)"),
    ]:
        monkeypatch.setattr(Plain, "__init__", init)
        with pytest.raises(CheckpointError) as refused:
            MANAGER.resume(source.run_dir, **changed)
        assert (
            str(refused.value)
            == f"these differ from the checkpoint and may not change: {said}; keep the checkpoint's values, {offer}"
        )
    assert list((own_home / "runs").iterdir()) == [source.run_dir]
    assert final(source).num_timesteps == 64
    tuned = MANAGER.resume(source.run_dir, fine_tune=True).run.run_dir
    assert origin_of(tuned)["differences"] == [f"observation_space: {boxes} (may change)"]


def test_a_checkpoint_without_training_state_serves_for_fine_tuning_only(tmp_path: Path) -> None:
    source = MANAGER.setup(settings()).train()
    (final(source).path / "trainer.pt").unlink()
    copy = open_checkpoint(final_path := source.run_dir / "checkpoints" / "step_000000000064", policy_only=True)
    with pytest.raises(CheckpointError, match=f"{final_path} has no training state to resume from.* by --fine-tune"):
        MANAGER.resume(copy)
    before = load_policy_state(copy)["weights"]
    after = policy_at_start(MANAGER.resume(copy, fine_tune=True))["weights"]
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


def command(*words: object) -> tuple[int, str, str]:
    """Runs `rl-training` in a process of its own; returns the exit code, stdout and stderr."""
    arguments = [sys.executable, "-m", "rl_training", *map(str, words)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=LIMIT)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_from_the_command_line_and_in_mlflow(client: Any, tmp_path: Path) -> None:
    config = tmp_path / "small.json"
    config.write_text(json.dumps(settings().model_dump(mode="json", exclude={"run_dir"})))
    code, out, err = command("train", "--config", config, "--json")
    assert code == 0, err
    source = json.loads(out)
    other = ("--set", "env_id=Acrobot-v1", "--set", "max_episode_steps=20", "--set", "evaluation.max_episode_steps=20")
    code, out, err = command("resume", source["run_id"], *other)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == (
        f"error: these differ from the checkpoint and may not change: env_id: '{PLAIN}' -> 'Acrobot-v1' (must be "
        "equal); max_episode_steps: None -> 20 (must be equal); keep the checkpoint's values, or start a new run "
        "from the checkpoint's weights with --fine-tune"
    )
    code, out, err = command("resume", source["run_id"], "--fine-tune", *other, "--set", "total_timesteps=32", "--json")
    assert code == 0, err
    tuned = json.loads(out)
    said = (
        "4 tensors carried over, 4 initialised because no layer of the checkpoint fits (mlps.weights.0, mlps.biases.0, "
        "mlps.head_weights.0, ...); observation statistics: fresh"
    )
    assert said in err
    assert (tuned["num_timesteps"], tuned["stop_reason"]) == (32, "completed")
    tags = client.get_run(tuned["run_id"]).data.tags
    assert tags["forked_from.run_id"] == source["run_id"]
    assert tags["forked_from.num_timesteps"] == "64"
    assert tags["forked_from.fine_tuning"] == said
    assert f"env_id: '{PLAIN}' -> 'Acrobot-v1' (may change)" in tags["forked_from.differences"].splitlines()
    assert client.get_run(source["run_id"]).data.tags[f"fine_tuned.{tuned['run_uid']}"] == tuned["run_id"]


def test_dqns_target_starts_as_a_copy_of_what_came_over() -> None:
    source, new = make_dqn(seed=1), make_dqn(seed=2)
    source.state.target.vector.zero_()
    layers = new.carry_over(source.policy_state(), source.state_dict())
    assert layers.fresh == ()
    assert torch.equal(new.parameters.vector, source.parameters.vector)
    assert torch.equal(new.state.target.vector, source.parameters.vector)
    one_layer = {"network": {"hidden": [16]}}
    with pytest.raises(CheckpointError, match=r"no layer of the checkpoint's network fits: .*head_weights\.0: got"):
        make_dqn(spaces.Box(-1, 1, (5,)), 4, **one_layer).carry_over(make_dqn(**one_layer).policy_state(), None)


def test_sacs_critics_and_entropy_weight_come_over_where_the_checkpoint_has_them() -> None:
    source, new = make_sac(seed=1), make_sac(seed=2)
    source.update(random_batch(moves), 0.0)
    state = source.state_dict()
    assert new.carry_over(source.policy_state(), state).fresh == ()
    assert torch.equal(new.parameters.vector, source.parameters.vector)
    assert torch.equal(new.state.critics.vector, source.state.critics.vector)
    assert torch.equal(new.state.targets.vector, source.state.critics.vector)
    assert new.temperature.alpha == source.temperature.alpha != 1.0
    assert (new.state.actor_optimizer.steps, new.state.critic_optimizer.steps) == (0, 0)

    policy_alone = make_sac(seed=2)
    critics = policy_alone.state.critics.vector.clone()
    layers = policy_alone.carry_over(source.policy_state(), None)
    assert set(layers.fresh) == {f"critics.{name}" for name in state["critics"]}
    assert torch.equal(policy_alone.parameters.vector, source.parameters.vector)
    assert torch.equal(policy_alone.state.critics.vector, critics)
    assert policy_alone.temperature.alpha == 1.0

    wider = make_sac(VECTOR, spaces.Box(-1, 1, (3,)), seed=2)
    layers = wider.carry_over(source.policy_state(), state)
    assert {"mlps.head_weights.0", "mlps.head_biases.0", "critics.mlps.weights.0"} <= set(layers.fresh)
    assert {"mlps.weights.0", "mlps.weights.1", "critics.mlps.weights.1", "log_alpha"} <= set(layers.carried)


def test_rules_of_fine_tuning() -> None:
    assert {key: get_rule(key, "fine_tune") for key in FIXED_IN_FINE_TUNING} == dict.fromkeys(
        FIXED_IN_FINE_TUNING, Rule.MUST_EQUAL
    )
    assert get_rule("network.hidden", "fine_tune") is Rule.MUST_EQUAL
    for key in ("env_id", "env_kwargs.x", "normalization.clip", "normalization.reward", "gamma", "total_timesteps"):
        assert get_rule(key, "fine_tune") is Rule.MAY_CHANGE
        assert get_rule(key) in (Rule.MUST_EQUAL, Rule.MAY_GROW)
