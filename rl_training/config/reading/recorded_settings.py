"""Reads the settings that a run was recorded with, in whose place today's defaults must not come."""

from __future__ import annotations

from dataclasses import replace

from rl_training.config.document import MapNode, Scalar
from rl_training.config.parsing import read_yaml
from rl_training.config.settings import AUTO


def read_recorded_settings(text: str, source: str) -> MapNode:
    """Returns the settings of a run's record as a document.

    A record without `vectorization` is from a time when environments were stepped one after the other by default. One
    with `auto` is of an algorithm that chose nothing, so that its environments were stepped in the same way.

    Args:
        text: YAML.
        source: The name of the text in messages.

    Raises:
        ConfigError: The text is not YAML, or no mapping.
    """
    document = read_yaml(text, source)
    node = document.entries.get("vectorization", Scalar(AUTO, "plain", document.place))
    if not isinstance(node, Scalar) or node.value != AUTO:
        return document
    return replace(document, entries={**document.entries, "vectorization": replace(node, value="sync")})
