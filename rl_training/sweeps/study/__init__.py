"""The study database: the rounds of sweeps, and which process may write to which sweep."""
