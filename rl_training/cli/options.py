"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

Config = Annotated[str, Parameter(help="A YAML file, or the name of a shipped config such as ppo/cartpole.")]
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
        help="A module of environments or wrappers that a received run may import; repeatable.",
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
