"""The run times of a deployment's schedule; a schedule that is likely to be a mistake is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from rl_training.config.suggestions import find_similar_word
from rl_training.errors import UserError

KINDS = ("cron", "interval", "rrule")
KEYS = frozenset(
    {*KINDS, "timezone", "anchor_date", "active", "parameters", "slug", "replaces", "day_or"}
)  # the keys that Prefect knows
DEFAULT_ZONE = "UTC"
"""The zone that Prefect uses for a schedule without `timezone`."""
SHOWN = 3
"""Number of run times that are shown for each schedule."""


@dataclass(frozen=True)
class RunTimes:
    """The next run times of a schedule."""

    slug: str | None
    zone: str
    times: tuple[datetime, ...]
    """At most `SHOWN` times, in the zone."""
    warnings: tuple[str, ...]
    paused: bool = False
    """Whether the schedule does not run on the server, because a user or the file has paused it."""

    def lines(self) -> list[str]:
        """Returns the run times, or that there are none, and warnings as text."""
        times = ", ".join(f"{time:%a %Y-%m-%d %H:%M %Z}" for time in self.times)
        times = "paused, does not run" if self.paused else times
        return [f"{self.slug or 'schedule'} ({self.zone}): {times}", *(f"warning: {text}" for text in self.warnings)]


def compute_run_times(schedule: Mapping[str, Any], now: datetime) -> RunTimes:
    """Returns when a schedule of a `prefect.yaml` runs next.

    Args:
        schedule: `cron`, `interval` or `rrule`, and the optional keys of Prefect such as `timezone` and `slug`.
        now: The current time, with its zone.

    Raises:
        UserError: The schedule can't be read, never fires, or would not mean what it seems to; the message says what to
            write instead.
    """
    unknown = sorted(set(schedule) - KEYS)
    if unknown:
        close = find_similar_word(unknown[0], sorted(KEYS))
        hint = f"; did you mean {close}?" if close else f"; Prefect takes {', '.join(sorted(KEYS))}"
        raise UserError(f"unknown key {', '.join(unknown)}{hint}")
    given = [kind for kind in KINDS if schedule.get(kind) is not None]
    if len(given) != 1:
        raise UserError(f"got {' and '.join(given) or 'none'} of {', '.join(KINDS)}; expected exactly one")
    zone, warnings = _read_zone(schedule.get("timezone"))
    if given == ["cron"]:
        _check_cron(schedule["cron"])
    times = _compute_next_times(given[0], _parse(given[0], schedule, zone), now)
    if not times:
        raise UserError(f"{given[0]} {str(schedule[given[0]])!r} never fires; give one that has a next time")
    slug = schedule.get("slug")
    if slug is None:
        warnings.append("it has no slug, so the next deploy undoes a pause that was made in the UI")
    shown = tuple(time.astimezone(ZoneInfo(zone)) for time in times)
    return RunTimes(slug, zone, shown, tuple(warnings))


def _read_zone(name: Any) -> tuple[str, list[str]]:
    """Returns a schedule's zone, and warnings about it."""
    if name is None:
        return DEFAULT_ZONE, [f"it has no timezone, so its times are in {DEFAULT_ZONE}"]
    known = available_timezones()
    if not isinstance(name, str) or name not in known:
        close = find_similar_word(str(name), sorted(known)) or "Europe/Berlin or America/Los_Angeles"
        raise UserError(f"timezone {name!r} is not known; expected a name of the tz database such as {close}")
    zone = ZoneInfo(name)
    offsets = {datetime(2026, month, 15, tzinfo=zone).utcoffset() for month in (1, 4, 7, 10)}
    is_abbreviation = "/" not in name or name.startswith("Etc/")
    if is_abbreviation and len(offsets) == 1 and offsets != {timedelta(0)}:
        text = f"timezone {name} is a fixed distance from UTC, without summer time; for the local time of a place, "
        return name, [text + "use a name such as America/New_York"]
    return name, []


def _check_cron(cron: Any) -> None:
    fields = str(cron).split()
    if len(fields) == 1 and fields[0].startswith("@"):
        return
    if len(fields) != 5:
        raise UserError(
            f"cron {cron!r} has {len(fields)} fields, expected five: minute, hour, day of month, month, day of week, "
            f"such as '0 3 * * *'"
            + (
                " (a sixth field would be the second, and the schedule would fire many times)"
                if len(fields) > 5
                else ""
            )
        )


def _parse(kind: str, schedule: Mapping[str, Any], zone: str) -> Any:
    """Returns the schedule as Prefect's own type."""
    from prefect.server.schemas.schedules import CronSchedule, IntervalSchedule, RRuleSchedule
    from pydantic import ValidationError

    types = {"cron": CronSchedule, "interval": IntervalSchedule, "rrule": RRuleSchedule}
    extras = {"cron": ("day_or",), "interval": ("anchor_date",), "rrule": ()}[kind]
    values = {key: schedule[key] for key in (kind, *extras) if schedule.get(key) is not None}
    try:
        return types[kind](**values, timezone=zone)
    except ValidationError as error:
        reasons = "; ".join(str(fault["msg"]).removeprefix("Value error, ") for fault in error.errors())
        raise UserError(f"{kind} {str(schedule[kind])!r} can't be read: {reasons}") from None


def _compute_next_times(kind: str, schedule: Any, now: datetime) -> list[datetime]:
    try:
        times: list[datetime] = asyncio.run(schedule.get_dates(n=SHOWN, start=now))
    except ValueError as error:
        if kind == "cron":  # no run time within fifty years
            return []
        raise UserError(f"{kind} can't be used: {error}") from None
    return times
