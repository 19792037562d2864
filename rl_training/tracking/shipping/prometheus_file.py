"""Metrics of a run under way for Prometheus, in a file that its node exporter reads; off by default.

A training lasts minutes or days, and many may share a machine, so a port for each to be asked at would have to be found
first. The node exporter reads all files of a folder (`--collector.textfile.directory`).
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl_training.tracking.shipping.shipment import Shipment

VARIABLE = "RL_TRAINING_PROMETHEUS_DIR"
"""Environment variable: the folder for the files; unset for none."""
EVERY_SECONDS = 10.0

logger = logging.getLogger(__name__)


class PrometheusFile:
    """The file of one run, which is removed when the run ends.

    Args:
        folder: The folder that the node exporter reads.
        shipment: The run.

    Raises:
        ImportError: prometheus-client is not installed.
    """

    def __init__(self, folder: Path, shipment: Shipment) -> None:
        from prometheus_client import CollectorRegistry, Gauge

        description = shipment.description
        labels = {"run_uid": description["run_uid"], "run": description["run_name"]}
        self._path, self._shipment, self._next = folder / f"rl_training_{labels['run_uid']}.prom", shipment, 0.0
        self._registry = CollectorRegistry()

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"rl_training_{name}", text, list(labels), registry=self._registry).labels(**labels)

        gauge("total_timesteps", "The step at which training ends.").set(description["total_timesteps"])
        self._step = gauge("num_timesteps", "The newest step.")
        self._sent = gauge("values_sent", "Metric values in MLflow.")
        self._unsent = gauge("values_unsent", "Metric values that are not in MLflow yet.")
        self._failing = gauge("shipper_failing", "1 if the last attempt to send failed.")
        self._time = gauge("shipper_time_seconds", "When the shipper wrote this, in seconds since 1970.")

    def record(self, trouble: str) -> None:
        """Writes the file if it is due.

        Args:
            trouble: Why the last attempt to send failed; empty if it did not.
        """
        from prometheus_client import write_to_textfile

        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY_SECONDS
        report = self._shipment.report(trouble)
        self._step.set(self._shipment.step)
        self._sent.set(report.sent)
        self._unsent.set(report.unsent)
        self._failing.set(bool(trouble))
        self._time.set_to_current_time()
        try:
            write_to_textfile(str(self._path), self._registry)
        except OSError as error:
            logger.warning("%s: Prometheus' file can't be written: %s", VARIABLE, error)

    def remove(self) -> None:
        """Removes the file."""
        self._path.unlink(missing_ok=True)


def open_prometheus_file(shipment: Shipment) -> PrometheusFile | None:
    """Returns the file of a run, or None if `$RL_TRAINING_PROMETHEUS_DIR` is not set or can't be used."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    try:
        return PrometheusFile(Path(folder), shipment)
    except ImportError:
        logger.warning("%s needs prometheus-client; pip install 'rl-training[prometheus]'", VARIABLE)
        return None
