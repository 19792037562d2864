"""Archives that look like wheels."""

import zipfile
from pathlib import Path


def write_wheel(path: Path, metadata: str) -> None:
    """Writes an archive with nothing but a file of metadata, whose name contains package and version."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(metadata, "Metadata-Version: 2.4\n")
