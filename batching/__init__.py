"""From samples to what a trainer takes. Knows no trainer."""
