"""Names of data that are in no table: `folder:PATH@64`, and `module:function`. No torch in here: `--help` is quick."""

import re
from dataclasses import dataclass

from pixelpart.errors import UserError

FOLDER = re.compile(r"folder:(?P<path>.+?)(?:@(?P<size>\d{1,5}))?(?P<skip>\+skip-bad)?")
SKIP_BAD = "+skip-bad"
PICTURES = ("tinyimagenet",)  # the sets of the table that are decoded file by file
SMALLEST, LARGEST = 8, 1024


@dataclass(frozen=True)
class FolderName:
    """Pictures in folders by class, brought to size x size pixels; whether files that cannot be used are left out."""

    path: str
    size: int
    skip_bad: bool = False

    def __str__(self) -> str:
        return f"folder:{self.path}@{self.size}{SKIP_BAD if self.skip_bad else ''}"


def parse_folder(name: str) -> FolderName | None:
    """What `folder:PATH@SIZE` says, with `+skip-bad` behind it or without; None for a name of another kind."""
    if not name.startswith("folder:"):
        return None
    match = FOLDER.fullmatch(name)
    if match is None or not match["size"]:
        raise UserError(
            f"{name!r} does not tell the pictures' size; write folder:PATH@64, for 64x64 pixels, or give --size 64 "
            "beside folder:PATH"
        )
    if not SMALLEST <= int(match["size"]) <= LARGEST:
        raise UserError(f"{name!r}: pictures of {match['size']} pixels a side; choose {SMALLEST} to {LARGEST}")
    return FolderName(match["path"], int(match["size"]), match["skip"] is not None)


def is_code(name: str) -> bool:
    """Whether the name is of the user's own code."""
    return ":" in name and not name.startswith("folder:")


def with_options(name: str, *, size: int | None = None, skip_bad: bool = False) -> str:
    """`folder:PATH` with what --size and --skip-bad add; of other sets, pictures alone can be skipped."""
    if size is None and not skip_bad:
        return name
    match, plain = FOLDER.fullmatch(name), name.removesuffix(SKIP_BAD)
    if plain in PICTURES and size is None:
        return plain + SKIP_BAD
    if match is None:
        told = "--size is for folder:PATH" if size is not None else f"--skip-bad is for folder:PATH and {PICTURES[0]}"
        raise UserError(f"{told}, not for {name!r}")
    if size is not None and match["size"] and int(match["size"]) != size:
        raise UserError(f"{name} has a size already, so --size {size} is one too many")
    pixels = f"@{match['size'] or size}" if match["size"] or size is not None else ""
    return f"folder:{match['path']}{pixels}{SKIP_BAD if skip_bad or match['skip'] else ''}"
