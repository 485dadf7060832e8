"""What is evaluated: a model, the test or held-out images, and the folder that keeps the results."""

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pixelpart import data as sets
from pixelpart.attacks.autoattack import default_slots
from pixelpart.config import Config, Size, data_label, height_width
from pixelpart.errors import UserError, choose, similar_path
from pixelpart.evaluation.archive import TrainedOn, load_archive
from pixelpart.evaluation.images import ImageSet, check_counts, mode_warnings
from pixelpart.runs import Facts, Run, config_of, load_model, read_facts
from pixelpart.runtime import usercode
from pixelpart.runtime.device import choose_device

Data = str | tuple[Tensor, Tensor]
Kind = Literal["run", "checkpoint", "archive", "function", "module"]

FILES: dict[str, Kind] = {".safetensors": "checkpoint", ".pt2": "archive"}
PICKLES = (".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth")
SPLITS = {"test": "test", "held-out": "train"}  # the split of the data set that holds these images
HELD_OUT = "held-out"
GIVEN = "given"  # `dataset` and `split` of images that were passed as tensors
CHOICES = "a run folder, a .safetensors checkpoint of pixelpart, a .pt2 archive of torch.export, or module:function"


@dataclass(frozen=True)
class Target:
    """A model, its images, the fields of an eval.json entry that name both, and the folder for results.

    `identity` is what kept results are looked up by, besides weights and images: the config hash of a run or
    checkpoint, the name that the user gave to another model, or None. `warnings` are about the model as it was passed.
    """

    model: nn.Module
    pictures: ImageSet
    tags: dict[str, Any]
    folder: Path | None
    identity: str | None = None
    warnings: tuple[str, ...] = ()
    config: Config | None = None  # of a run or checkpoint
    dataset: sets.DataSet | None = None  # None if the images were passed as tensors


def load_target(
    subject: Any,
    *,
    checkpoint: str = "best",
    split: str = "test",
    data: Data | None = None,
    size: Size = 0,
    skip_bad: bool = False,
    images: int | None = None,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    root: str | Path | None = None,
    out: str | Path | None = None,
    name: str | None = None,
    num_classes: int | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Target:
    """The arguments of `evaluate` as a Target; the caller's own model is not moved.

    `subject` is a Run, an nn.Module, or the name of a run folder, a file or a function; a function may require
    `num_classes`, by default that of the data set.
    """
    check_counts(images=images, batch_size=batch_size)
    kind, run = _identify(subject)
    shown = "a module" if kind == "module" else str(run.dir if run else subject)
    folder = _folder(out, run)
    if run is None and checkpoint != "best":
        raise UserError(f"checkpoint {checkpoint!r} needs a run folder; {shown} is not one")
    if name is not None and (kind in ("run", "checkpoint") or folder is None):
        reason = "needs out (--out FOLDER)" if folder is None else "is for a model that is not a run or checkpoint"
        raise UserError(f"name {name!r} {reason}")
    config = run.config if run else config_of(Path(subject)) if kind == "checkpoint" else None
    trained_on = _trained_on(subject, kind, config)
    data, options = _choose_data(data, config, trained_on, shown, size=size, skip_bad=skip_bad)
    choose(SPLITS, split, "split")
    if split == HELD_OUT:
        _check_held_out(shown, config, data, options)
    x, y, dataset, dataset_tags = _images(
        data, options, split=split, config=config, classes=trained_on.classes, root=root, say=say
    )
    if split == HELD_OUT and config is not None:
        path = run.find_checkpoint(checkpoint) if run else Path(subject)
        held = _held_out(len(x), config, trained=read_facts(path)["position"].get("images", 0))
        x, y = x[held], y[held]
    if images is not None and images > len(x):
        raise UserError(f"images {images} is more than the {len(x)} available")
    x, y = x[:images], y[:images]
    if (
        kind == "archive"
        and trained_on.size
        and x.shape[1:] != (shape := (trained_on.channels, *height_width(trained_on.size)))
    ):
        raise UserError(f"{shown} takes images of shape {shape}; these are {tuple(x.shape[1:])}")
    if config is not None and trained_on.size and tuple(x.shape[2:]) != height_width(trained_on.size):
        here, own = ("{}x{}".format(*shape) for shape in (x.shape[2:], height_width(trained_on.size)))
        say(f"images are {here} pixels; {shown} was trained on {own}")

    device = _device_of(subject, device)
    model: nn.Module
    facts: Facts = {}
    if run is not None:
        model, facts = run.load(checkpoint)
    elif config is not None:
        model, facts = load_model(Path(subject), config)
    elif kind == "archive":
        model = load_archive(Path(subject), device=device)
    else:
        classes = dataset.num_classes if dataset else num_classes
        model = subject if kind == "module" else make_model(subject, device=device, num_classes=classes)
    if config is not None and dataset is not None:
        _check_class_count(str(data), dataset, config)

    tags = {
        "subject": name or (None if kind == "module" or (run and folder == run.dir) else shown),
        "checkpoint": checkpoint if run else None,
        "epoch": facts.get("epoch"),
        "weights": facts.get("weights", "raw"),
    }
    warnings = tuple(mode_warnings(model)) if kind == "module" else ()
    if any(tensor.device != device for tensor in chain(model.parameters(), model.buffers())):
        model = copy.deepcopy(model).to(device)
    identity = f"config {config.hash()}" if config else name and f"name {name}"
    pictures = ImageSet(x, y, device, batch_size or default_slots(device))
    return Target(model, pictures, tags | dataset_tags, folder, identity, warnings, config, dataset)


def find_config(subject: Any, *, checkpoint: str = "best") -> Config | None:
    """The config of a run or a checkpoint file; None for other models. UserError if there is no such model."""
    kind, run = _identify(subject)
    if run:
        run.find_checkpoint(checkpoint)
        return run.config
    return config_of(Path(subject)) if kind == "checkpoint" else None


def make_model(name: str, *, device: torch.device, num_classes: int | None = None) -> nn.Module:
    """The nn.Module that the function returns; see `_arguments` for what it is called with."""
    maker = usercode.load_function(name)
    if isinstance(maker, nn.Module):
        return maker
    model = usercode.call(name, **_arguments(name, maker, device, num_classes))
    if not isinstance(model, nn.Module):
        raise UserError(f"{name} returned a {type(model).__name__}; it must return an nn.Module on [0,1] images")
    return model


def _arguments(name: str, maker: Any, device: torch.device, num_classes: int | None) -> dict[str, Any]:
    """`device` if it has such a parameter; `num_classes`, that of the data set, if it has it without a default."""
    try:
        signature = inspect.signature(maker)
    except (TypeError, ValueError):  # some builtins have no signature
        return {}
    known = signature.parameters
    arguments: dict[str, Any] = {"device": device} if "device" in known else {}
    if num_classes is not None and "num_classes" in known and known["num_classes"].default is inspect.Parameter.empty:
        arguments["num_classes"] = num_classes
    try:
        signature.bind(**arguments)
    except TypeError as error:
        where = "" if num_classes is not None else " of a data set given by name"
        raise UserError(f"{name} is called with at most device and num_classes{where}: {error}") from None
    return arguments


def _trained_on(subject: Any, kind: Kind, config: Config | None) -> TrainedOn:
    if config is None:
        return TrainedOn.of_archive(Path(subject)) if kind == "archive" else TrainedOn()
    known = sets.SETS.get(config.dataset)
    size = known.size if known else config.size
    return TrainedOn(sets.classes_of(config), size, config.channels or 3, config.background)


def _choose_data(
    data: Data | None, config: Config | None, trained_on: TrainedOn, shown: str, *, size: Size, skip_bad: bool
) -> tuple[Data, dict[str, Any]]:
    """The data that the caller gave, else those of the config, with the options of `data.find`."""
    if not isinstance(data, str) and (size or skip_bad):
        raise UserError("--size and --skip-bad need --data folder:PATH")
    if data is None:
        if config is None:
            known = ", ".join([*sorted(sets.SETS), "folder:PATH", "module:function"])
            raise UserError(f"{shown} has no data set of its own; give --data, one of {known}, or (images, labels)")
        return config.dataset, config.data_options
    if not isinstance(data, str):
        return data, {}
    sets.use(data)  # named by the caller, so it may be user code
    options: dict[str, Any] = {"size": size, "skip_bad": skip_bad}
    if data.startswith("folder:"):
        options["size"] = size or trained_on.size
        options |= {"background": trained_on.background, "channels": trained_on.channels}
    return data, options


def _same_folder(data: str, other: str) -> bool:
    """Whether both name the same folder, possibly by different paths."""
    a, b = (Path(name.removeprefix("folder:")).expanduser().resolve() for name in (data, other))
    return other.startswith("folder:") and a == b


def _check_held_out(shown: str, config: Config | None, data: Data, options: dict[str, Any]) -> None:
    """A UserError unless these are the data of a run that held images out."""
    if config is None:
        raise UserError(f"{shown} held out no images: split {HELD_OUT!r} needs a run or a checkpoint of one")
    if not config.holdout:
        raise UserError(f"{shown} held out no images: its config has holdout 0")
    if not isinstance(data, str) or data_label(data, **options) != config.data_label:
        raise UserError(f"the held-out images of {shown} are of {config.data_label}; omit data (--data)")


def _identify(subject: Any) -> tuple[Kind, Run | None]:
    """What the subject is, and the run. Only a string can name a function, and only if no file has that name."""
    if isinstance(subject, Run):
        return "run", subject
    if isinstance(subject, nn.Module):
        return "module", None
    if not isinstance(subject, str | Path):
        raise UserError(f"cannot evaluate a {type(subject).__name__}; give a Run, an nn.Module, or {CHOICES}")
    path = Path(subject)
    if path.is_dir():
        return "run", Run(path)
    if isinstance(subject, str) and ":" in subject and not path.exists():
        usercode.parse_name(subject)
        return "function", None
    if path.suffix in FILES:
        return FILES[path.suffix], None
    if not path.exists():
        raise UserError(f"{path} is not a run folder: it does not exist; {similar_path(path)}give {CHOICES}")
    if path.suffix in PICKLES:
        raise UserError(
            f"{path} is a pickle file, which can run code when loaded; give a module:function of yours that loads it"
        )
    raise UserError(f"{path} is not a kind of file that can be evaluated; give {CHOICES}")


def _folder(out: str | Path | None, run: Run | None) -> Path | None:
    """The folder for results: `out`, or the run's own; another run's folder is a UserError."""
    home = run.dir if run else None
    if out is None or (home and Path(out).resolve() == home.resolve()):
        return home
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"cannot write results to {folder}: it is not a folder")
    if (folder / "config.json").exists():
        raise UserError(f"{folder} is a run folder and keeps only that run's results; choose another out")
    return folder


def _device_of(subject: Any, device: torch.device | str | None) -> torch.device:
    """The requested device; else that of the caller's module; else the best available."""
    if device is None and isinstance(subject, nn.Module):
        for tensor in chain(subject.parameters(), subject.buffers()):
            return tensor.device
    return choose_device(device)


def _images(
    data: Data,
    options: dict[str, Any],
    *,
    split: str,
    config: Config | None,
    classes: tuple[str, ...],
    root: str | Path | None,
    say: Callable[[str], None],
) -> tuple[Tensor, Tensor, sets.DataSet | None, dict[str, Any]]:
    """The images with their labels, their data set, and the fields of an entry that name them."""
    if isinstance(data, str):
        dataset = sets.find(data, **options, classes=classes if data.startswith("folder:") else ())
        if classes and data in sets.SETS and dataset.classes != classes:
            pairs = enumerate(zip_longest(dataset.classes, classes, fillvalue="none"))
            label, theirs, ours = next((label, a, b) for label, (a, b) in pairs if a != b)
            raise UserError(f"label {label} of {data} is {theirs!r}, the model's is {ours!r}")
        if dataset.splits_off_test and not (config and _same_folder(data, config.dataset)):
            say(
                f"{dataset.counts['test']} of {sum(dataset.counts.values())} pictures: the held-out part; if none was "
                f"trained on, put them into {Path(data.removeprefix('folder:'), 'test')} to use all"
            )
        x, y = dataset.load(SPLITS[split], root)
        tags = {"dataset": data_label(data, **options), "split": split}
    else:
        x, y = _pair(data)
        dataset, tags = None, {"dataset": GIVEN, "split": GIVEN}
    sets.check_pixels(x)  # labels are checked once the number of classes is known
    if y.ndim != 1 or len(y) != len(x):
        raise UserError(f"labels have shape {tuple(y.shape)}; {len(x)} images need ({len(x)},)")
    return x, y, dataset, tags


def _held_out(n: int, config: Config, *, trained: int) -> Tensor:
    """The numbers of the images that the run held out; UserError if images were added or deleted since then."""
    if trained and trained + config.holdout != n:  # unknown in old checkpoints
        raise UserError(
            f"{config.data_label} now has {n} training images, it had {trained + config.holdout} when the run was "
            "trained, so its held-out images cannot be found again; use --split test"
        )
    return sets.split_holdout(n, config.holdout, config.split_seed)[1]


def _pair(data: Any) -> tuple[Tensor, Tensor]:
    try:
        x, y = data
        return torch.as_tensor(x), torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(
            f"data is a {type(data).__name__}; give the name of a data set or a pair (images, labels)"
        ) from None


def _check_class_count(name: str, dataset: sets.DataSet, config: Config) -> None:
    """A UserError if a data set has more classes than a run's model."""
    classes = len(sets.classes_of(config)) or config.num_classes  # 0 in old runs
    if classes and dataset.num_classes > classes:
        raise UserError(f"{name} has {dataset.num_classes} classes, the model {classes}")
