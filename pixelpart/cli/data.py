"""`pixelpart data`."""

import json

from pixelpart.cli.arguments import Parser, add_data_root, add_folder_options
from pixelpart.errors import UserError, unknown
from pixelpart.runtime.progress import Screen

MOST_CLASSES = 20  # that are listed
SPLITS = {"train": "to train on", "test": "to test on"}


def data(argv: list[str]) -> None:
    """Downloads, lists and verifies data sets: data get NAME | data list | data verify NAME."""
    parser = Parser("data", data.__doc__)
    parser.add_argument("what", metavar="get|list|verify", help="download a data set, list all, or read and check one")
    parser.add_argument("name", metavar="NAME", nargs="?", help="get, verify: data set, folder:PATH or module:function")
    add_folder_options(parser)
    add_data_root(parser)
    parser.add_argument("--json", action="store_true", help="print a list of JSON objects")
    args = parser.parse_all(argv)
    if args.what not in (verbs := ("get", "list", "verify")):
        raise unknown("data command", args.what, verbs)
    if (args.name is None) != (args.what == "list"):
        raise UserError("write `data list`, `data get NAME` or `data verify NAME`")
    from dataclasses import asdict

    from pixelpart import data as sets

    if args.what == "list":
        rows = sets.listing(root=args.data_root)
    else:
        name, options = sets.use(args.name), {"size": args.size, "skip_bad": args.skip_bad}
        job = sets.verify if args.what == "verify" else sets.get
        with Screen().bars("images" if sets.find(name, **options).decodes else "B") as move:
            rows = [job(name, root=args.data_root, progress=move, **options)]
    if args.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    for row in rows:
        source = f"; from {row.source}" if row.source else ""
        about = f" ({row.about}{source})" if args.what == "list" else ""
        skipped = f", {row.skipped} unreadable files left out" if row.skipped else ""
        size = f"{row.images:>7} images {row.bytes / 1e6:>8.1f} MB"
        print(f"{row.name:<12} {row.status:<10} {size}{skipped}  {row.where}{about}")
        for file in row.skipped_files:
            print(f"  left out: {file}")
        for label, counts in list(row.classes.items())[:MOST_CLASSES]:
            print(f"  {label}: {', '.join(f'{n:,} {SPLITS[split]}' for split, n in counts.items())}")
        if (more := len(row.classes) - MOST_CLASSES) > 0:
            print(f"  and {more} more classes")
