"""Speed as ratios against the bare operation, both measured in one run."""
