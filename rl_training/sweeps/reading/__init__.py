"""Checks the files of sweeps against their base configs, and describes what they may contain."""
