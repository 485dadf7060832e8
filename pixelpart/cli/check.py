"""`pixelpart check`."""

from pixelpart.cli.arguments import Parser, add_attack_settings, add_output, add_target, print_result, target_settings
from pixelpart.runtime.progress import Screen

STRICT = 3  # exit code for a suspicious model; 1 is a fault and 2 a user's mistake


def check(argv: list[str]) -> int:
    """Tests whether a model hides its gradients, so that attacks fail: five behaviours, with a verdict for each."""
    parser = Parser("check", check.__doc__)
    add_target(parser, images="1000")
    parser.add_argument(
        "--surrogate",
        metavar="MODEL",
        help="another model for the same images, for the black-box attack (default: a small model, trained for this if "
        "the training set is small)",
    )
    add_attack_settings(parser, eps="smallest eps", step_size="step size at that eps; it grows with eps")
    parser.add_argument("--strict", action="store_true", help=f"exit with {STRICT} if the verdict is suspicious")
    add_output(parser, json="print the content of check.json")
    args = parser.parse_all(argv)
    from pixelpart.evaluation.checks.behaviours import SUSPICIOUS
    from pixelpart.evaluation.checks.obfuscation import check as run_check

    screen = Screen(quiet=args.quiet)
    with screen.bars() as move:
        report = run_check(
            args.models[0],
            surrogate=args.surrogate,
            eps=args.eps,
            step_size=args.step_size,
            seed=args.seed,
            progress=move,
            **target_settings(args),
        )
    print_result(report, as_json=args.json)
    if report.kept is None:
        screen.say("this report is not stored; store it with --out FOLDER")
    return STRICT if args.strict and report.verdict == SUSPICIOUS else 0
