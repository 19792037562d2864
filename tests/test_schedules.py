"""Schedules: those that never fire or fire at unexpected times are refused, and the others' next times are shown."""

from datetime import UTC, datetime

import pytest
from prefect.cli.deploy._models import RawScheduleConfig

from rl_training.errors import UserError
from rl_training.services.schedules import KEYS, compute_run_times

FRIDAY = datetime(2026, 3, 27, 12, 0, tzinfo=UTC)
NIGHTLY = {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "slug": "nightly"}


def test_the_keys_are_those_that_prefect_takes():
    assert set(RawScheduleConfig.model_fields) == KEYS
    assert RawScheduleConfig.model_config["extra"] == "forbid"


def test_the_next_three_times_are_in_the_zone_of_the_schedule():
    (line,) = compute_run_times(NIGHTLY, FRIDAY).lines()
    # In the night to 29 March clocks go from 02:00 to 03:00.
    assert line == (
        "nightly (Europe/Berlin): Sat 2026-03-28 02:30 CET, Sun 2026-03-29 03:30 CEST, Mon 2026-03-30 02:30 CEST"
    )


@pytest.mark.parametrize(
    ("schedule", "times"),
    [
        ({"interval": 86_400, "anchor_date": "2026-03-01T04:00:00+00:00"}, ["28 04:00", "29 04:00", "30 04:00"]),
        ({"rrule": "FREQ=WEEKLY;BYDAY=MO;BYHOUR=5"}, ["30 05:00", "06 05:00", "13 05:00"]),
        ({"cron": "@daily"}, ["28 00:00", "29 00:00", "30 00:00"]),
        ({"cron": "0 0 29 2 *"}, ["29 00:00", "29 00:00", "29 00:00"]),
    ],
)
def test_each_kind_of_schedule(schedule, times):
    found = compute_run_times({**schedule, "timezone": "UTC", "slug": "x"}, FRIDAY)
    assert [f"{time:%d %H:%M}" for time in found.times] == times
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"cron": "0 0 31 2 *"}, "never fires"),
        ({"rrule": "DTSTART:20200101T000000\nRRULE:FREQ=DAILY;COUNT=2"}, "never fires"),
        ({"cron": "0 3 * * * *"}, "has 6 fields, expected five.*fire many times"),
        ({"cron": "0 3 * *"}, "has 4 fields, expected five"),
        ({"cron": "61 3 * * *"}, "can't be read"),
        ({"cron": "R 3 * * *"}, "can't be read.*Random"),
        ({"cron": ""}, "has 0 fields"),
        ({"interval": 0}, "can't be read.*positive"),
        ({"interval": "soon"}, "can't be read"),
        ({}, "got none of cron, interval, rrule"),
        ({"cron": "0 3 * * *", "interval": 60}, "got cron and interval"),
        ({"crom": "0 3 * * *"}, "unknown key crom; did you mean cron"),
        ({"cron": "0 3 * * *", "max_scheduled_runs": 1}, "unknown key max_scheduled_runs; Prefect takes active"),
        ({"cron": "0 3 * * *", "timezone": "PST"}, "timezone 'PST' is not known.*Los_Angeles"),
        ({"cron": "0 3 * * *", "timezone": "+02:00"}, "timezone '\\+02:00' is not known.*Europe/Berlin"),
        ({"cron": "0 3 * * *", "timezone": "Europe/Pari"}, "Europe/Paris$"),
        ({"cron": "0 3 * * *", "timezone": 2}, "timezone 2 is not known"),
    ],
)
def test_what_is_no_schedule_is_refused_with_what_to_write(schedule, message):
    with pytest.raises(UserError, match=message):
        compute_run_times(schedule, FRIDAY)


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"timezone": "EST"}, "timezone EST is a fixed distance from UTC"),
        ({"timezone": "Etc/GMT+5"}, "timezone Etc/GMT+5 is a fixed distance from UTC"),
        ({"timezone": None}, "has no timezone, so its times are in UTC"),
        ({"slug": None}, "has no slug"),
    ],
)
def test_a_schedule_with_surprising_times_is_reported(changes, warning):
    (said,) = compute_run_times({**NIGHTLY, **changes}, FRIDAY).warnings
    assert warning in said


def test_zones_with_a_clock_of_their_own_give_no_warning():
    for zone in ("UTC", "Etc/UTC", "Asia/Tokyo", "EST5EDT"):
        assert compute_run_times({**NIGHTLY, "timezone": zone}, FRIDAY).warnings == ()
