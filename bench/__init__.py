"""Speed as ratios against the bare operation, measured side by side in one run."""
