"""Writes settings as YAML for files and for people, and computes their hash."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import yaml

from rl_training.config.document import FLOAT_PATTERN
from rl_training.config.sections import Settings
from rl_training.config.settings import TrainConfig
from rl_training.security.secrets import redact

NOT_PART_OF_A_RUN = ("run_dir", "run_name", "tags", "experiment", "job")
"""Settings that name a run or say where it is kept, and have no effect on what it computes."""


class _Dumper(yaml.SafeDumper):
    """Quotes every text that a reader of YAML 1.1 or 1.2 could take for another type."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_implicit_resolver("plain", re.compile(rf"{FLOAT_PATTERN}|[-+]?0_?[0-9_]+"), list("-+.0123456789"))


def dump_config(config: Settings, *, redacted: bool = True) -> str:
    """Returns the resolved settings as YAML, which `load_config` reads back to equal settings.

    Args:
        config: The settings.
        redacted: Whether to hide secrets (references to secrets are kept). Text that is written anywhere must be
            redacted.
    """
    data = config.model_dump(mode="json")
    return _dump(redact(data) if redacted else data, width=120)


def compact_config(config: TrainConfig) -> str:
    """Returns the resolved settings for people, without secrets: single values in rows, then a line per section."""
    data = redact(config.model_dump(mode="json"))
    sections = {key: value for key, value in data.items() if isinstance(value, dict) and value}
    single = {key: value for key, value in data.items() if key not in sections}
    rows = _dump(single, flow=True, width=100).strip().removeprefix("{").removesuffix("}").splitlines()
    lines = (f"{key}: {_dump(value, flow=True, width=math.inf).strip()}" for key, value in sections.items())
    return "\n".join([*map(str.strip, rows), *lines])


def config_hash(config: TrainConfig) -> str:
    """Returns the sha256 of the settings that define what a run computes: all except `NOT_PART_OF_A_RUN`.

    Secrets are left out, so the hash reveals none and stays the same when a token is renewed.
    """
    data = config.model_dump(mode="json", exclude=set(NOT_PART_OF_A_RUN))
    canonical = json.dumps(redact(data, references=True), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True)
class WrittenConfig:
    """Settings in the form that checkpoints record.

    A run makes this form once for all its checkpoints, because it takes longer than writing a small policy.
    """

    config: TrainConfig

    @cached_property
    def text(self) -> bytes:
        """The content of `config.yaml`."""
        return dump_config(self.config).encode()

    @cached_property
    def hash(self) -> str:
        """The `config_hash`."""
        return config_hash(self.config)


def _dump(data: Any, *, width: float, flow: bool = False) -> str:
    text: str = yaml.dump(
        data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=flow, width=width
    )
    return text
