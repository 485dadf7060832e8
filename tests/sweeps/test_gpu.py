from pathlib import Path

import pytest

from compiled import run_untyped


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_compiled_jobs():
    run_untyped(Path(__file__).with_name("compiled_jobs.py"), "gpu")
