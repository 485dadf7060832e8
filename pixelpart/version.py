"""Which code runs: the version, and a digest of the package's sources that tells apart the commits between versions."""

import hashlib
from functools import cache
from pathlib import Path

from pixelpart import __version__


@cache
def code_version() -> str:
    """As in `0.1.0+1a2b3c4d`."""
    return f"{__version__}+{hash_sources(Path(__file__).parent)[:8]}"


def hash_sources(package: Path) -> str:
    """A hash of the names and bytes of all source files in a folder: equal wherever they are installed."""
    digest = hashlib.sha256()
    for path in sorted(path for path in package.rglob("*") if path.suffix in (".py", ".cu", ".cuh")):
        source = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()} {len(source)}\n".encode() + source)
    return digest.hexdigest()
