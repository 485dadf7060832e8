"""What the files of a run may hold: rows of metrics.jsonl, facts of a checkpoint, results; validated when read.

No torch is imported here.
"""

import json
import zlib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pixelpart.config import validation_message
from pixelpart.files import parse_json

Finite = Annotated[float, Field(allow_inf_nan=False)]
NotNegative = Annotated[Finite, Field(ge=0)]
Fraction01 = Annotated[Finite, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=2**48)]
Epoch = Annotated[int, Field(ge=0, le=10**6)]
Text = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]  # without control characters


class Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class MetricsRecord(Record):
    """One line of metrics.jsonl."""

    epoch: Annotated[Epoch, Field(ge=1)]
    phase: Literal["burn-in", "mask", "plain"]
    loss: Finite
    lr: NotNegative
    natural: Fraction01
    pgd: Fraction01
    robust_ce: float  # may be infinite or NaN, as damage
    measured_on: Literal["held-out", "test"]
    train_natural: Fraction01
    train_pgd: Fraction01
    budget_mean: Fraction01
    high_fraction: Fraction01
    dead_cams: Count
    damage: float
    seconds: NotNegative
    images_per_second: NotNegative
    sum: str = ""  # checksum of the other fields; rows of older versions have none


class PositionRecord(Record):
    """How far a run had come, in a checkpoint."""

    step: Count
    epoch: Epoch
    best_robust_ce: float | None = None
    best_epoch: Epoch | None = None
    forked_here: bool = False
    images: Count = 0  # 0 in old checkpoints


class CheckpointFacts(Record):
    """What a checkpoint says of itself."""

    config: str
    model: str
    settings: dict[str, Any]  # validated by `config_of`
    position: PositionRecord
    epoch: Epoch
    sum: str  # checksum of tensors and facts


class ResultEntry(Record):
    """What every entry of eval.json and corruptions.json has; older versions wrote fewer fields."""

    model_config = ConfigDict(strict=True, extra="allow")

    attack: Text
    accuracy: Fraction01
    n: Annotated[Count, Field(ge=1)]
    correct: Count = 0
    interval: Annotated[list[Finite], Field(min_length=2, max_length=2)] = [0.0, 1.0]
    eps: NotNegative = 0.0
    dataset: Text
    split: Text
    subject: Text | None = None
    checkpoint: Text | None = None
    settings: dict[str, Any] = {}
    warnings: list[Text] = []
    probe: list[Finite] = []
    seconds: NotNegative = 0.0

    @model_validator(mode="after")
    def _consistent(self) -> "ResultEntry":
        if "correct" in self.model_fields_set and self.correct != round(self.accuracy * self.n):
            raise ValueError("accuracy is not correct / n")
        return self


def read_record(kind: type[Record], text: str) -> dict[str, Any]:
    """The JSON object in the text; ValueError, in one line, if it is not a record of this kind."""
    return check_record(kind, parse_json(text))


def check_record(kind: type[Record], values: Any) -> dict[str, Any]:
    """The values; ValueError, in one line, if they are not a record of this kind."""
    try:
        kind.model_validate(values)
    except ValidationError as error:
        raise ValueError(validation_message(error)) from None
    return values


def write_row(row: dict[str, Any]) -> str:
    return json.dumps(row | {"sum": _row_checksum(row)}) + "\n"


def read_row(line: str) -> dict[str, Any]:
    """The row that `write_row` wrote; ValueError if the line is corrupt."""
    row = read_record(MetricsRecord, line)
    if row.pop("sum", None) not in (None, _row_checksum(row)):
        raise ValueError("checksum mismatch")
    return row


def _row_checksum(row: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps({name: row[name] for name in row if name != 'sum'}).encode()):08x}"
