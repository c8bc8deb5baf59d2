"""A run is a file: a recipe in TOML, one section for each part of the system.

`load_config` reads a recipe and applies overrides. What a recipe may not say is refused in one line that names the
file, the key and the fix: unknown keys, wrong types, values out of range, and settings that contradict each other.
`to_toml` writes a config down as a recipe again, `portable` with paths that survive a move of the run directory;
`reference` lists all keys for the documentation.
"""

from .describe import reference
from .paths import portable
from .recipe import Recipe, load_config, load_recipe
from .sections import (
    Config,
    CreditConfig,
    EvaluationConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
    StageConfig,
    TasksConfig,
)
from .toml import to_toml

__all__ = [
    "Config",
    "CreditConfig",
    "EvaluationConfig",
    "LossConfig",
    "ModelConfig",
    "OptimizerConfig",
    "Recipe",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "StageConfig",
    "TasksConfig",
    "load_config",
    "load_recipe",
    "portable",
    "reference",
    "to_toml",
]
