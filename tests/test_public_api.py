"""The public names of `import rl_training`."""

import inspect

import pytest

import rl_training
import rl_training.api

PROMISED = {
    "AlgorithmSpec",
    "Callback",
    "Comparison",
    "DQNConfig",
    "DefaultExperimentManager",
    "EvaluationResult",
    "PPOConfig",
    "RunSummary",
    "SACConfig",
    "TD3Config",
    "TQCConfig",
    "SweepResult",
    "Reproduction",
    "TrainConfig",
    "TrainResult",
    "TrainerState",
    "compare",
    "evaluate",
    "evaluate_checkpoint",
    "get_algorithm",
    "list_algorithms",
    "load_config",
    "load_policy",
    "promote",
    "record",
    "register_algorithm",
    "report",
    "reproduce",
    "resume",
    "sweep",
    "train",
    "train_dqn",
    "train_ppo",
    "train_sac",
    "train_td3",
    "train_tqc",
    "validate_env",
}


def test_package_and_api_offer_the_same_names():
    assert set(rl_training.__all__) - {"__version__"} == set(rl_training.api.__all__) == PROMISED
    assert set(dir(rl_training)) == PROMISED | {"__version__"}


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_lazy_name_is_the_apis_and_documented(name):
    offered = getattr(rl_training, name)
    assert offered is getattr(rl_training.api, name)
    assert inspect.getdoc(offered)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'train_everything'"):
        rl_training.train_everything  # noqa: B018


@pytest.mark.parametrize("train", [getattr(rl_training, f"train_{algo}") for algo in rl_training.list_algorithms()])
def test_train_function_has_the_contracts_arguments(train):
    parameters = inspect.signature(train).parameters
    assert list(parameters)[:3] == ["config", "callbacks", "resume_from"]
    assert parameters["callbacks"].default == ()
    assert parameters["resume_from"].default is None
    assert all(p.kind is p.KEYWORD_ONLY for p in list(parameters.values())[3:])
