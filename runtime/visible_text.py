"""Text from other machines, for all programs (`state/visible_text.py`)."""

from epochal.state.visible_text import visible as visible
