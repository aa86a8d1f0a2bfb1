"""Results that are computed again: which are drawn, how they are judged, and what follows."""
