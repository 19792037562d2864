"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter, validators

from rl_training.errors import UserError

Config = Annotated[str, Parameter(help="A YAML file, or the name of a shipped config such as ppo/cartpole.")]
EnvId = Annotated[
    str | None,
    Parameter(
        name="--env",
        help="Instead of --config: the Gymnasium id, with a module that registers it if necessary: module:Env-v0.",
    ),
]
Algo = Annotated[str | None, Parameter(help="The algorithm to train with, if --env is given (default: ppo).")]
Timesteps = Annotated[str | None, Parameter(metavar="INT", help="Environment steps to train for; required with --env.")]
TrainingSeed = Annotated[
    int | None, Parameter(validator=validators.Number(gte=0), help="The seed of all randomness in training.")
]
Source = Annotated[
    str, Parameter(help="The directory of a run or checkpoint, an MLflow run id, runs:/ID, or models:/NAME@ALIAS.")
]
Candidate = Annotated[
    str,
    Parameter(
        help="A run (its best checkpoint), given as MLflow run id, runs:/ID or directory; the directory of a "
        "checkpoint; or models:/NAME/VERSION.",
    ),
]
AllowModule = Annotated[
    tuple[str, ...],
    Parameter(
        name="--allow-module",
        metavar="MODULE",
        help="A module of environments, networks, callbacks and the like that a received run may import; repeatable.",
    ),
]
Set = Annotated[
    tuple[str, ...],
    Parameter(name="--set", metavar="KEY=VALUE", help="Override a setting by its dotted key; repeatable."),
]
Rules = Annotated[
    tuple[str, ...],
    Parameter(name="--set", metavar="KEY=VALUE", help="Override a setting of promotion.* or evaluation.*; repeatable."),
]
FineTune = Annotated[
    bool,
    Parameter(
        help="Start a new run from the checkpoint's weights alone; all settings except the network's may change."
    ),
]
Force = Annotated[
    str | None,
    Parameter(metavar="REASON", help="Promote the candidate whatever the gate decides; the reason is recorded."),
]
Json = Annotated[bool, Parameter(name="--json", help="Print the result as one line of JSON.")]


def choose_settings(
    config: str | None, env: str | None, algo: str | None, timesteps: str | None, seed: int | None, set_: Sequence[str]
) -> tuple[str | dict[str, Any], list[str]]:
    """Returns the settings that the options of a training command name: a file or a mapping, and its overrides.

    Raises:
        UserError: The options name no settings, or two.
    """
    named = {"total_timesteps": timesteps, "seed": seed}
    overrides = [*(f"{key}={value}" for key, value in named.items() if value is not None), *set_]
    if config is not None:
        if env is not None or algo is not None:
            option = "--env" if env is not None else "--algo"
            raise UserError(
                f"got --config and {option}, expected one of the two; to change a setting of {config}, use --set, for "
                f"example --set env_id=CartPole-v1"
            )
        return config, overrides
    if env is None:
        raise UserError(
            "got no settings, expected --config FILE (`rl-training configs` lists the shipped ones), or --env ID "
            "--timesteps INT"
        )
    if timesteps is None and not any(text.partition("=")[0].strip() == "total_timesteps" for text in set_):
        raise UserError(f"got --env {env} without --timesteps, expected the number of environment steps to train for")
    return {"algo": algo or "ppo", "env_id": env}, overrides
