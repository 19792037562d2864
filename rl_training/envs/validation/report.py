"""What validation found, and how it is said."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from rl_training.envs.contract.step_contract import FEATURES_NAMED, Breach, Severity
from rl_training.security.secrets import hide


@dataclass(frozen=True)
class Finding:
    """One thing that validation found."""

    severity: Severity
    """`fatal`: training would fail or be wrong. `warning`: training works around it, or may be misled by it."""
    code: str
    """A short stable name of the kind."""
    message: str
    """What was got, what was expected, what to do."""
    step: int | None = None
    """The step of the instance's life at which it was first seen; 0 is its first reset. None for what needs none."""
    feature: str | None = None
    """Which number of an observation or action."""
    value: str | None = None
    """The value at fault."""
    count: int = 1
    """How often it was seen."""

    def line(self) -> str:
        """Returns the finding on one line."""
        where = "" if self.step is None else f" at step {self.step}"
        often = f" ({counted(self.count, 'time')})" if self.count > 1 else ""
        return f"{self.severity}: {self.code}{where}: {self.message}{often}"


@dataclass(frozen=True)
class ValidationReport:
    """The outcome of `validate_env`."""

    env_id: str
    """The environment's id in the settings."""
    findings: tuple[Finding, ...]
    """Everything that was found, fatal first, each in the order seen."""
    steps_per_second: float | None
    """Speed of the environment alone, its wrappers included; None where too little could be timed."""
    episodes_played: int
    """Whole episodes."""
    steps_played: int
    """Steps."""
    observation_space: str
    """As the environment shows it; empty where it could not be made."""
    action_space: str
    """As the environment shows it; empty where it could not be made."""

    @property
    def fatal(self) -> tuple[Finding, ...]:
        """Findings that training can't live with."""
        return tuple(finding for finding in self.findings if finding.severity == "fatal")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The other findings."""
        return tuple(finding for finding in self.findings if finding.severity == "warning")

    @property
    def ok(self) -> bool:
        """Whether the environment can be trained on."""
        return not self.fatal

    def lines(self) -> list[str]:
        """Returns the outcome and then each finding, a line each."""
        return [self._summary(), *(finding.line() for finding in self.findings)]

    def to_dict(self) -> dict[str, Any]:
        """Returns the report for JSON."""
        return {"ok": self.ok, **asdict(self)}

    def _summary(self) -> str:
        speed = "" if self.steps_per_second is None else f", {self.steps_per_second:,.0f} steps/s"
        verdict = "can be trained on" if self.ok else "is refused"
        return (
            f"environment {self.env_id} {verdict}: {len(self.fatal)} fatal, {counted(len(self.warnings), 'warning')}; "
            f"{counted(self.episodes_played, 'episode')}, {counted(self.steps_played, 'step')}{speed}"
        )


class Findings:
    """Gathers findings; a kind seen again, of the same feature or other subject, is counted.

    Args:
        secrets: What the environment was given and no finding may show.
    """

    def __init__(self, secrets: Collection[str] = ()) -> None:
        self._secrets = secrets
        self._found: dict[tuple[str, ...], Finding] = {}

    def add(self, breaches: Iterable[Breach], *, step: int | None = None, during: str = "") -> None:
        """Takes in breaches seen at a step, during `reset` or `step`."""
        for breach in breaches:
            prefix = f"{during}: " if during else ""
            feature, value = breach.feature, breach.value
            key: tuple[str, ...] = (
                breach.code,
                during,
                breach.message if step is None else breach.subject,
                feature or "",
            )
            named = sum(other[:2] == key[:2] for other in self._found)
            if key not in self._found and named >= FEATURES_NAMED:
                key, feature, value = (breach.code, during), None, None
                prefix += "others too; the first: "
            if key in self._found:
                self._found[key] = replace(self._found[key], count=self._found[key].count + 1)
            else:
                message = hide(prefix + breach.message, self._secrets)
                self._found[key] = Finding(breach.severity, breach.code, message, step, feature, value)

    @property
    def any_fatal(self) -> bool:
        """Whether something fatal was found so far."""
        return any(finding.severity == "fatal" for finding in self._found.values())

    def ordered(self) -> tuple[Finding, ...]:
        """Returns all findings, fatal first."""
        return tuple(sorted(self._found.values(), key=lambda finding: finding.severity != "fatal"))


def counted(number: int, noun: str) -> str:
    """Returns a number of things in words: `1 step`, `2,000 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
