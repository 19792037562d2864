"""Stops training at a point that the test chooses."""

from rl_training.runs.stopping import StopFlag


class StopAfterPolls(StopFlag):
    """Asks for a stop once the flag was looked at `polls` times: at any point of training, updates included."""

    def __init__(self, polls: int) -> None:
        super().__init__()
        self.polls = polls

    @property
    def requested(self) -> bool:
        self.polls -= 1
        if self.polls < 0:
            self.request("signal")
        return self.cause is not None
