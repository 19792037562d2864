"""Training on several ranks: each rank's part, the orders of rank 0, and the processes that follow them."""
