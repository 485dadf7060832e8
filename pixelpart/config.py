"""The config of a run: frozen, validated, hashable, read from and written to TOML and JSON.

No torch is imported here, so that `--help` is quick. Methods are names with their settings; `engine/plan.py` looks the
names up in the tables of masks, attacks and objectives.
"""

import hashlib
import json
import math
import re
import reprlib
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    ValidationError,
    model_validator,
)

from pixelpart.errors import UserError
from pixelpart.files import parse_json, parse_toml

SCHEMA_VERSION = 1
EPS_LOW = 7 / 255

# defaults of `evaluate`
DEFAULT_ATTACKS = ("natural", "pgd20")
DEFAULT_EPS = 8 / 255
DEFAULT_STEP_SIZE = 2 / 255
DEFAULT_SEED = 0

ADDED = {  # fields added later: at these values they do not change a run's hash
    "size": 0,
    "skip_bad": False,
    "num_classes": 0,
    "classes": [],
    "eps_ramp": 0,
    "eps_from": "same",
    "mask.control": "none",
    "mask.mean": 0.0,
    "mask.mean_over": "image",
    "objective.smoothing": 0.0,
    "optim.name": "sgd",
    "optim.clip": 0.0,
    "awp.gamma": 0.0,
    "awp.after": 0,
    "holdout_seed": "same",
    "auto": [],
    "background": "white",
    "channels": 0,
}

DATA_LABEL = re.compile(
    r"(?P<name>folder:.+?|tinyimagenet)(?:@(?P<size>\d{1,5}(?:x\d{1,5})?))?(?P<grey>\+grey)?"
    r"(?:\+on-(?P<background>#[0-9a-f]{6}|[a-z]+))?(?P<skip_bad>\+skip-bad)?"
)


def is_user_code(name: str) -> bool:
    """Whether a model or data set is named module:function."""
    return ":" in name and not name.startswith("folder:")


def data_label(
    name: str, *, size: "Size" = 0, skip_bad: bool = False, background: str = "white", channels: int = 0
) -> str:
    """A data set and its options as one string, such as folder:P@64+skip-bad: what hashes and eval.json record."""
    if name.startswith("folder:"):
        name += f"@{write_size(size)}" if size else ""
        name += "+grey" if channels == 1 else ""
        name += f"+on-{background}" if background != "white" else ""
    return f"{name}+skip-bad" if skip_bad else name


def split_data_label(label: str) -> tuple[str, dict[str, Any]]:
    """Name and options of a label that `data_label` made; a plain name is returned as it is."""
    match = DATA_LABEL.fullmatch(label)
    if match is None or (match["size"] and match["name"] == "tinyimagenet"):
        return label, {}
    found = {"size": parse_size(match["size"] or 0), "skip_bad": match["skip_bad"] is not None}
    if not match["name"].startswith("folder:"):
        return match["name"], found
    return match["name"], found | {"background": match["background"] or "white", "channels": 1 if match["grey"] else 3}


Size = int | tuple[int, int]  # of square images, or height and width


def parse_size(value: Any) -> Size:
    """64, "64" or "64x96", which is height x width; ValueError for anything else."""
    sides = value.split("x") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    try:
        numbers = [int(side) for side in sides if not isinstance(side, bool | float) and int(side) >= 0]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != len(sides) or len(numbers) not in (1, 2):
        raise ValueError(f"{value!r} is not a number of pixels, such as 64, or height x width, such as 64x96")
    return numbers[0] if len(set(numbers)) == 1 else (numbers[0], numbers[1])


def write_size(size: Size) -> int | str:
    return size if isinstance(size, int) else "{}x{}".format(*size)


def height_width(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def check_colour(name: Any) -> str:
    """The name in lower case; ValueError unless it is a colour that Pillow knows, or #rrggbb."""
    name = str(name).strip().lower()
    if name != "white":
        from PIL import ImageColor

        if not re.fullmatch("#[0-9a-f]{6}", name) and name not in ImageColor.colormap:
            raise ValueError(f"{name!r} is not a colour such as black or #808080")
    return name


def parse_fraction(value: Any) -> float:
    """8/255, 7.5/255 or 0.03 as a float; ValueError for anything else."""
    if not isinstance(value, str):
        return value
    try:
        numerator, slash, denominator = value.partition("/")
        number = float(numerator) / float(denominator if slash else 1)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{value!r} is not a number or a fraction such as 8/255") from None
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not a finite number")
    return number


def write_fraction(value: float) -> float | str:
    """k/255 with a short k if that is exactly the float, else the float."""
    levels = Fraction(value * 255).limit_denominator(10)
    text = f"{float(levels):g}/255"
    return text if value and parse_fraction(text) == value else value


Eps = Annotated[float, BeforeValidator(parse_fraction), PlainSerializer(write_fraction), Field(ge=0, le=1)]
# tagged, so that a mistake is reported once and not for both alternatives
_SAME = Discriminator(lambda value: "same" if value == "same" else "number")
SameOrEps = Annotated[Annotated[Literal["same"], Tag("same")] | Annotated[Eps, Tag("number")], _SAME]
SameOrSeed = Annotated[
    Annotated[Literal["same"], Tag("same")] | Annotated[int, Field(ge=0), Tag("number")],
    _SAME,
]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class AttackConfig(Section):
    name: str = "pgd"
    """attack that makes the training examples: pgd or mma"""
    steps: int = Field(10, ge=1)
    """gradient steps per example"""
    step_size: Annotated[Eps, Field(gt=0)] = 2 / 255
    """step size, in [0,1] units"""


class MaskConfig(Section):
    rule: str = "none"
    """how marks become budgets: none (eps everywhere), mean, zscore, quantile:Q, soft, official, rank, power:P"""
    source: str = "gradcam"
    """what marks the pixels: gradcam, xgradcam, layercam, for a transformer also rollout and gradient-rollout;
    gradient, gradient:SIGMA (blurred), margin (of each image), centre, quadrant:ul|ur|bl|br, blobs, object"""
    layer: str = "features"
    """layer of the map: features (the last activation before pooling) or the name of a module, such as layer3"""
    target: str = "predicted"
    """class that the map explains: predicted or label"""
    every: int = Field(0, ge=0)
    """compute maps every n epochs and store them; 0: compute them for every batch"""
    control: str = "none"
    """what is done to the shares: none, inverted, shuffled (the next image's), flat (their mean), blobs (same area)"""
    mean: Eps = 0.0
    """rescale budgets to this mean, so that eps and eps_low only fix their ratio; 0: no rescaling"""
    mean_over: str = "image"
    """every image, or the whole batch, gets this mean: image or batch"""

    @property
    def policy(self) -> dict[str, Any]:
        """The keyword arguments of `masks.budget_policy`."""
        return {name: value for name, value in self if name != "every"} | {"stored": self.every > 0}

    @model_validator(mode="before")
    @classmethod
    def _rename_cam(cls, values: Any) -> Any:
        """`source` used to be called `cam`."""
        if not isinstance(values, dict) or "cam" not in values:
            return values
        if "source" in values:
            raise ValueError("cam is the old name of source; give source only")
        return {"source" if name == "cam" else name: value for name, value in values.items()}


class BurnInConfig(Section):
    epochs: int = Field(0, ge=0)
    """number of first epochs without the mask"""
    eps: SameOrEps = "same"
    """uniform budget during burn-in: same (as eps) or a number"""
    objective: str = "same"
    """objective during burn-in: same (as objective.name), at, trades or mart"""


class ObjectiveConfig(Section):
    name: str = "at"
    """at, trades or mart"""
    beta: float = Field(6.0, ge=0)
    """weight of the robust term in TRADES and MART"""
    smoothing: float = Field(0.0, ge=0, lt=1)
    """label smoothing: share of the target distributed over all classes; 0: none"""


class OptimConfig(Section):
    name: str = "sgd"
    """sgd or adamw"""
    lr: float = Field(0.01, gt=0, le=1e38)
    """peak learning rate"""
    momentum: float = Field(0.9, ge=0, lt=1)
    """momentum of SGD, or beta1 of AdamW"""
    weight_decay: float = Field(2e-4, ge=0)
    """weight decay: L2 penalty in SGD, decoupled in AdamW"""
    schedule: str = "step"
    """step (divided at decay_at), cyclic (linear warm-up and decay to 0), cosine (likewise) or constant"""
    decay_at: tuple[int, ...] = (60,)
    """step: epochs, counted from 0, at which the learning rate is divided by 10"""
    warmup: float = Field(0.4, ge=0, le=1)
    """cyclic, cosine: share of the run before the peak"""
    clip: float = Field(0.0, ge=0)
    """largest gradient norm, over all weights; 0: no clipping"""


class AwpConfig(Section):
    gamma: float = Field(0.0, ge=0)
    """adversarial weight perturbation: size relative to each weight's norm; 0: none"""
    after: int = Field(0, ge=0)
    """number of first epochs without weight perturbation"""


class Config(Section):
    """All settings of a training run: equal configs give equal weights on the same machine."""

    schema_version: int = SCHEMA_VERSION
    """version of this file's layout"""
    recipe: str = "custom"
    """name of the recipe"""
    seed: int = Field(0, ge=0)
    """seed of all random numbers"""
    dataset: str = "shapes"
    """shapes, cifar10, cifar100, svhn, tinyimagenet, folder:PATH or module:function"""
    size: Annotated[Size, BeforeValidator(parse_size), PlainSerializer(write_size)] = 0
    """folder:PATH: size of the images in pixels, such as 64, or height x width, such as 64x96"""
    background: Annotated[str, BeforeValidator(check_colour)] = "white"
    """folder:PATH: colour behind transparent pictures, such as black or #808080"""
    channels: Annotated[Literal[0, 1, 3], BeforeValidator(lambda v: int(v) if v in ("0", "1", "3") else v)] = 0
    """folder:PATH: 3 (colour), 1 (grey) or 0 (1 if all pictures are grey, which is set when training starts)"""
    skip_bad: bool = False
    """folder:PATH and tinyimagenet: leave out files that cannot be read"""
    num_classes: int = Field(0, ge=0)
    """number of classes of folder:PATH or module:function, set when training starts"""
    classes: tuple[str, ...] = ()
    """class names of folder:PATH in the order of their labels, set when training starts"""
    augment: str = "none"
    """none, crop-flip, crop-flip-cutout, crop-flip-cutmix or idbh"""
    holdout: int = Field(1024, ge=0)
    """training images held out to choose the best checkpoint; 0: none, and the last checkpoint is the best"""
    holdout_seed: SameOrSeed = "same"
    """seed that chooses the held-out images: same (as seed) or a number, so that runs of different seeds share them"""
    probe: int = Field(1024, ge=1)
    """training images, and test images if none are held out, that are evaluated after every epoch"""
    model: str = "resnet18"
    """resnet18, preactresnet18, wrn-DEPTH-WIDTH, tiny-cnn, vit-tiny, vit-small, deit-small or module:function"""
    normalize: bool = False
    """normalise pixels by the data set's mean and standard deviation inside the model"""
    epochs: int = Field(80, ge=1, le=10**6)
    """epochs, including burn-in"""
    batch_size: int = Field(128, ge=1)
    """images per step, over all processes"""
    eps: Eps = 8 / 255
    """budget of the pixels that the mask selects, and of all pixels without a mask"""
    eps_low: Eps = EPS_LOW
    """budget of the other pixels; it may be above eps"""
    eps_ramp: int = Field(0, ge=0)
    """number of first epochs in which all budgets grow linearly from 0; 0: none"""
    eps_from: SameOrEps = "same"
    """eps of the first epoch after burn-in, from which all budgets go linearly to their own by the last; same: none"""
    attack: AttackConfig = AttackConfig()
    mask: MaskConfig = MaskConfig()
    burn_in: BurnInConfig = BurnInConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    optim: OptimConfig = OptimConfig()
    awp: AwpConfig = AwpConfig()
    ema: float = Field(0.0, ge=0, lt=1)
    """decay per step of the exponential moving average of the weights, less in the first steps; 0: no average"""
    keep: tuple[int, ...] = ()
    """epochs after which a checkpoint is kept; it always is after burn-in"""
    precision: str = "fp32"
    """fp32 (the reference) or bf16 (after the first convolution; weights, pixels and head are fp32)"""
    auto: tuple[str, ...] = ()
    """fields that follow from the number of training images; training sets them and empties this list"""
    init_from: str = ""
    """RUN@EPOCH: start with the weights and the optimiser state of another run after that epoch"""

    @model_validator(mode="before")
    @classmethod
    def _split_label(cls, values: Any) -> Any:
        """Configs used to hold size and skip_bad inside `dataset`, as in folder:P@64+skip-bad."""
        if not isinstance(values, dict) or not isinstance(values.get("dataset"), str):
            return values
        name, options = split_data_label(values["dataset"])
        if name == values["dataset"]:
            return values
        size, given = options["size"], values.get("size") or 0
        if size and str(given) not in ("0", str(size)):
            raise ValueError(f"dataset {values['dataset']!r} has size {size}, but size is {given}")
        values = values | {
            "dataset": name,
            "size": size or given,
            "skip_bad": options["skip_bad"] or values.get("skip_bad", False),
        }
        if name == "tinyimagenet":
            values |= {"size": 0, "num_classes": 0}  # written by old runs
        return values

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        if self.schema_version != SCHEMA_VERSION:
            raise ValueError(f"schema_version {self.schema_version} is not {SCHEMA_VERSION}, which this version reads")
        masked = self.mask.rule != "none"
        if self.burn_in.epochs > self.epochs - masked:
            problem = "leaves no epoch for the mask" if masked else "is too long"
            raise ValueError(f"burn_in.epochs {self.burn_in.epochs} {problem}: epochs is {self.epochs}")
        if self.eps_ramp > self.epochs:
            raise ValueError(f"eps_ramp {self.eps_ramp} is longer than the run: epochs is {self.epochs}")
        if self.eps_from != "same" and (self.eps == 0 or self.epochs - self.burn_in.epochs < 2):
            raise ValueError("eps_from needs eps above 0 and at least two epochs after burn-in")
        return self

    def hash(self) -> str:
        """Identifies the run: equal for equal configs, in any file."""
        values = self.model_dump(mode="json") | {"dataset": self.data_label, "skip_bad": False}
        if self.dataset == "tinyimagenet" and self.skip_bad:
            values |= {"size": 64, "num_classes": 200}
        values["mask"] = {"cam" if name == "source" else name: value for name, value in values["mask"].items()}
        values = _in_use(values)
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def split_seed(self) -> int:
        """The seed that chooses the held-out images."""
        return self.seed if self.holdout_seed == "same" else self.holdout_seed

    @property
    def fork_source(self) -> tuple[str, int]:
        """The run and the epoch that `init_from` names."""
        run, _, epoch = self.init_from.rpartition("@")
        if not run or not epoch.isdigit():
            raise UserError(f"init_from {self.init_from!r} is not RUN@EPOCH, such as runs/part@20")
        return run, int(epoch)

    @property
    def data_options(self) -> dict[str, Any]:
        """The keyword arguments of `data.find` and `data.load`."""
        options = {"size": self.size, "skip_bad": self.skip_bad, "background": self.background}
        if is_user_code(self.dataset):
            return options | {"size": 0, "channels": 0}
        return options | {"channels": self.channels or (3 if self.classes else 0)}  # old runs have colours

    @property
    def data_label(self) -> str:
        return data_label(self.dataset, **self.data_options)

    def to_json(self) -> str:
        return self.model_dump_json(indent=2) + "\n"

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump(mode="json"))


def _in_use(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values without fields of ADDED that are not used, and without sections that are then empty."""
    sections = {k: _in_use(v, f"{prefix}{k}.") if isinstance(v, dict) else v for k, v in values.items()}
    return {k: v for k, v in sections.items() if v != {} and (prefix + k not in ADDED or v != ADDED[prefix + k])}


def read_config(path: Path) -> Config:
    """The config in a .toml or .json file; mistakes are UserErrors that name the field."""
    try:
        text = path.read_text(encoding="utf-8")
        values = parse_toml(text) if path.suffix == ".toml" else parse_json(text)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise UserError(f"cannot read config {path}: {error}") from None
    return config_from(values, source=str(path))


def config_from(values: Any, *, source: str) -> Config:
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{source}: {validation_message(error)}") from None


def with_fields(config: Config, fields: Mapping[str, Any], *, source: str) -> Config:
    """The config with these fields, by dotted name, changed; they no longer follow from the images.

    A list may be given as on the command line: 60,70.
    """
    values = config.model_dump()
    for name, value in fields.items():
        section, _, key = name.rpartition(".")
        place = values[section] if section else values
        listed = isinstance(place[key], list | tuple) and isinstance(value, str)
        place[key] = [part for part in value.split(",") if part] if listed else value
    values["auto"] = [name for name in config.auto if name not in fields]
    return config_from(values, source=source)


def validation_message(error: ValidationError) -> str:
    """Pydantic's errors in one line: field, problem, value."""
    lines = []
    for item in error.errors():
        field = ".".join(str(part) for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = "no such field"
        elif item["type"] != "value_error":
            message = f"{message}, not {_shown(item['input'])}"
        lines.append(f"{field}: {message}" if field else message)
    return "; ".join(lines)


def _shown(value: Any) -> str:
    """The value in a few words: one from a file may be long or deeply nested."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 100
    try:
        return short.repr(value)
    except ValueError:  # an integer with more digits than Python prints
        return "a huge number"


def flag_of(field: str) -> str:
    """The command-line flag of a field: --eps-low for eps_low, --mask.rule for mask.rule, --data for dataset."""
    return "--" + ("data" if field == "dataset" else field.replace("_", "-"))


def flat(config: Config) -> dict[str, Any]:
    """The JSON value of every field by its dotted name."""
    found: dict[str, Any] = {}
    for name, value in config.model_dump(mode="json").items():
        found |= {f"{name}.{key}": v for key, v in value.items()} if isinstance(value, dict) else {name: value}
    return found


def differing_fields(a: Config, b: Config) -> list[str]:
    """The fields in which two configs differ, each as name: value != value."""
    left, right = flat(a), flat(b)
    return [f"{key}: {left[key]!r} != {right[key]!r}" for key in left if left[key] != right[key]]
