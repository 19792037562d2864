"""The tables of the study database."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, ForeignKey, Integer, MetaData, String, Table, Text

METADATA = MetaData()

SWEEPS = Table(
    "rl_training_sweeps",
    METADATA,
    Column("uid", String(32), primary_key=True),
    Column("digest", String(64), nullable=False, index=True),
    Column("name", Text, nullable=False),
    Column("begun", Float, nullable=False),
    Column("finished", Boolean, nullable=False),
    Column("holder", String(32)),
    Column("holder_host", Text),
    Column("holder_pid", Integer),
    Column("holder_created", Float),
    Column("held_since", Float),
    Column("renewed", Float),
)
"""A row for each sweep, with the lease of the process that may write to it. Times are those of the database's clock, in
seconds since 1970, except `holder_created`, the start of the holder's process by the clock of its host."""

STEPS = Table(
    "rl_training_steps",
    METADATA,
    Column("sweep_uid", String(32), ForeignKey(SWEEPS.c.uid), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("step", Text, nullable=False),
)
"""A row for each step of each round; `step` is JSON of `rl_training.sweeps.plan.Step`."""

RUNS = Table(
    "rl_training_runs",
    METADATA,
    Column("sweep_uid", String(32), ForeignKey(SWEEPS.c.uid), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("seed", BigInteger, primary_key=True),
    Column("record", Text, nullable=False),
)
"""A row for each run of a step that has ended; `record` is JSON of `rl_training.sweeps.plan.RunRecord`."""
