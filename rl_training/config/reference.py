"""Writes the tables of docs/configuration.md and docs/resume.md from the settings classes and the resume rules.

`python -m rl_training.config.reference docs/configuration.md` updates that page.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rl_training.config.algorithms.actor_critic import ActorCriticConfig
from rl_training.config.algorithms.dqn import DQNConfig
from rl_training.config.algorithms.maximum_entropy import MaximumEntropyConfig
from rl_training.config.algorithms.off_policy import OffPolicyConfig
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.algorithms.td3 import TD3Config
from rl_training.config.algorithms.tqc import TQCConfig
from rl_training.config.document import EXPECTED
from rl_training.config.resume_rules import FIXED_IN_FINE_TUNING, INTERCHANGEABLE, REASONS, RULES, SESSION, Rule
from rl_training.config.settings import AUTO, TrainConfig
from rl_training.config.suggestions import get_section_type

Types = Mapping[str, tuple[type[BaseModel], type[BaseModel] | None]]

_TYPES: Types = {
    "TrainConfig": (TrainConfig, None),
    "PPOConfig": (PPOConfig, TrainConfig),
    "OffPolicyConfig": (OffPolicyConfig, TrainConfig),
    "DQNConfig": (DQNConfig, OffPolicyConfig),
    "ActorCriticConfig": (ActorCriticConfig, OffPolicyConfig),
    "MaximumEntropyConfig": (MaximumEntropyConfig, ActorCriticConfig),
    "TD3Config": (TD3Config, ActorCriticConfig),
    "TQCConfig": (TQCConfig, MaximumEntropyConfig),
}
"""Each settings class that has a block, and the class whose fields the block leaves out."""

_BLOCK = re.compile(r"(<!-- fields of (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_RULES = re.compile(r"(<!-- rules of resuming -->\n).*?(<!-- end -->)", re.DOTALL)


def update_page(page: str, types: Types = _TYPES) -> str:
    """Returns the page with each block updated.

    A block begins with `<!-- fields of TYPE -->` or `<!-- rules of resuming -->`, and ends with `<!-- end -->`.

    Args:
        page: The text of the page.
        types: The settings classes by their names in the page, each with the class whose fields are left out.
    """
    page = _BLOCK.sub(lambda match: f"{match[1]}\n{format_field_tables(*types[match['name']])}\n{match[3]}", page)
    return _RULES.sub(lambda match: f"{match[1]}\n{format_rules_table()}\n{match[2]}", page)


def format_rules_table() -> str:
    """Returns a Markdown table of the settings that may change on resume, one row per rule."""
    rows = ["| setting | `resume` | `resume --fine-tune` | |", "|---|---|---|---|"]
    for rule in (Rule.MAY_CHANGE, Rule.INEXACT, Rule.MAY_GROW):
        names = ", ".join(f"`{name}`" for name, its_rule in RULES.items() if its_rule is rule)
        rows.append(f"| {names} | {rule.value} | {Rule.MAY_CHANGE.value} | {REASONS[rule]} |")
    kinds = ", ".join(f"`{kind}`" for kind in INTERCHANGEABLE)
    fixed = ", ".join(f"`{name}`" for name in FIXED_IN_FINE_TUNING)
    rows += [
        f"| `vectorization` among {kinds} | {Rule.MAY_CHANGE.value} | {Rule.MAY_CHANGE.value} | "
        "they step environments with identical results |",
        f"| `vectorization: {AUTO}` | the checkpoint's | chosen as for a new run | "
        "a run keeps the kind that it began with |",
        "| the module of `env_id`, `wrappers`, `training_wrappers` and `network.body`, "
        f"if it was `{SESSION}` or none | "
        f"{Rule.MAY_CHANGE.value} | {Rule.MAY_CHANGE.value} | code of a notebook was put into a module |",
        f"| {fixed} | {Rule.MUST_EQUAL.value} | {Rule.MUST_EQUAL.value} | defines what the weights mean |",
        f"| all others, and the environment's observation and action space | {Rule.MUST_EQUAL.value} | "
        f"{Rule.MAY_CHANGE.value} | {REASONS[Rule.MUST_EQUAL]} |",
    ]
    return "\n".join([*rows, ""])


def format_field_tables(model: type[BaseModel], beside: type[BaseModel] | None = None) -> str:
    """Returns Markdown tables of the fields of `model`, one table per section.

    Args:
        model: A settings class.
        beside: A class whose fields are left out if their defaults are the same.
    """
    return "\n".join(_iterate_lines(model, beside, ""))


def _iterate_lines(model: type[BaseModel], beside: type[BaseModel] | None, prefix: str) -> Iterator[str]:
    fields = {key: field for key, field in model.model_fields.items() if not _is_same(key, field, beside)}
    meanings = read_meanings(model)
    sections = {key: get_section_type(model, key) for key in fields if not _holds_many(fields[key].annotation)}
    yield from ("| key | type | default | meaning |", "|---|---|---|---|")
    for key, field in fields.items():
        if sections.get(key) is None:
            kind, meaning = describe_type(field.annotation, field.metadata), meanings[key]
            yield f"| `{prefix}{key}` | {kind} | {_format_default(field)} | {meaning} |"
    yield ""
    for key, section in sections.items():
        if section is not None:
            yield from (f"**`{prefix}{key}`**: {meanings[key]}", "")
            yield from _iterate_lines(section, None, f"{prefix}{key}.")


def read_meanings(model: type[BaseModel]) -> dict[str, str]:
    """Returns the text below each field of a settings class and of its bases, on one line."""
    meanings: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            assert isinstance(tree, ast.ClassDef)
            for field, text in pairwise(tree.body):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(words))):
                        meanings[key] = " ".join(words.split())
    return meanings


def _is_same(key: str, field: FieldInfo, beside: type[BaseModel] | None) -> bool:
    return beside is not None and key in beside.model_fields and beside.model_fields[key].default == field.default


def _holds_many(annotation: Any) -> bool:
    return get_origin(annotation) in (list, tuple, dict)


def describe_type(annotation: Any, constraints: list[Any] | None = None) -> str:
    """Describes a field's type and range in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return describe_type(arguments[0], list(arguments[1:]))
    if origin in (Union, UnionType):
        kinds = [kind for kind in arguments if kind is not NoneType]
        words = "a number" if kinds == [int, float] else " or ".join(map(describe_type, kinds))
        return words + _describe_bounds(constraints) + (", or null" if NoneType in arguments else "")
    if origin is Literal:
        return " or ".join(f"`{option}`" for option in arguments)
    if origin in (list, tuple):
        return f"a list: {describe_type(arguments[0])} each"
    if origin is dict:
        return "a mapping"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "a mapping of " + ", ".join(f"`{key}`" for key in annotation.model_fields)
    if annotation is Any:
        return "any value"
    return EXPECTED[annotation] + _describe_bounds(constraints)


def _describe_bounds(constraints: list[Any] | None) -> str:
    signs = {"gt": "above", "ge": "from", "lt": "below", "le": "to"}
    words = [
        f"{word} {getattr(constraint, sign):g}"
        for constraint in constraints or []
        for sign, word in signs.items()
        if getattr(constraint, sign, None) is not None
    ]
    return " " + " ".join(words) if words else ""


def _format_default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or isinstance(value, bool):
        return f"`{'null' if value is None else str(value).lower()}`"
    if isinstance(value, int):
        return f"`{value:_}`"
    return f"`{list(value)}`" if isinstance(value, tuple) else f"`{value}`"


def main(page: str) -> None:
    """Updates the page at the path `page`."""
    path = Path(page)
    path.write_text(update_page(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
