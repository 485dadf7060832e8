"""Under pytest the shapes in signatures are checked at every call, in the rooms that work on tensors.

models/ is left out, since torch.fx sends its own objects through the networks, and so are tests of compiled code, which
run in a process of their own (PIXELPART_TYPES=0).
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small tensors: a second thread costs more; for subprocesses too

import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook

CHECKED = ["pixelpart.losses", "pixelpart.masks", "pixelpart.attacks", "pixelpart.objectives", "pixelpart.data.augment"]

if os.environ.get("PIXELPART_TYPES", "1") == "1":
    install_import_hook(CHECKED, "beartype.beartype")

torch.set_num_threads(1)
settings.register_profile("pixelpart", deadline=None)
settings.load_profile("pixelpart")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
