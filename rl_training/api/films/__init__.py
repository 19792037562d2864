"""Films of episodes: for the page of a run, for a user, and in a window."""
