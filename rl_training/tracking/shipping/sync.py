"""Sends to MLflow what the shipper could not send, or a run that was trained offline."""

from __future__ import annotations

import time
from pathlib import Path

from filelock import FileLock, Timeout

from rl_training import run_layout
from rl_training.errors import TrackingError
from rl_training.security.planted_links import refuse_links
from rl_training.tracking import json_files
from rl_training.tracking.attempts import AttemptSuperseded
from rl_training.tracking.mlflow_store import explain, resolve_tracking_uri, strip_credentials
from rl_training.tracking.orphaned_runs import resolve_end_status
from rl_training.tracking.record_schemas import Address
from rl_training.tracking.run_description import is_trainer_alive
from rl_training.tracking.shipping.shipment import Shipment, ShipReport

TRIES = 4
"""How often each piece is tried, with pauses of 1, 2 and 4 seconds."""


def sync(run_dir: str | Path, *, tracking_uri: str | None = None, new_run: bool = False) -> ShipReport:
    """Sends the parts of a run that MLflow does not have; if it has everything, nothing changes.

    Args:
        run_dir: The run's directory.
        tracking_uri: MLflow's store; by default the store that has the run, else `$MLFLOW_TRACKING_URI`, else the
            embedded store.
        new_run: Whether to send everything to a new run if the old run was deleted in MLflow.

    Returns:
        The report of how much of the run is in MLflow.

    Raises:
        TrackingError: The directory contains no tracked run, another process is sending it, the run was deleted and
            `new_run` is false, or MLflow can't be reached.
    """
    run_dir = Path(run_dir).absolute()
    refuse_links(run_dir)
    shipment = Shipment(run_dir, find_run_store(run_dir, tracking_uri))
    try:
        with FileLock(run_dir / run_layout.SHIPPER_LOCK, timeout=0):
            return _send(shipment, new_run)
    except Timeout:
        raise TrackingError(f"another process is sending {run_dir} to MLflow; let it end, then try again") from None


def _send(shipment: Shipment, new_run: bool) -> ShipReport:
    try:
        shipment.open(new_run)
    except TrackingError:
        raise
    except Exception as error:
        where = strip_credentials(shipment.uri)
        raise TrackingError(f"MLflow at {where} can't be used: {explain(error, shipment.uri)}") from None
    run_dir = shipment.run_dir
    training = not (run_dir / run_layout.STATUS).exists() and is_trainer_alive(shipment.description)
    tries = 0
    while True:
        try:
            more = shipment.ship(None if training else lambda: resolve_end_status(run_dir))
            tries = 0
        except AttemptSuperseded as error:
            return shipment.report(str(error))
        except Exception as error:  # any error of MLflow or the network
            tries += 1
            if tries == TRIES:
                return shipment.report(f"MLflow is in trouble: {explain(error, shipment.uri)}")
            time.sleep(2.0 ** (tries - 1))
            continue
        if not more:
            return shipment.report()


def find_run_store(run_dir: Path, tracking_uri: str | None) -> str:
    """Returns the store of a run: `tracking_uri` if given, else the store that has it, else the default store."""
    known = json_files.read_json(run_dir / run_layout.MLFLOW, Address)
    chosen = resolve_tracking_uri(tracking_uri)
    if tracking_uri is not None or known is None or strip_credentials(chosen) == known["tracking_uri"]:
        return chosen
    return resolve_tracking_uri(known["tracking_uri"])
