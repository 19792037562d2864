"""Environments that matter to processes: slow, hanging, noisy, with children."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

from case_envs.plain import Plain


class FailsOnClose(Plain):
    """`close` raises."""

    closed = 0

    def close(self) -> None:
        FailsOnClose.closed += 1
        raise OSError("the simulator is gone")


class SlowStep(Plain):
    """A step takes 0.2 s."""

    def step(self, action: Any) -> Any:
        time.sleep(0.2)
        return super().step(action)


class Talks(Plain):
    """Prints on each step, to both outputs."""

    def step(self, action: Any) -> Any:
        print("stepping")
        print("stepping", file=sys.stderr)
        return super().step(action)


class HangsInStep(Plain):
    """A step takes two minutes."""

    def step(self, action: Any) -> Any:
        time.sleep(120)
        return super().step(action)


class SpawnsChild(SlowStep):
    """Starts a process, as an external simulator would be; `close` ends it, and it ends by itself after 120 s."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])

    def child_pid(self) -> int:
        return self.child.pid

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.terminate()
            self.child.wait(timeout=5)
