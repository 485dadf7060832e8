"""Whose result this is: hashes of all that an outcome depends on, so that nothing stale is ever reused.

Weights, structure, source, pixels, attack and settings go into one hash. The logits of a few probe images, as they are
and with noise, are compared as numbers beside it: they catch what no hash sees (a hook, a global), while the last bits
may differ from one machine to the next.
"""

import ast
import contextlib
import functools
import hashlib
import inspect
import json
import math
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pixelpart.evaluation.image_set import ImageSet
from pixelpart.types import Logits

PACKAGE = Path(__file__).parents[1]
PROBES = 8
# Their work is in the key by itself: pixels, weights, and the source of the model's own classes.
SETTLED = tuple(f"pixelpart.{name}" for name in ("data", "models", "run", "evaluation.subject", "usercode", "errors"))
PARTS = vars(nn.Module()).keys()  # tensors and modules are in the key by themselves; hooks are left to the probes
FOREIGN = {"torch", "numpy", *sys.stdlib_module_names}
AGREEMENT = 1e-4  # of the largest number: far above fp32's rounding, far below any change that moves a decision


def digest(value: Any) -> str:
    """A hash of anything that JSON can write."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def hash_tensors(named: Iterable[tuple[str, Tensor]]) -> str:
    """A hash of names, types, shapes and bytes."""
    total = hashlib.sha256()
    for name, tensor in named:
        plain = tensor.detach().cpu().contiguous()
        total.update(f"{name} {plain.dtype} {tuple(plain.shape)};".encode())
        total.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def hash_weights(model: nn.Module) -> str:
    """A hash of all parameters and buffers, those that a state dict leaves out too."""
    return hash_tensors([*model.named_parameters(), *model.named_buffers()])


def hash_pixels(pictures: ImageSet) -> str:
    """A hash of the fp32 images and the labels under attack."""

    def parts() -> Iterator[tuple[str, Tensor]]:
        for index in torch.arange(len(pictures)).split(1024):
            x, y = pictures.take(index)
            yield from (("images", x), ("labels", y.long()))

    return hash_tensors(parts())


def describe(model: nn.Module) -> str:
    """A hash of the model's structure, of what its attributes hold, and of the source of every class and function."""
    return digest(_described(model, set()))


def _described(model: nn.Module, known: set[int]) -> list[Any]:
    known |= {id(module) for module in model.modules()}
    settings, sources = [], {}
    for name, module in model.named_modules():
        for kind in type(module).__mro__:
            if kind is not object and not kind.__module__.startswith("torch."):
                sources[f"{kind.__module__}.{kind.__qualname__}"] = source_of(kind)
        for key, value in sorted(vars(module).items()):
            if key not in PARTS:
                settings.append((name, key, _account(value, known)))
    return [repr(model), settings, sources]


def _account(value: Any, known: set[int]) -> Any:
    """What JSON can write of a value: of a function its text, defaults and what it encloses, of an object all it has.

    Of what is known already, and of other libraries' objects, no more than the kind.
    """
    kind = type(value)
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, Tensor):
        return hash_tensors([("", value)])
    if isinstance(value, tuple | list):
        return [_account(item, known) for item in value]
    if isinstance(value, dict):
        return [[_account(item, known) for item in pair] for pair in value.items()]
    if isinstance(value, types.MethodType):
        return [_account(item, known) for item in (value.__func__, value.__self__)]
    if isinstance(value, functools.partial):
        return [_account(item, known) for item in (value.func, value.args, value.keywords)]
    if id(value) in known:
        return kind.__qualname__
    known.add(id(value))
    if isinstance(value, nn.Module):
        return [hash_weights(value), _described(value, known)]
    if isinstance(value, types.FunctionType):
        held = [value.__defaults__, value.__kwdefaults__, *_enclosed(value)]
        return [source_of(value), _byte_code(value.__code__), _account(held, known)]
    if hasattr(value, "__dict__") and kind.__module__.partition(".")[0] not in FOREIGN:
        return [source_of(kind), _account(vars(value), known)]
    return kind.__qualname__


def _enclosed(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # nothing is in it yet
            yield cell.cell_contents


def source_of(thing: Any) -> str:
    """The text of the file that defines a class, a function or a module: what it calls may be there as well.

    Of a script, which does more than that, its own lines. What was typed at a prompt has no text: its byte code stands
    for it.
    """
    home = inspect.getmodule(thing)
    for place in [thing] if home is None or home.__name__ == "__main__" else [home, thing]:
        with contextlib.suppress(OSError, TypeError):
            return inspect.getsource(place)
    members = vars(thing).values() if isinstance(thing, type) else [thing]
    return repr([_byte_code(member.__code__) for member in members if hasattr(member, "__code__")])


def sources_of(function: Callable[..., Any]) -> dict[str, str]:
    """The text that defines a function, and that of pixelpart's files which its own imports, and theirs, by name.

    What is SETTLED is left out, and so is what only that imports.
    """
    if isinstance(function, functools.partial):
        return sources_of(function.func) | {"settings": repr((function.args, function.keywords))}
    found = {"function": source_of(function)}
    ahead = [source_of(inspect.getmodule(function))]
    while ahead:
        for name in _own_imports(ahead.pop()) - found.keys():
            found[name] = _file(name).read_text(encoding="utf-8")
            ahead.append(found[name])
    return found


@functools.cache
def _own_imports(text: str) -> set[str]:
    """The names of pixelpart's modules that a file imports; nothing is imported to find them."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names |= {name if _file(name).exists() else str(node.module) for name in inner}
    own = {name for name in names if name.startswith("pixelpart.")}
    return {name for name in own if not any(f"{name}.".startswith(f"{settled}.") for settled in SETTLED)}


def _file(module: str) -> Path:
    """Where a module of pixelpart lies."""
    place = PACKAGE.joinpath(*module.split(".")[1:])
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def _byte_code(code: types.CodeType) -> list[Any]:
    constants = [_byte_code(item) if isinstance(item, types.CodeType) else repr(item) for item in code.co_consts]
    return [code.co_code.hex(), code.co_names, constants]


def signature(logits: Logits) -> list[float]:
    """Two numbers for each probe image, made of all its logits: fixed pseudo-random weights, summed in float64."""
    k = logits.shape[1]
    weights = torch.rand(k, 2, generator=torch.Generator().manual_seed(k), dtype=torch.float64) + 0.5
    return (logits.cpu().double() @ weights).flatten().tolist()


def agree(a: list[float], b: list[float]) -> bool:
    """Whether two signatures are those of one function, up to rounding."""
    if len(a) != len(b):
        return False
    scale = max(map(abs, (*a, *b)), default=0.0)
    return math.isfinite(scale) and all(abs(p - q) <= AGREEMENT * scale for p, q in zip(a, b, strict=True))
