"""The fields of a config, with their descriptions, defaults and ranges.

Methods are names with their settings; `engine/plan.py` looks the names up in the tables of masks, attacks and
objectives.
"""

import hashlib
import json
import re
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
    field_validator,
    model_validator,
)

from pixelpart.config.old import from_old_form, to_old_form
from pixelpart.config.values import (
    Size,
    check_colour,
    data_label,
    is_user_code,
    parse_eps,
    parse_size,
    write_fraction,
    write_size,
)
from pixelpart.errors import one_line

SCHEMA_VERSION = 1
EPS_LOW = 7 / 255

Eps = Annotated[float, BeforeValidator(parse_eps), PlainSerializer(write_fraction)]
# tagged, so that a mistake is reported once and not for both alternatives
_SAME = Discriminator(lambda value: "same" if value == "same" else "number")
SameOrEps = Annotated[Annotated[Literal["same"], Tag("same")] | Annotated[Eps, Tag("number")], _SAME]
SameOrSeed = Annotated[
    Annotated[Literal["same"], Tag("same")] | Annotated[int, Field(ge=0), Tag("number")],
    _SAME,
]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _printable(cls, value: Any) -> Any:
        for text in value if isinstance(value, tuple) else [value]:
            if isinstance(text, str) and one_line(text) != text:
                raise ValueError(f"{text!r} has control characters")
        return value


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
    """RUN: start a new run with the best weights of another; RUN@EPOCH: fork, which goes on after that epoch with its
    optimiser state, and counts on from there"""

    @model_validator(mode="before")
    @classmethod
    def _from_old_form(cls, values: Any) -> Any:
        return from_old_form(values) if isinstance(values, dict) else values

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
        values = to_old_form(self.model_dump(mode="json"), self.data_label)
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def split_seed(self) -> int:
        """The seed that chooses the held-out images."""
        return self.seed if self.holdout_seed == "same" else self.holdout_seed

    @property
    def fork_source(self) -> tuple[str, int]:
        """The run and the epoch that `init_from` names; 0 if only its weights are taken."""
        match = re.fullmatch("(.+)@([1-9][0-9]{0,6})", self.init_from)
        return (match[1], int(match[2])) if match else (self.init_from, 0)

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
