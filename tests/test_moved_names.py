"""The old paths of modules and names still work, and warn."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rl_training import PPOConfig
from rl_training.algorithms.ppo import PPO
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.errors import CheckpointError
from rl_training.moved_names import MODULES, NAMES
from rl_training.runtime import network_trainer
from rl_training.runtime.checkpoint import load_policy_state, open_checkpoint
from rl_training.runtime.trainer import Trainer
from rl_training.runtime.trainer_factory import make_trainer
from rl_training.runtime.trainers.ppo_trainer import PPOTrainer

ROOT = Path(__file__).resolve().parents[1]

USED_TOGETHER = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from rl_training.envs.training import TrainingEnvs
    from rl_training.runtime.setup import make_trainer
    from rl_training.runtime.stopping import StopFlag
    from rl_training.tracking.store import connect, resolve_tracking_uri
assert {(w.category, w.filename) for w in caught} == {(DeprecationWarning, __file__)}, [str(w) for w in caught]
assert len(caught) == 4
import rl_training.runs.stopping, rl_training.tracking.mlflow_store
assert rl_training.runs.stopping.StopFlag is StopFlag
assert rl_training.runs.stopping.__spec__.name == rl_training.runs.stopping.__name__ == "rl_training.runs.stopping"
assert rl_training.tracking.store is rl_training.tracking.mlflow_store
"""


def test_a_plugin_of_version_0_1_imports_what_its_example_imported(tmp_path):
    (tmp_path / "plugin.py").write_text(USED_TOGETHER)
    done = subprocess.run([sys.executable, "plugin.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("old", MODULES)
def test_old_path_of_a_module_is_free(old):
    assert not (ROOT / old.replace(".", "/")).with_suffix(".py").exists()


@pytest.mark.parametrize("old", NAMES)
def test_old_name_warns_and_is_the_new_one(old):
    (old_home, _, old_name), (new_home, _, new_name) = old.rpartition("."), NAMES[old].rpartition(".")
    with pytest.warns(DeprecationWarning, match=f"{old} was renamed to {NAMES[old]}"):
        found = getattr(importlib.import_module(old_home), old_name)
    assert found is getattr(importlib.import_module(new_home), new_name)


@pytest.mark.parametrize("module", sorted({old.rpartition(".")[0] for old in NAMES}))
def test_unknown_name_of_a_module_with_old_names_is_an_attribute_error(module):
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'nothing'"):
        importlib.import_module(module).nothing  # noqa: B018


def make_old_trainer() -> type[Trainer]:
    """Returns a trainer that is written as version 0.1 had it."""
    with pytest.warns(DeprecationWarning, match="NetworkTrainer"):

        class ActingTrainer(network_trainer.NetworkTrainer):
            """Acts with a policy that does not learn."""

            def __init__(self, config, run, callbacks=(), *, stop=None):
                super().__init__(config, run, callbacks, stop=stop)
                self.algorithm = PPO(config, self.envs.encoder, self.envs.codec, self.device)

            def _make_envs(self):
                return TrainingEnvs(self.config, gamma=self.config.gamma)

            def _learn(self):
                while self.num_timesteps < self.config.total_timesteps:
                    self.between_steps()
                    action, _, _ = self.algorithm.act(self.envs.normalized())
                    self.progress.count(self.envs.step(action).episodes)
                    self.progress.num_timesteps += self.config.num_envs

    return ActingTrainer


def test_a_trainer_of_version_0_1_trains_and_resumes():
    kind = make_old_trainer()
    settings = {"env_id": "CartPole-v1", "num_envs": 2, "evaluation": {"episodes": 2}}
    config = PPOConfig(total_timesteps=100, normalization={"observation": True}, **settings)
    result = make_trainer(kind, config).train()
    longer = config.model_copy(update={"total_timesteps": 200})
    resumed = make_trainer(kind, longer, resume_from=result.checkpoint).train()
    assert (result.num_timesteps, resumed.num_timesteps) == (100, 200)
    before, after = (open_checkpoint(each.checkpoint) for each in (result, resumed))
    weights = [load_policy_state(checkpoint)["weights"] for checkpoint in (before, after)]
    assert all(torch.equal(*pair) for pair in zip(*(state.values() for state in weights), strict=True))
    assert before.policy_sha256 != after.policy_sha256  # the statistics of the observations have grown


def test_a_size_check_of_version_0_1_is_still_made():
    with pytest.warns(DeprecationWarning, match="require_held is now require_size"):

        class Checked(PPOTrainer):
            @classmethod
            def require_held(cls, config, checkpoint):
                raise CheckpointError("too large")

    with pytest.raises(CheckpointError, match="too large"):
        Checked.require_size(None, None)
