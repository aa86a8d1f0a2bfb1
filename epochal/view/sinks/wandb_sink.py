"""Weights & Biases: one run of a project for each lineage of the run, under an id that follows from both.

How far it has got, W&B says by the last step of the run that is resumed. Offline it does not know, so the rounds are
written again from the first on; W&B's server takes each step once.
"""

from collections.abc import Sequence
from typing import Any

from epochal.state.messages.evaluation_reports import Evaluation
from epochal.state.messages.history_rows import RoundFigures
from epochal.state.text.visible import visible
from epochal.view.sinks.sink import SinkFailed, place_of, plain_name, scalars_of


class WandbSink:
    """A `FigureSink` in a project of W&B. `WANDB_MODE`, `WANDB_DIR` and its other variables hold.

    Args:
        project: its name.
    """

    def __init__(self, project: str) -> None:
        self.name = f"wandb:{project}"
        self._project = project
        self._run: Any = None

    def open(self, run_id: str, lineage: str) -> int:
        import wandb

        name = plain_name(run_id, lineage)
        settings = wandb.Settings(
            console="off", silent=True, save_code=False, disable_git=True, x_disable_stats=True, x_disable_meta=True
        )
        try:
            self._run = wandb.init(
                project=self._project,
                id=name,
                name=name,
                group=visible(run_id),
                resume="allow",
                config={"run_id": visible(run_id), "lineage": lineage},
                settings=settings,
            )
        except (wandb.Error, OSError, ValueError) as error:
            raise SinkFailed(
                f"{self.name} cannot be opened: {error}; WANDB_API_KEY says who you are, and WANDB_MODE=offline writes "
                "to this machine alone"
            ) from error
        return 0 if self._run.offline else int(self._run.step)

    def write(self, rows: Sequence[RoundFigures], evaluations: Sequence[Evaluation] = ()) -> None:
        import wandb

        try:
            for row in rows:
                place = max(place_of(row), int(self._run.step))  # a row that is repeated has a later step
                self._run.log(scalars_of(row, evaluations if row is rows[-1] else ()), step=place)
        except (wandb.Error, OSError) as error:
            raise SinkFailed(f"{self.name} takes no figures: {error}") from error

    def close(self) -> None:
        if self._run is not None:
            run, self._run = self._run, None
            run.finish()
