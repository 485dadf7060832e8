"""`pixelpart completion`: scripts for bash and zsh, which call `pixelpart completion words ...` for the candidates.

It has to answer while somebody waits, so no torch here: VALUES repeats names of tables that need it.
"""

import argparse
import contextlib
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from pixelpart.bench import BENCHES
from pixelpart.bench import METHODS as BENCH_METHODS
from pixelpart.cli.arguments import HelpShown, Parser
from pixelpart.errors import UserError, choose
from pixelpart.experiments import EXPERIMENTS
from pixelpart.listing import find_folders
from pixelpart.recipes import RECIPES

SEARCH_SECONDS = 0.2  # for run folders
RUNS = ("RUN", "MODEL", "PATTERN", "RUN@EPOCH")  # arguments that are, or may be, run folders

SCRIPTS = {
    "bash": r"""_pixelpart() {
    local line=${COMP_LINE:0:COMP_POINT} words current
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    current=${words[-1]}
    mapfile -t COMPREPLY < <("$1" completion words "${words[@]:1}" 2>/dev/null)
    # readline replaces only what follows the last of COMP_WORDBREAKS, such as the colon of folder:photos
    COMPREPLY=("${COMPREPLY[@]#"${current%"${current##*[$COMP_WORDBREAKS]}"}"}")
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[:,=/] ]] && compopt -o nospace
}
complete -o default -F _pixelpart pixelpart""",
    "zsh": r"""#compdef pixelpart
_pixelpart() {
    local -a found
    found=("${(@f)$("${(Q)words[1]}" completion words "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    if [[ -z ${found[1]} ]]; then
        _files
        return
    fi
    compadd -S '' -- "${(@M)found:#*[:,=/]}"
    compadd -- "${(@)found:#*[:,=/]}"
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
compdef _pixelpart pixelpart""",
}

VALUES = {
    "--attacks": (
        "natural", "pgd20", "mma20", "autoattack", "autoattack-plus", "apgd", "apgd-ce", "apgd-dlr", "apgd-t", "fab",
        "fab-t", "square", "mm3", "apgd-l2", "apgd-ce-l2", "apgd-t-l2", "apgd-l1", "apgd-ce-l1", "apgd-t-l1",
        "adaptive-pgd20", "adaptive-mma20", "adaptive-in20",
    ),
    "--names": (
        "gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "gaussian_blur", "glass_blur", "defocus_blur",
        "motion_blur", "zoom_blur", "fog", "frost", "snow", "spatter", "contrast", "brightness", "saturate",
        "jpeg_compression", "pixelate", "elastic_transform",
    ),
    "--methods": tuple(BENCH_METHODS),
    "--model": ("resnet18", "preactresnet18", "wrn-34-10", "tiny-cnn", "vit-tiny", "vit-small", "deit-small"),
    "--data": ("shapes", "cifar10", "cifar100", "svhn", "tinyimagenet", "folder:"),
    "--augment": ("none", "crop-flip", "crop-flip-cutout", "crop-flip-cutmix", "idbh"),
    "--attack.name": ("pgd", "mma"),
    "--objective.name": ("at", "trades", "mart"),
    "--burn-in.objective": ("same", "at", "trades", "mart"),
    "--optim.name": ("sgd", "adamw"),
    "--optim.schedule": ("step", "cyclic", "cosine", "constant"),
    "--precision": ("fp32", "bf16"),
    "--search": ("auto", "fp32", "bf16"),
    "--mask.rule": ("none", "mean", "zscore", "quantile:", "soft", "official", "rank", "power:"),
    "--mask.source": (
        "gradcam", "xgradcam", "layercam", "rollout", "gradient-rollout", "gradient", "margin", "centre", "quadrant:",
        "blobs", "object",
    ),
    "--mask.control": ("none", "inverted", "shuffled", "flat", "blobs"),
    "--mask.target": ("predicted", "label"),
    "--mask.mean-over": ("image", "batch"),
    "--mask.layer": ("features",),
    "--engine": ("own", "reference"),
    "--split": ("test", "held-out"),
    "--on": ("local", "slurm"),
    "--scale": ("demo", "paper"),
    "--device": ("cpu", "cuda"),
    "--to": ("pt2", "onnx", "robustbench", "hub"),
}  # fmt: skip
LISTS = ("--attacks", "--names", "--methods")  # values that are joined by commas
POSITIONALS = {
    ("completion", "shell"): tuple(SCRIPTS),
    ("experiment", "name"): tuple(EXPERIMENTS),
    ("bench", "what"): tuple(BENCHES),
    ("data", "what"): ("get", "list", "verify"),
    ("data", "name"): VALUES["--data"],
}


def completion(argv: list[str]) -> None:
    """Prints a script that completes commands, options and runs: source <(pixelpart completion bash)."""
    if argv[:1] == ["words"]:
        print("\n".join(candidates(argv[1:])))
        return
    about = "To have it in every shell, add that line (with zsh for bash) to ~/.bashrc or ~/.zshrc."
    parser = Parser("completion", f"{completion.__doc__}\n\n{about}")
    parser.add_argument("shell", metavar="SHELL", help="bash or zsh")
    print(choose(SCRIPTS, parser.parse_all(argv).shell, "shell"))


def candidates(words: Sequence[str]) -> list[str]:
    """What the last word may become, given those before it; empty where the shell's file names are as good."""
    from pixelpart.cli.main import COMMANDS

    *before, current = words or [""]
    possible: Iterable[str]
    if not before:
        possible = ["--help", "--version"] if current.startswith("-") else COMMANDS
    elif before == ["train"]:
        possible = ["--help", "--list"] if current.startswith("-") else [*RECIPES, *run_folders(current)]
    elif before[0] not in COMMANDS or (parser := parser_of(before)) is None:
        possible = []
    else:
        possible = of_parser(parser, before, current)
    return sorted({word for word in possible if word.startswith(current)})


def parser_of(words: Sequence[str]) -> Parser | None:
    """The parser of a command; of `train` it depends on the recipe. None if that is unknown."""
    from pixelpart.cli.main import COMMANDS

    command, *rest = words
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            COMMANDS[command]([*rest[: command == "train"], "--help"])
    except HelpShown as shown:
        return shown.parser
    except UserError:
        pass
    return None


def of_parser(parser: Parser, before: Sequence[str], current: str) -> Iterable[str]:
    """Options, the values of an option, or what a positional argument may be."""
    options = parser._option_string_actions
    flag, equals, value = current.partition("=")
    if current.startswith("-") and not equals:
        return options
    if equals and flag in options:
        return [f"{flag}={word}" for word in values(options[flag], before, value)]
    command, *words = before
    positional = [action for action in parser._actions if not action.option_strings]
    waiting: argparse.Action | None = None  # an option whose value comes next
    for word in words[command == "train" :]:
        if word.startswith("--"):
            action = options.get(word)
            waiting = None if action is None or action.nargs == 0 else action
        elif waiting is None:
            positional = positional if positional and positional[0].nargs in ("+", "*") else positional[1:]
        elif waiting.nargs not in ("+", "*"):
            waiting = None
    if waiting is None and not positional:
        return options
    return values(waiting or positional[0], before, current)


def values(action: argparse.Action, before: Sequence[str], current: str) -> Iterable[str]:
    """The values of an option or an argument, as far as they are known."""
    flag = action.option_strings[-1] if action.option_strings else ""
    if flag == "--checkpoint":
        kept = (file.stem for word in before for file in Path(word).glob("checkpoints/*.safetensors"))
        return ["best", "last", *kept]
    if action.metavar in RUNS or flag == "--init-from":
        return run_folders(current)
    known = VALUES.get(flag, ()) if flag else POSITIONALS.get((before[0], action.dest), ())
    if flag in LISTS and "," in current:
        first = current.rpartition(",")[0]
        return [f"{first},{word}" for word in known if word not in first.split(",")]
    if current.startswith("folder:") and "folder:" in known:
        return [f"folder:{path}/" for path in Path().glob(f"{re.sub(r'[*?[]', '', current[7:])}*") if path.is_dir()]
    return known or action.choices or (("true", "false") if action.const == "true" else ())


def run_folders(current: str) -> list[str]:
    """The runs below the folder that has been typed so far."""
    folder = Path(current.rpartition("/")[0] or ("/" if current.startswith("/") else "."))
    return [str(path) for path in find_folders(folder, seconds=SEARCH_SECONDS)]
