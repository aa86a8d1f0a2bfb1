"""Text from other machines, for all programs (`state/text/visible.py`)."""

from epochal.state.text.visible import visible as visible
