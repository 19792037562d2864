"""Makes files and folders that only their owner may read, whatever the umask of the process is.

The umask itself does not change, because environments and callbacks in this process may write files for others.
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
    """Makes an empty file that only its owner may read, if it is missing.

    Raises:
        OSError: The file can't be made.
    """
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, FILE_MODE))


def tighten(path: Path) -> None:
    """Removes other users' access to a file or folder of this user; links and other users' files stay unchanged."""
    with suppress(OSError):  # it is missing, or the file system has no permissions
        status = path.lstat()
        if not stat.S_ISLNK(status.st_mode) and status.st_uid == os.geteuid() and status.st_mode & OTHERS:
            path.chmod(stat.S_IMODE(status.st_mode) & ~OTHERS)
