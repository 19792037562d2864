"""The findings of validation, and their report."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from rl_training.envs.contract.step_contract import FEATURES_NAMED, Breach, Severity
from rl_training.security.secrets import hide


@dataclass(frozen=True)
class Finding:
    """One kind of problem that validation found."""

    severity: Severity
    """`fatal`: training would fail or be wrong. `warning`: training works around it, or may be misled by it."""
    code: str
    """A short stable name of the kind of problem."""
    message: str
    """The value received, the value expected, and what to do."""
    step: int | None = None
    """The step at which the problem first appeared, counted since the environment was made; 0 is the first reset. None
    if the problem needs no step to appear."""
    feature: str | None = None
    """The number in an observation or action, if the problem concerns one."""
    value: str | None = None
    """The offending value."""
    count: int = 1
    """Number of times that the problem appeared."""

    def line(self) -> str:
        """Returns the finding on one line."""
        where = "" if self.step is None else f" at step {self.step}"
        often = f" ({format_count(self.count, 'time')})" if self.count > 1 else ""
        return f"{self.severity}: {self.code}{where}: {self.message}{often}"


@dataclass(frozen=True)
class ValidationReport:
    """The outcome of `validate_env`."""

    env_id: str
    """The environment's id in the settings."""
    findings: tuple[Finding, ...]
    """All findings, fatal ones first, otherwise in the order of their appearance."""
    steps_per_second: float | None
    """Speed of the environment with its wrappers; None if too few steps could be timed."""
    episodes_played: int
    """Number of complete episodes."""
    steps_played: int
    """Number of steps."""
    observation_space: str
    """The observation space as text; empty if the environment could not be made."""
    action_space: str
    """The action space as text; empty if the environment could not be made."""

    @property
    def fatal(self) -> tuple[Finding, ...]:
        """The findings that make training impossible."""
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
        """Returns a line with the outcome, then a line for each finding."""
        return [self._summarize(), *(finding.line() for finding in self.findings)]

    def to_dict(self) -> dict[str, Any]:
        """Returns the report for JSON."""
        return {"ok": self.ok, **asdict(self)}

    def to_record(self) -> dict[str, Any]:
        """Returns what the run's `metadata.json` keeps under `validation`: the warnings, each with code and message."""
        warnings = [{"code": finding.code, "message": finding.line()} for finding in self.warnings]
        return {"warnings": warnings, "episodes_played": self.episodes_played, "steps_played": self.steps_played}

    def _summarize(self) -> str:
        speed = "" if self.steps_per_second is None else f", {self.steps_per_second:,.0f} steps/s"
        verdict = "can be trained on" if self.ok else "is refused"
        warnings = format_count(len(self.warnings), "warning")
        return (
            f"environment {self.env_id} {verdict}: {len(self.fatal)} fatal, {warnings}; "
            f"{format_count(self.episodes_played, 'episode')}, {format_count(self.steps_played, 'step')}{speed}"
        )


class Findings:
    """Collects findings; a repeated finding about the same feature or subject is only counted.

    Args:
        secrets: Values that the environment was given and that no finding may show.
    """

    def __init__(self, secrets: Collection[str] = ()) -> None:
        self._secrets = secrets
        self._found: dict[tuple[str, ...], Finding] = {}

    def add(self, breaches: Iterable[Breach], *, step: int | None = None, during: str = "") -> None:
        """Adds breaches.

        Args:
            breaches: The breaches.
            step: The step at which they appeared; None if they need no step to appear.
            during: The call in which they appeared, `reset` or `step`, for the message.
        """
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

    def include(self, other: Findings, prefix: str) -> None:
        """Adds the findings of another environment, whose messages begin with `prefix` here."""
        for key, finding in other._found.items():
            self._found[(prefix, *key)] = replace(finding, message=prefix + finding.message)

    @property
    def any_fatal(self) -> bool:
        """Whether a fatal finding was added so far."""
        return any(finding.severity == "fatal" for finding in self._found.values())

    def sort(self) -> tuple[Finding, ...]:
        """Returns all findings, fatal ones first."""
        return tuple(sorted(self._found.values(), key=lambda finding: finding.severity != "fatal"))


def format_count(number: int, noun: str) -> str:
    """Formats a number of things: `1 step`, `2,000 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
