"""A process that offers candidates for promotion at given times.

It reads a line of JSON for each offer, and prints a line of JSON with each decision.
"""

from __future__ import annotations

import json
import sys
import time

from rl_training.api.promotion import promote_candidate
from rl_training.cli.output import result_stream
from rl_training.tracking.mlflow_store import connect, resolve_tracking_uri


def main() -> None:
    with result_stream() as out:
        connect(resolve_tracking_uri())
        print("ready", file=out, flush=True)
        for line in sys.stdin:
            offer = json.loads(line)
            time.sleep(max(0.0, offer["at"] - time.time()))
            began = time.time()
            result = promote_candidate(offer["source"], offer["overrides"]).to_dict()
            print(json.dumps({**result, "began": began, "ended": time.time()}), file=out, flush=True)


if __name__ == "__main__":
    main()
