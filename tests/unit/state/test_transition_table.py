"""A table of transitions: what it runs is what it draws."""

from enum import StrEnum

from epochal.state.transition_table import TransitionTable


class Light(StrEnum):
    RED = "Red"
    GREEN = "Green"
    BROKEN = "Broken"


TABLE = TransitionTable(
    Light, [("switched", Light.RED, Light.GREEN), ("switched", Light.GREEN, Light.RED), ("failed", "*", Light.BROKEN)]
)


def test_fire_leads_where_the_row_says() -> None:
    assert TABLE.fire(Light.RED, "switched") is Light.GREEN
    assert TABLE.fire(Light.BROKEN, "failed") is Light.BROKEN


def test_fire_without_a_row_leads_nowhere() -> None:
    assert TABLE.fire(Light.BROKEN, "switched") is None
    assert TABLE.fire(Light.RED, "repaired") is None


def test_conditions_stand_between_the_states_that_they_connect() -> None:
    table = TransitionTable(Light, [("switched", Light.RED, Light.GREEN, "time is over")])
    assert table.conditions() == [("Red", "Green", "time is over")]


def test_grid_shows_every_cell() -> None:
    assert TABLE.grid(["switched", "repaired"]).splitlines()[2:] == [
        "| switched | Green | Red | – |",
        "| repaired | – | – | – |",
    ]
