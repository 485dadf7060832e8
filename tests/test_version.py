"""The digest that is kept with every result tells apart the code of two commits, not two installations of one."""

import re
import shutil
from pathlib import Path

import pixelpart
from pixelpart.version import code_version, hash_sources


def test_the_digest_depends_on_the_names_and_bytes_of_the_sources_alone(tmp_path):
    package = Path(pixelpart.__file__).parent
    copy = shutil.copytree(package, tmp_path / "copy")
    digest = hash_sources(package)
    assert re.fullmatch(rf"{re.escape(pixelpart.__version__)}\+{digest[:8]}", code_version())
    (copy / "__pycache__").mkdir(exist_ok=True)
    (copy / "__pycache__" / "cached.pyc").write_bytes(b"bytes")
    assert hash_sources(copy) == digest
    kernel = copy / "kernels" / "conv64.cu"
    kernel.rename(kernel.with_name("conv65.cu"))
    renamed = hash_sources(copy)
    assert renamed != digest
    (copy / "losses.py").write_text((copy / "losses.py").read_text() + "\n")
    assert hash_sources(copy) not in (digest, renamed)
