"""Under pytest the shapes in signatures are checked at every call, in the rooms that work on tensors.

models/ is left out, since torch.fx sends its own objects through the networks, and so are tests of compiled code, which
run in a process of their own (PIXELPART_TYPES=0).
"""

import os
import shutil

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small tensors: a second thread costs more; for subprocesses too

import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-quic"
)
CHECKED = ["pixelpart.losses", "pixelpart.masks", "pixelpart.attacks", "pixelpart.objectives", "pixelpart.data.augment"]

if os.environ.get("PIXELPART_TYPES", "1") == "1":
    install_import_hook(CHECKED, "beartype.beartype")

torch.set_num_threads(1)
settings.register_profile("pixelpart", deadline=None)
settings.load_profile("pixelpart")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    """Headless Chromium, driven by selenium."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install -e '.[dev]'")
    if not CHROMIUM or not DRIVER:
        pytest.skip("needs Chromium and chromedriver: make browser")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()
