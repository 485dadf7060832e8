"""`pixelpart check`."""

from pixelpart.cli.arguments import Parser, add_attack_settings, add_output, add_target, print_result, target_settings
from pixelpart.runtime.progress import Screen

STRICT = 3  # exit code for a suspicious model; 1 is a fault and 2 a user's mistake


def check(args: list[str]) -> int:
    """Tests whether a model is robust or only hides its gradients: five behaviours, with a verdict for each."""
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
    found = parser.parse_all(args)
    from pixelpart.evaluation.checks.behaviours import SUSPICIOUS
    from pixelpart.evaluation.checks.obfuscation import check as run_check

    screen = Screen(quiet=found.quiet)
    with screen.bars() as move:
        report = run_check(
            found.models[0],
            surrogate=found.surrogate,
            eps=found.eps,
            step_size=found.step_size,
            seed=found.seed,
            progress=move,
            **target_settings(found),
        )
    print_result(report, as_json=found.json)
    if report.kept is None:
        screen.say("this report is not stored; store it with --out FOLDER")
    return STRICT if found.strict and report.verdict == SUSPICIOUS else 0
