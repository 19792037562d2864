"""Several processes that learn together: their shares of the environments, and what they exchange."""
