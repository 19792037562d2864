"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

Config = Annotated[str, Parameter(help="A YAML file, or the name of a shipped config such as ppo/cartpole.")]
Source = Annotated[
    str, Parameter(help="Directory of a run or checkpoint, MLflow run id, runs:/ID or models:/NAME@ALIAS.")
]
Candidate = Annotated[
    str,
    Parameter(
        help="A run by MLflow's id, runs:/ID or directory (its best checkpoint); a checkpoint's directory; or "
        "models:/NAME/VERSION.",
    ),
]
AllowModule = Annotated[
    tuple[str, ...],
    Parameter(
        name="--allow-module",
        metavar="MODULE",
        help="A module that a received run's environment or wrapper may come from; repeatable.",
    ),
]
Set = Annotated[
    tuple[str, ...],
    Parameter(name="--set", metavar="KEY=VALUE", help="Override a setting by its dotted key; repeatable."),
]
Rules = Annotated[
    tuple[str, ...],
    Parameter(name="--set", metavar="KEY=VALUE", help="Override a setting of promotion or evaluation; repeatable."),
]
FineTune = Annotated[
    bool,
    Parameter(help="Begin a new run with the checkpoint's weights alone; all settings but the network's may change."),
]
Force = Annotated[
    str | None,
    Parameter(metavar="REASON", help="Make it champion whatever the gate finds; the reason stays on record."),
]
Json = Annotated[bool, Parameter(name="--json", help="Print the result as one line of JSON.")]
