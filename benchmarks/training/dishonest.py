"""Members that train badly: what they cost the model, beside the same run without the bounds on a member's weight.

Ten real clients and a real coordinator in one process, in virtual time, train the embedded model on Python's standard
library. The dishonest ones train like the others and change what they publish.
"""

import logging

from benchmarks.figures import Figure
from benchmarks.training.quality_text import library_text
from tests.support.drive.dishonest_run import (
    FLIPPED,
    GREEDY,
    HONEST,
    LONG,
    LONG_AND_FLIPPED,
    WITHOUT_BOUNDS,
    dishonest_state,
    play,
)
from tests.support.simulate.virtual_time import run_virtually

ROUNDS = 40
BATCHES = 160
"""Samples of a round: two for each local step of each client."""
SEEDS = (7, 8)
TARGET = 1.05
"""Most that an attack may cost: the held-out loss as a multiple of the honest run's."""
WITHOUT = "the same without max_share and norm_limit"


def measure() -> list[Figure]:
    """Measure every attack, with each seed."""
    logging.disable(logging.WARNING)  # that members rest
    text, figures = library_text(), list[Figure]()
    bounded, unbounded = dishonest_state(ROUNDS, BATCHES), dishonest_state(ROUNDS, BATCHES, **WITHOUT_BOUNDS)
    for seed in SEEDS:
        target = ""
        for attack in (HONEST, FLIPPED, LONG, LONG_AND_FLIPPED, GREEDY):
            loss, without = (run_virtually(play(attack, state, text, seed)).loss for state in (bounded, unbounded))
            name = f"held-out loss, {attack.name}, seed {seed}"
            figures.append(Figure(name, loss, "nats", target, without, WITHOUT, 3))
            target = target or f"≤ {TARGET * loss:.3f}"
    return figures
