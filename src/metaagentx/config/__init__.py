"""A run is a file: a recipe in TOML with one section for each part of the system.

`load_config` reads a recipe, applies overrides and validates the result. A recipe with an unknown key, a wrong type, a
value out of range or settings that contradict each other raises an error of one line with the file, the key and the
fix. `to_toml` writes a config as a recipe, `portable` makes its paths survive a move of the run directory, and
`reference` lists all keys for the documentation.
"""

from ..options import LossConfig, ModelConfig, OptimizerConfig
from .describe import reference
from .paths import portable
from .recipe import Recipe, load_config, load_recipe
from .sections import (
    Config,
    CreditConfig,
    EvaluationConfig,
    PromptsConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
    StageConfig,
    TasksConfig,
    ToolsConfig,
    contradictions,
)
from .toml import to_toml

__all__ = [
    "Config",
    "CreditConfig",
    "EvaluationConfig",
    "LossConfig",
    "ModelConfig",
    "OptimizerConfig",
    "PromptsConfig",
    "Recipe",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "StageConfig",
    "TasksConfig",
    "ToolsConfig",
    "contradictions",
    "load_config",
    "load_recipe",
    "portable",
    "reference",
    "to_toml",
]
