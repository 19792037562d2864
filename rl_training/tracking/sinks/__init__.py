"""Sinks: classes to which a process beside training passes each line of `metrics.jsonl`."""

from rl_training.tracking.sinks.sink import Sink, SinkLine, SinkRun, StateLost

__all__ = ["Sink", "SinkLine", "SinkRun", "StateLost"]
