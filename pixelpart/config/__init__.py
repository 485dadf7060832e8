"""The config of a run: frozen, validated, hashable, read from and written to TOML and JSON.

No torch is imported here, so that `--help` is quick.
"""

from pixelpart.config.fields import EPS_LOW, Config, MaskConfig, OptimConfig, Section
from pixelpart.config.old import ADDED
from pixelpart.config.reading import (
    NAMING_FIELDS,
    code_flags,
    config_from,
    differing_fields,
    flag_of,
    flat,
    method_fields,
    read_config,
    validation_message,
    with_fields,
)
from pixelpart.config.values import (
    Size,
    check_colour,
    data_label,
    height_width,
    is_user_code,
    levels_hint,
    parse_fraction,
    parse_size,
    split_data_label,
    write_fraction,
    write_size,
)

# defaults of `evaluate`
DEFAULT_ATTACKS = ("natural", "pgd20")
DEFAULT_EPS = 8 / 255
DEFAULT_STEP_SIZE = 2 / 255
DEFAULT_SEED = 0


def default_step_size(eps: float) -> float:
    """2/255 for eps of 8/255 or more, else eps / 4: steps as long as eps find fewer errors."""
    return min(DEFAULT_STEP_SIZE, eps / 4)


__all__ = [
    "ADDED", "DEFAULT_ATTACKS", "DEFAULT_EPS", "DEFAULT_SEED", "DEFAULT_STEP_SIZE", "EPS_LOW", "NAMING_FIELDS",
    "Config", "MaskConfig", "OptimConfig", "Section", "Size", "check_colour", "code_flags", "config_from",
    "data_label", "default_step_size", "differing_fields", "flag_of", "flat", "height_width", "is_user_code",
    "levels_hint", "method_fields", "parse_fraction", "parse_size", "read_config", "split_data_label",
    "validation_message", "with_fields", "write_fraction", "write_size",
]  # fmt: skip
