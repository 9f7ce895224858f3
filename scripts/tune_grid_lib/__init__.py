"""What scripts/tune_grid runs."""
