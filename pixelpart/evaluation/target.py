"""What is evaluated, and on what: a run, a file, a function's model or a module, with test images, on one device."""

import copy
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pixelpart import data as sets
from pixelpart.config import Config, data_label
from pixelpart.errors import UserError
from pixelpart.evaluation.archive import load_archive
from pixelpart.evaluation.checks import sanity
from pixelpart.evaluation.function import make_model
from pixelpart.evaluation.image_set import ImageSet
from pixelpart.runs import Facts, Run, config_of, load_model
from pixelpart.runtime.device import choose_device
from pixelpart.runtime.usercode import parse_name

Data = str | tuple[Tensor, Tensor]
Kind = Literal["run", "checkpoint", "archive", "function", "module"]

FILES: dict[str, Kind] = {".safetensors": "checkpoint", ".pt2": "archive"}
PICKLES = (".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth")
GIVEN = "given"  # the data set of images that came as tensors
CHOICES = "a run folder, a .safetensors checkpoint of pixelpart, a .pt2 archive of torch.export, or module:function"


@dataclass(frozen=True)
class Target:
    """A model, the pictures it is tried on, how an entry names the two, and the folder that keeps the results.

    `warnings` are about the model as it came, before it met any image.
    """

    model: nn.Module
    pictures: ImageSet
    tags: dict[str, Any]
    folder: Path | None
    warnings: tuple[str, ...] = ()
    config: Config | None = None  # of a run's model


def load_target(
    subject: Any,
    *,
    checkpoint: str = "best",
    data: Data | None = None,
    size: int = 0,
    skip_bad: bool = False,
    images: int | None = None,
    device: torch.device | str | None = None,
    root: str | Path | None = None,
    out: str | Path | None = None,
) -> Target:
    """What `evaluate` was given, as a Target; a caller's own model is left where it is.

    `subject` is a Run, an nn.Module, or the name of a run folder, a file or a function.
    """
    kind = _kind(subject)
    run = subject if isinstance(subject, Run) else Run(Path(subject)) if kind == "run" else None
    name = "a module" if kind == "module" else str(run.dir if run else subject)
    folder = _folder(out, run)
    if run is None and checkpoint != "best":
        raise UserError(f"checkpoint {checkpoint!r} is asked of runs alone, and {name} is none")
    config = run.config if run else config_of(Path(subject)) if kind == "checkpoint" else None
    if not isinstance(data, str) and (size or skip_bad):
        raise UserError("--size and --skip-bad need --data folder:PATH")
    if data is None:
        if config is None:
            known = ", ".join(sorted(sets.SETS))
            raise UserError(f"{name} brings no test images; give data (--data), one of {known}, or (images, labels)")
        data, size, skip_bad = config.dataset, config.data_options["size"], config.skip_bad
    elif isinstance(data, str):
        sets.use(data)  # the caller named it, so it may be code
        if config is not None and data.startswith("folder:"):
            size = size or config.size
    options: dict[str, Any] = {"size": size, "skip_bad": skip_bad}
    if config is not None and isinstance(data, str):
        _check_classes(data, config, options)
    x, y, named = _test_images(data, options, images=images, root=root)

    place = _place(subject, device)
    model: nn.Module
    facts: Facts = {}
    if run is not None:
        model, facts = run.load(checkpoint)
    elif config is not None:
        model, facts = load_model(Path(subject), config)
    elif kind == "archive":
        model = load_archive(Path(subject), device=place)
    else:
        model = subject if kind == "module" else make_model(subject, device=place)
    _check_dtype(model)

    tags = {
        "subject": None if kind == "module" or (run and folder == run.dir) else name,
        "checkpoint": checkpoint if run else None,
        "epoch": facts.get("epoch"),
        "weights": facts.get("weights", "raw"),
    }
    warnings = tuple(sanity.mode_warnings(model)) if kind in ("function", "module") else ()
    if any(tensor.device != place for tensor in chain(model.parameters(), model.buffers())):
        model = copy.deepcopy(model).to(place)
    return Target(model, ImageSet(x, y, place), tags | named, folder, warnings, config)


def _check_classes(data: str, config: Config, options: dict[str, Any]) -> None:
    """Labels of a folder are the places of its classes' names, so these have to be the ones that the model learned."""
    if not config.classes or not data.startswith("folder:"):
        return
    if (there := sets.find(data, **options).classes) != config.classes:
        named = " and ".join(", ".join(names) for names in (there, config.classes))
        raise UserError(f"{data} has other classes than the model learned: {named}")


def _kind(subject: Any) -> Kind:
    """What was named; a UserError tells the choices. Only a string is a function's name, and only if no file has it."""
    if isinstance(subject, Run):
        return "run"
    if isinstance(subject, nn.Module):
        return "module"
    if not isinstance(subject, str | Path):
        raise UserError(f"cannot evaluate a {type(subject).__name__}; give a Run, an nn.Module, or {CHOICES}")
    path = Path(subject)
    if path.is_dir():
        return "run"
    if isinstance(subject, str) and ":" in subject and not path.exists():
        parse_name(subject)
        return "function"
    if path.suffix in FILES:
        return FILES[path.suffix]
    if not path.exists():
        raise UserError(f"{path} is not a run folder: there is nothing of that name; give {CHOICES}")
    if path.suffix in PICKLES:
        raise UserError(
            f"{path} is not opened: a pickle runs whatever code lies in it; load it in a function of your own and give "
            "that, as module:function"
        )
    raise UserError(f"{path} is a file of another kind; give {CHOICES}")


def _folder(out: str | Path | None, run: Run | None) -> Path | None:
    """Where results go: a run's to its own folder unless told otherwise, and nothing else goes there."""
    home = run.dir if run else None
    if out is None or (home and Path(out).resolve() == home.resolve()):
        return home
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"cannot write results to {folder}: it is not a folder")
    if (folder / "config.json").exists():
        raise UserError(f"{folder} is a run folder and keeps that run's results alone; choose another out")
    return folder


def _place(subject: Any, device: torch.device | str | None) -> torch.device:
    """The device asked for; else where a caller's module is; else the best there is."""
    if device is None and isinstance(subject, nn.Module):
        for tensor in chain(subject.parameters(), subject.buffers()):
            return tensor.device
    return choose_device(device)


def _test_images(
    data: Data, options: dict[str, Any], *, images: int | None, root: str | Path | None
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    if isinstance(data, str):
        x, y = sets.load(data, split="test", root=root, **options)
        named = {"dataset": data_label(data, **options), "split": "test"}
    else:
        x, y = _pair(data)
        named = {"dataset": GIVEN, "split": GIVEN}
    sets.check_pixels(x)  # labels are checked once the model has said how many classes it has
    if images is not None and images > len(x):
        raise UserError(f"images {images} is more than the {len(x)} there are")
    if y.ndim != 1 or len(y) != len(x):
        raise UserError(f"labels have shape {tuple(y.shape)}; {len(x)} images need ({len(x)},)")
    return x[:images], y[:images], named


def _pair(data: Any) -> tuple[Tensor, Tensor]:
    try:
        x, y = data
        return torch.as_tensor(x), torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"data is a {type(data).__name__}; give the name of a set or a pair (images, labels)") from None


def _check_dtype(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise UserError(f"the model's weights are {kind} ({name}); fp32 decides: use model.float()")
