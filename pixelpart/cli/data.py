"""`pixelpart data`."""

import json
from pathlib import Path

from pixelpart.cli.arguments import add_folder_options
from pixelpart.cli.flags import Parser
from pixelpart.errors import UserError
from pixelpart.runtime.progress import Screen


def data(args: list[str]) -> None:
    """Fetches, lists and verifies data sets: data get NAME | data list | data verify NAME."""
    parser = Parser(prog="pixelpart data", description=data.__doc__)
    parser.add_argument("what", choices=("get", "list", "verify"))
    parser.add_argument("name", nargs="?", help="data set, folder:PATH or module:function, for get and verify")
    add_folder_options(parser)
    parser.add_argument("--data-root", type=Path, help="where data sets live ($PIXELPART_DATA or ~/.cache/pixelpart)")
    parser.add_argument("--json", action="store_true")
    found = parser.parse_all(args)
    if (found.name is None) != (found.what == "list"):
        raise UserError("say `data list`, `data get NAME` or `data verify NAME`")
    from dataclasses import asdict

    from pixelpart import data as sets

    if found.what == "list":
        rows = sets.listing(root=found.data_root)
    else:
        name, options = sets.use(found.name), {"size": found.size, "skip_bad": found.skip_bad}
        job = sets.verify if found.what == "verify" else sets.get
        unit = "images" if sets.find(name, **options).decodes else "B"
        with Screen().bars(unit) as move:
            rows = [
                job(
                    name,
                    root=found.data_root,
                    progress=lambda done, total, what: move(what, done, total, ""),
                    **options,
                )
            ]
    if found.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        for row in rows:
            about = f" ({row.about}{f'; from {row.source}' if row.source else ''})" if found.what == "list" else ""
            size = f"{row.images:>7} images {row.bytes / 1e6:>8.1f} MB"
            bad = f", {row.skipped} bad left out" if row.skipped else ""
            print(f"{row.name:<12} {row.status:<10} {size}{bad}  {row.where}{about}")
