"""When a deployment's schedule runs: refused where it would never fire, or not at the times that one reads in it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from rl_training.config.suggestions import nearest_word
from rl_training.errors import UserError

KINDS = ("cron", "interval", "rrule")
KEYS = frozenset(
    {*KINDS, "timezone", "anchor_date", "active", "parameters", "slug", "replaces", "day_or"}
)  # those of Prefect, and no others
DEFAULT_ZONE = "UTC"
"""What Prefect takes where a schedule names none."""
SHOWN = 3
"""Run times that are shown of each schedule."""


@dataclass(frozen=True)
class RunTimes:
    """The next times of a schedule."""

    slug: str | None
    zone: str
    times: tuple[datetime, ...]
    """At most `SHOWN`, in the zone."""
    warnings: tuple[str, ...]

    def lines(self) -> list[str]:
        """Returns them for people."""
        times = ", ".join(f"{time:%a %Y-%m-%d %H:%M %Z}" for time in self.times)
        return [f"{self.slug or 'schedule'} ({self.zone}): {times}", *(f"warning: {text}" for text in self.warnings)]


def run_times(schedule: Mapping[str, Any], now: datetime) -> RunTimes:
    """Returns when a schedule of a `prefect.yaml` runs next.

    Args:
        schedule: `cron`, `interval` or `rrule`, with `timezone`, `slug` and the rest of what Prefect takes.
        now: With its zone.

    Raises:
        UserError: It never fires, can't be read, or would not run when one thinks; the message says what to write.
    """
    unknown = sorted(set(schedule) - KEYS)
    if unknown:
        close = nearest_word(unknown[0], sorted(KEYS))
        hint = f"; did you mean {close}?" if close else f"; Prefect takes {', '.join(sorted(KEYS))}"
        raise UserError(f"unknown key {', '.join(unknown)}{hint}")
    given = [kind for kind in KINDS if schedule.get(kind) is not None]
    if len(given) != 1:
        raise UserError(f"got {' and '.join(given) or 'none'} of {', '.join(KINDS)}; expected exactly one")
    zone, warnings = _zone(schedule.get("timezone"))
    if given == ["cron"]:
        _check_cron(schedule["cron"])
    times = _times(given[0], _as_prefect_reads_it(given[0], schedule, zone), now)
    if not times:
        raise UserError(f"{given[0]} {str(schedule[given[0]])!r} never fires; give one that has a next time")
    slug = schedule.get("slug")
    if slug is None:
        warnings.append("it has no slug, so a pause made in the UI is undone by the next deploy")
    shown = tuple(time.astimezone(ZoneInfo(zone)) for time in times)
    return RunTimes(slug, zone, shown, tuple(warnings))


def _zone(name: Any) -> tuple[str, list[str]]:
    """Returns the zone, and what is odd about it."""
    if name is None:
        return DEFAULT_ZONE, [f"it names no timezone, so its times are in {DEFAULT_ZONE}"]
    known = available_timezones()
    if not isinstance(name, str) or name not in known:
        close = nearest_word(str(name), sorted(known)) or "Europe/Berlin or America/Los_Angeles"
        raise UserError(f"timezone {name!r} is not known; expected a name of the tz database such as {close}")
    zone = ZoneInfo(name)
    offsets = {datetime(2026, month, 15, tzinfo=zone).utcoffset() for month in (1, 4, 7, 10)}
    bare = "/" not in name or name.startswith("Etc/")
    if bare and len(offsets) == 1 and offsets != {timedelta(0)}:
        text = f"timezone {name} is a fixed distance from UTC, without summer time; a name such as "
        return name, [text + "America/New_York has the clock of a place"]
    return name, []


def _check_cron(cron: Any) -> None:
    fields = str(cron).split()
    if len(fields) == 1 and fields[0].startswith("@"):
        return
    if len(fields) != 5:
        raise UserError(
            f"cron {cron!r} has {len(fields)} fields, expected five: minute, hour, day of month, month, day of week, "
            f"such as '0 3 * * *'" + (" (a sixth would be the second, and fire many times)" if len(fields) > 5 else "")
        )


def _as_prefect_reads_it(kind: str, schedule: Mapping[str, Any], zone: str) -> Any:
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


def _times(kind: str, schedule: Any, now: datetime) -> list[datetime]:
    try:
        times: list[datetime] = asyncio.run(schedule.get_dates(n=SHOWN, start=now))
    except ValueError as error:
        if kind == "cron":  # no time within fifty years
            return []
        raise UserError(f"{kind} can't be used: {error}") from None
    return times
