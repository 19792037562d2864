"""Goal-conditioned environments: where goals stand in observations, and what a transition gives for another goal."""
