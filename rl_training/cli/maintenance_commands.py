"""The commands that keep an installation in order: `clean`, `migrate`, `backup` and `restore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rl_training.cli.options import Json
from rl_training.cli.output import confirm, result_stream, write_result

OlderThan = Annotated[
    str,
    Parameter(
        allow_leading_hyphen=True,  # so that -5d is told to be no age
        help="Only what nobody has used for so long, or was deleted so long ago: 30d, 12h.",
    ),
]
DryRun = Annotated[bool, Parameter(help="Show what would be removed, and remove nothing.")]
BackupFolder = Annotated[Path, Parameter(help="The folder of the backup.")]
Yes = Annotated[bool, Parameter(help="Do not ask.")]


def clean(*, older_than: OlderThan, dry_run: DryRun = False, yes: Yes = False, json: Json = False) -> int:
    """Remove what nothing needs any more: directories of complete runs, deleted runs, old flow runs."""
    with result_stream() as out:
        from rl_training.maintenance.ages import read_age
        from rl_training.maintenance.clean import find_removable, remove_items

        found = find_removable(read_age(older_than))
        if dry_run or not found.items:
            write_result(out, found.to_dict(), found.lines(), as_json=json)
            return 0
        question = f"Remove {len(found.items)} things for good?"
        if not yes and not confirm("\n".join(found.lines()), question, "use --yes to remove all of it"):
            return 0
        result = remove_items(found)
        write_result(out, result.to_dict(), result.lines(), as_json=json)
        return 0


def migrate(*, json: Json = False) -> int:
    """Copy the embedded MLflow store with all runs and models to the server that MLFLOW_TRACKING_URI names."""
    with result_stream() as out:
        from rl_training.maintenance.migrate import migrate as run_migration

        result = run_migration()
        write_result(out, result.to_dict(), result.lines(), as_json=json)
        return 0


def backup(folder: BackupFolder, *, json: Json = False) -> int:
    """Back up both servers' databases and MLflow's artifacts to a new folder, while the servers run."""
    with result_stream() as out:
        from rl_training.maintenance.backup import back_up

        result = back_up(folder)
        write_result(out, result.to_dict(), result.lines(), as_json=json)
        return 0


def restore(folder: BackupFolder, *, json: Json = False) -> int:
    """Restore a backup to new databases and an empty folder, before the servers start."""
    with result_stream() as out:
        from rl_training.maintenance.backup import restore as run_restore

        result = run_restore(folder)
        write_result(out, result.to_dict(), result.lines(), as_json=json)
        return 0
