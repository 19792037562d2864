"""Environments that concern processes: slow, hanging, noisy, or with child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from case_envs.interface import NeedsToken
from case_envs.outcomes import RaisesLate
from case_envs.plain import Plain


class CountsFailedCloses(Plain):
    """`close` raises, and is counted."""

    closed = 0

    def close(self) -> None:
        CountsFailedCloses.closed += 1
        raise OSError("the simulator is gone")


class SlowStep(Plain):
    """A step takes 0.2 s."""

    def step(self, action: Any) -> Any:
        time.sleep(0.2)
        return super().step(action)


class SlowReset(Plain):
    """A reset takes `reset_seconds`, a step `step_seconds`."""

    def __init__(self, reset_seconds: float = 0.02, step_seconds: float = 0.004, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.reset_seconds, self.step_seconds = reset_seconds, step_seconds

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        time.sleep(self.reset_seconds)
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        time.sleep(self.step_seconds)
        return super().step(action)


class NeedsTokenSlowWhile(NeedsToken):
    """Needs a token; a step takes 0.03 s while there is a file at `path`, and no time without it."""

    def __init__(self, path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = Path(path)

    def step(self, action: Any) -> Any:
        if self.path.exists():
            time.sleep(0.03)
        return super().step(action)


class Talks(Plain):
    """Prints on each step, to both outputs."""

    def step(self, action: Any) -> Any:
        print("stepping")
        print("stepping", file=sys.stderr)
        return super().step(action)


class Prints(Plain):
    """Prints at each end of an episode, to stdout, to stderr, and past Python; a step takes `seconds`."""

    def __init__(self, seconds: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seconds = seconds

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        result = super().step(action)
        if result[2]:
            print("episode over")
            print("episode over", file=sys.stderr)
            with suppress(OSError):
                os.write(1, b"episode over\n")
        return result


class HangsInStep(Plain):
    """A step takes ten minutes."""

    def step(self, action: Any) -> Any:
        time.sleep(600)
        return super().step(action)


class HangsWhile(Plain):
    """A step does not return while there is a file at `path`, and makes the file `path`.waits meanwhile."""

    def __init__(self, path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = Path(path)

    def step(self, action: Any) -> Any:
        while self.path.exists():
            self.path.with_suffix(".waits").touch()
            time.sleep(0.05)
        return super().step(action)


class HangsLate(RaisesLate):
    """Step `at`, the first reset, making it or closing it never returns: the case of a simulator that is gone."""

    def __init__(self, at: int = 7, during: str = "step", busy: bool = False, **kwargs: Any) -> None:
        super().__init__(at=at, **kwargs)
        self.during, self.busy = during, busy
        self.hang_during("init")

    def hang_during(self, during: str) -> None:
        while during == self.during:
            if not self.busy:
                threading.Event().wait()

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.hang_during("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if self.life_step + 1 == self.at:
            try:
                self.hang_during("step")
            except Exception:  # what an environment that tries again would do
                self.hang_during("step")
        return Plain.step(self, action)

    def close(self) -> None:
        self.hang_during("close")


class HangsBeside(Plain):
    """Every third instance never returns from a step, as where a port or a device is shared."""

    instances = 0

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        HangsBeside.instances += 1
        self.number = HangsBeside.instances

    def step(self, action: Any) -> Any:
        if self.number % 3 == 0:
            threading.Event().wait()
        return super().step(action)


class SpawnsChild(SlowStep):
    """Starts a process, as an external simulator would be; `close` ends it, and it ends by itself after ten minutes."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    def child_pid(self) -> int:
        return self.child.pid

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.terminate()
            self.child.wait(timeout=5)


class SpawnsChildSlowWhile(SpawnsChild):
    """A step takes 0.2 s while there is a file at `path`, and no time without it."""

    def __init__(self, path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = Path(path)

    def step(self, action: Any) -> Any:
        return super().step(action) if self.path.exists() else Plain.step(self, action)


class TakesSignals(Plain):
    """Handles signals itself, as clients of some robot simulators do when they connect: at `during`."""

    connects_at = 25

    def __init__(self, during: str = "make", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.during = during
        self._connect_in("make")

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        if self.life_step >= self.connects_at:
            self._connect_in("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if self.life_step >= self.connects_at:
            self._connect_in("step")
        return super().step(action)

    def _connect_in(self, call: str) -> None:
        if call != self.during:
            return
        self.during = ""
        signal.signal(signal.SIGINT, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)


class Moves(Plain):
    """Goes to a new folder in `where` when it is made, reset or stepped, as wrappers of simulators do."""

    def __init__(self, where: str, at: str = "make", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.where, self.at = where, at
        self.move("make")

    def move(self, at: str) -> None:
        if at == self.at:
            os.chdir(tempfile.mkdtemp(dir=self.where))

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.move("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.move("step")
        return super().step(action)
