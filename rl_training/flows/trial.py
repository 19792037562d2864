"""`trial-flow`: trains one segment of a sweep, on whichever worker of a work pool takes it."""

from __future__ import annotations

from typing import Any, cast

from prefect import flow
from prefect.artifacts import create_table_artifact
from prefect.states import Crashed

from rl_training.errors import ConfigError
from rl_training.flows.artifacts_and_events import emit_end
from rl_training.flows.flow_process import prepare_flow_process
from rl_training.flows.supervised_training import supervise
from rl_training.flows.sweep_engines.segment_task import require_same_place, train_segment
from rl_training.flows.sweep_engines.work_pool import RECORD_KEY
from rl_training.runs.stopping import StopFlag
from rl_training.security.untrusted_json import NotReadable
from rl_training.sweeps.engines.engine import Lost, Segment
from rl_training.sweeps.segments import from_json, to_json


@flow(name="trial-flow", on_completion=[emit_end])
def trial_flow(segment: dict[str, Any], tracking_uri: str, version: str) -> dict[str, Any]:
    """Trains a segment in a process of its own. sweep-flow creates its flow runs; there is no use in creating others.

    A cancelled flow run saves its trial. If the trial's process dies, the flow run ends as Crashed, and the sweep
    submits the segment again.

    Args:
        segment: The segment; see `rl_training.sweeps.engines.engine.Segment`.
        tracking_uri: Where the sweep logs to; this worker must log to the same place.
        version: The version of rl_training of the sweep.

    Returns:
        The record of the run, which is also the artifact `trial-record` of the flow run.

    Raises:
        ConfigError: This worker logs elsewhere or has another version, or this is no segment.
    """
    with prepare_flow_process():
        require_same_place(tracking_uri, version)
        try:
            parsed = from_json(segment, Segment)
        except NotReadable as error:
            raise ConfigError(f"segment: {error}; sweep-flow writes this parameter") from None
        stop = StopFlag()
        result = supervise(lambda: train_segment(parsed, is_stopped=lambda: stop.requested), stop=stop)
        if isinstance(result, Lost):
            return cast("dict[str, Any]", Crashed(message=result.reason))
        record: dict[str, Any] = to_json(result)
        create_table_artifact([record], key=RECORD_KEY, description=f"Trial {parsed.key}: {result.state}")
        return record
