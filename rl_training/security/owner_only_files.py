"""Files and folders that nobody but their owner may read, whatever the process's umask is.

The umask itself stays as it is: environments and callbacks in this process may write files for others.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

OTHERS = stat.S_IRWXG | stat.S_IRWXO
FOLDER_MODE = 0o700
FILE_MODE = 0o600


def make_file(path: Path) -> None:
    """Makes an empty file for its owner alone where there is none.

    Raises:
        OSError: It can't be made.
    """
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, FILE_MODE))


def tighten(path: Path) -> None:
    """Takes others' access to a file or folder of this user; links and what is another user's stay as they are."""
    with suppress(OSError):  # nothing is there, or the file system has no permissions
        status = path.lstat()
        if not stat.S_ISLNK(status.st_mode) and status.st_uid == os.geteuid() and status.st_mode & OTHERS:
            path.chmod(stat.S_IMODE(status.st_mode) & ~OTHERS)
