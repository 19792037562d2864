"""A plug-in module whose own import fails."""

import a_package_that_is_not_installed  # type: ignore[import-not-found]  # noqa: F401
