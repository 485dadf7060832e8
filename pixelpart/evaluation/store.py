"""Results on disk: eval.json with one entry per attack; under eval/ per-sample flags of each, and labels per image set.

A result is reused only for the same `ResultKey`, and only if entry and flags pass their checksums. Results of
corruptions are kept the same way: `ResultStore(target, file="corruptions.json")`, with a key whose `attack` describes
the corruption.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pixelpart.errors import UserError
from pixelpart.evaluation.images import MODE_WARNING, ImageSet
from pixelpart.evaluation.partial import PartialResult, agree
from pixelpart.evaluation.results import Entry, Outcome, hash_json, read_entries, with_checksum
from pixelpart.evaluation.statistics import FlagArray, wilson
from pixelpart.evaluation.target import Target
from pixelpart.files import atomic_write, exclusive_lock, npy_bytes
from pixelpart.runs import EVAL_SCHEMA
from pixelpart.runtime.device import machine
from pixelpart.runtime.world import World
from pixelpart.types import Logits
from pixelpart.version import code_version

ATTACKS_VERSION = 1  # raised when a change of the code changes outcomes; test_version.py fails until that is decided

# An entry that agrees with an older one in these fields replaces it.
REPLACED_IF_EQUAL = ("attack", "subject", "checkpoint", "dataset", "split", "n", "eps", "settings", "seed", "precision")


NOT_STORED = "these results are not stored; --out FOLDER stores them (with --name NAME if MODEL is not a checkpoint)"


@dataclass(frozen=True)
class ResultKey:
    """All that a kept result depends on.

    `model` is the config hash of a run or checkpoint, or the name that the user gave to another model. `probe` is made
    of logits: it is compared as numbers, since the last bits differ between machines, and is no part of the digest.
    """

    model: str
    weights: str
    images: str
    probe: tuple[float, ...]
    attack: Mapping[str, Any] = field(default_factory=dict)  # its kind and all its settings, with the seed
    version: int = ATTACKS_VERSION

    @classmethod
    def of(cls, model: nn.Module, target: Target, probe: Logits) -> "ResultKey":
        """The key for a model and its images, without an attack yet."""
        images = hash_images(target.pictures)
        return cls(target.identity or "", hash_weights(model), images, tuple(signature(probe)))

    def digest(self) -> str:
        facts = dataclasses.asdict(self)
        del facts["probe"]
        return hash_json(facts)[:32]


class ResultStore:
    """The kept results of one target, in its folder; without a folder nothing is found or written.

    Only the process with `writes` changes files.
    """

    def __init__(self, target: Target, *, file: str = "eval.json", writes: bool = True) -> None:
        if target.folder and not target.identity:
            raise UserError("results of a model that is not a run are kept under a name; give name (--name) with out")
        self.target, self.folder, self.file, self.writes = target, target.folder, file, writes
        self.entries = read_entries(self.folder, file) if self.folder else []
        self.code = code_version()  # read before the attacks run: the files may change meanwhile

    def find(self, key: ResultKey, attack: str) -> Outcome | None:
        """The kept result, or None. If it was kept under another name (best and last may be one model), adds an entry.

        Warnings about how the model was passed in come from this call, all others from the entry.
        """
        for entry in self.entries:
            flags = read_flags(self.folder, entry) if self.folder and entry.get("key") == key.digest() else None
            if flags is not None and agree(entry.get("probe", []), key.probe):
                self._write_labels(key.images)  # an older version kept none
                kept = [warning for warning in entry.get("warnings", []) if warning != MODE_WARNING]
                named = entry | self.target.tags | {"attack": attack, "warnings": [*self.target.warnings, *kept]}
                if with_checksum(named) != entry:
                    self._write(with_checksum(named), flags)
                return Outcome(with_checksum(named), flags, reused=True)
        return None

    def add(
        self, key: ResultKey, facts: Mapping[str, Any], flags: FlagArray, *, warnings: Iterable[str], seconds: float
    ) -> Outcome:
        """The outcome of a measurement, kept if there is a folder; `facts` are its attack, eps, settings and seed."""
        correct, n, digest = int(flags.sum()), len(flags), key.digest()
        entry = with_checksum({
            **facts, **self.target.tags, "accuracy": correct / n, "interval": list(wilson(correct, n)),
            "correct": correct, "n": n, "precision": "fp32",
            "warnings": list(dict.fromkeys(warnings)), "seconds": round(seconds, 3),
            "machine": machine(self.target.pictures.device), "code": self.code,
            "flags": f"eval/{digest}.npy" if self.folder else None, "fingerprint": fingerprint(flags),
            "key": digest, "probe": list(key.probe), "pixels": key.images,
        })  # fmt: skip
        self._write(entry, flags)
        self._write_labels(key.images)
        return Outcome(entry, flags, reused=False)

    def partial(self, key: ResultKey, world: World) -> PartialResult:
        """The tries settled so far for this key, to be continued."""
        if self.folder is None:
            return PartialResult()
        process = f".{world.rank}-of-{world.size}" if world.size > 1 else ""
        path = self.folder / "eval" / f"{key.digest()}{process}.partial"
        return PartialResult(path, digest=key.digest(), probe=key.probe)

    def _write(self, entry: Entry, flags: FlagArray) -> None:
        if self.folder and self.writes:
            try:
                add_entry(self.folder, entry, flags, self.file)
            except OSError as error:
                raise UserError(f"cannot write results to {self.folder}: {error.strerror}") from None

    def _write_labels(self, pixels: str) -> None:
        """The labels of the images, once for all attacks; corrupted images have those of the clean ones."""
        if self.folder and self.writes and self.file == "eval.json":
            path, labels = _labels_file(self.folder, pixels), self.target.pictures.labels.cpu().numpy()
            with contextlib.suppress(OSError):  # only the report's accuracy by class needs them
                if not path.exists():
                    atomic_write(path, npy_bytes(labels.astype(np.min_scalar_type(labels.max()))))


def add_entry(folder: Path, entry: Entry, flags: FlagArray, file: str = "eval.json") -> None:
    """Writes the flags, then eval.json with this entry; entries that it replaces are removed with their flags."""
    with exclusive_lock(folder / "eval" / ".lock", wait=True):
        entries = read_entries(folder, file)
        atomic_write(_flags_file(folder, entry["key"]), npy_bytes(flags))
        stale = [old for old in entries if all(old.get(name) == entry[name] for name in REPLACED_IF_EQUAL)]
        kept = [old for old in entries if old not in stale]
        text = json.dumps({"schema_version": EVAL_SCHEMA, "entries": [*kept, entry]}, indent=2, allow_nan=False)
        atomic_write(folder / file, text + "\n")
        for key in {str(old.get("key")) for old in stale} - {str(old.get("key")) for old in [*kept, entry]}:
            if _is_key(key):
                _flags_file(folder, key).unlink(missing_ok=True)


def read_flags(folder: Path, entry: Entry) -> FlagArray | None:
    """The flags of an entry; None if their file is missing, corrupt or contradicts the entry."""
    flags = _read_npy(_flags_file(folder, entry["key"])) if _is_key(entry.get("key")) else None
    if flags is None or flags.dtype != np.bool_ or flags.shape != (entry.get("n"),):
        return None
    if entry.get("fingerprint") != fingerprint(flags):
        return None
    correct = int(flags.sum())
    return flags if (entry.get("correct"), entry.get("accuracy")) == (correct, correct / len(flags)) else None


def read_labels(folder: Path, entry: Entry) -> NDArray[np.integer[Any]] | None:
    """The labels (n,) of an entry's images; None if they were not kept."""
    labels = _read_npy(_labels_file(folder, entry["pixels"])) if _is_key(entry.get("pixels")) else None
    return labels if labels is not None and labels.shape == (entry.get("n"),) and labels.dtype.kind == "u" else None


def stored_arrays(folder: Path, entry: Entry) -> list[Path]:
    """The files of an entry: flags per image, and the labels of the images. They may be missing."""
    flags = [_flags_file(folder, entry["key"])] if _is_key(entry.get("key")) else []
    return flags + ([_labels_file(folder, entry["pixels"])] if _is_key(entry.get("pixels")) else [])


# -- checksums


def fingerprint(flags: FlagArray) -> str:
    """A checksum of the flags, kept in their entry."""
    return hashlib.sha256(np.packbits(flags).tobytes() + str(len(flags)).encode()).hexdigest()[:16]


def hash_tensors(named: Iterable[tuple[str, Tensor]]) -> str:
    """A hash of names, types, shapes and bytes."""
    total = hashlib.sha256()
    for name, tensor in named:
        plain = tensor.detach().cpu().contiguous()
        total.update(f"{name} {plain.dtype} {tuple(plain.shape)};".encode())
        total.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def hash_weights(model: nn.Module) -> str:
    """A hash of all parameters and buffers, also of buffers that are not in the state dict."""
    return hash_tensors([*model.named_parameters(), *model.named_buffers()])


def hash_images(pictures: ImageSet) -> str:
    """A hash of the fp32 images and the labels."""

    def parts() -> Iterator[tuple[str, Tensor]]:
        for index in torch.arange(len(pictures)).split(1024):
            x, y = pictures.take(index)
            yield from (("images", x), ("labels", y.long()))

    return hash_tensors(parts())


def signature(logits: Logits) -> list[float]:
    """Two numbers per probe image that depend on all its logits: fixed pseudo-random weights, summed in float64."""
    k = logits.shape[1]
    weights = torch.rand(k, 2, generator=torch.Generator().manual_seed(k), dtype=torch.float64) + 0.5
    return (logits.cpu().double() @ weights).flatten().tolist()


def _flags_file(folder: Path, key: str) -> Path:
    return folder / "eval" / f"{key}.npy"


def _labels_file(folder: Path, pixels: str) -> Path:
    return folder / "eval" / f"labels-{pixels[:16]}.npy"


def _read_npy(path: Path) -> NDArray[Any] | None:
    """The array of a file; None if it is missing or corrupt."""
    try:
        return np.lib.format.read_array(io.BytesIO(path.read_bytes()), allow_pickle=False) if path.is_file() else None
    except Exception:  # numpy parses the header as Python: a corrupt byte there can raise anything
        return None


def _is_key(key: Any) -> bool:
    return isinstance(key, str) and re.fullmatch("[0-9a-f]{16,64}", key) is not None
