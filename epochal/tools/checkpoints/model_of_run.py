"""Opens the model of a run for commands that compute with its checkpoints on this machine."""

from dataclasses import replace

from epochal.runtime.hub import HUB_HOST
from epochal.runtime.permissions import Permissions
from epochal.state.config.model_table import ModelSpec
from epochal.state.errors import InvalidInput
from epochal.trainers.architectures import ARCHITECTURES, NUMPY, open_model
from epochal.trainers.learner import Model
from epochal.trainers.packages import check_may_open
from epochal.trainers.torch.torch_options import DEFAULT_TORCH_OPTIONS, TorchOptions


def model_of_run(spec: ModelSpec, torch: TorchOptions | None, permissions: Permissions) -> Model:
    """Return the model.

    Args:
        spec: the run's, complete.
        torch: how a model of torch computes; None for the defaults.
        permissions: what the run's documents may use of this machine.

    Raises:
        InvalidInput: options of torch are given for another model, or a package is not allowed.
        Unsupported: this version does not compute the architecture, or not with what is installed.
    """
    entry = ARCHITECTURES.get(spec.architecture)
    if torch is not None and entry is not None and entry.trainer == NUMPY:
        raise InvalidInput(f"--device and --precision go with models of torch, not with {spec.architecture.value}")
    check_may_open(spec, permissions)
    lends_token = permissions.lends_credentials(HUB_HOST)
    return open_model(spec, options=replace(torch or DEFAULT_TORCH_OPTIONS, lends_token=lends_token))
