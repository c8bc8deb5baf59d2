"""The small file beside exported weights: prompts, budgets, sampling, and which directory each role has.

With it a system works anywhere, also where its weights are served by another program.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ..atomic import atomic_write
from ..config import Config, EvaluationConfig, PromptsConfig, RolloutConfig
from ..errors import MetaAgentXError
from ..types import Role

FILE = "system.json"


class SavedSystem(BaseModel):
    """What `system.json` holds."""

    model_config = ConfigDict(extra="forbid")

    format: int = 1
    roles: dict[Role, str]
    """Directories, relative to the file."""
    rollout: RolloutConfig
    prompts: PromptsConfig
    evaluation: EvaluationConfig
    model: dict[str, Any] = {}
    """Arguments of the chat template."""
    seed: int = 0

    def apply(self, config: Config) -> Config:
        """Return a recipe with these settings."""
        sections = {name: getattr(self, name) for name in ("rollout", "prompts", "evaluation", "seed")}
        model = config.model.model_copy(update={"chat_template": self.model.get("chat_template", {})})
        return config.model_copy(update={**sections, "model": model})


def write_system(directory: Path, config: Config, roles: Mapping[Role, str]) -> Path:
    """Write the file and return its path."""
    saved = SavedSystem(
        roles=dict(roles),
        rollout=config.rollout,
        prompts=config.prompts,
        evaluation=config.evaluation,
        model={"chat_template": dict(config.model.chat_template)},
        seed=config.seed,
    )
    path = directory / FILE
    atomic_write(path, (json.dumps(saved.model_dump(mode="json"), indent=2) + "\n").encode())
    return path


def read_system(directory: Path) -> SavedSystem:
    """Read the file of an exported system."""
    path = directory / FILE
    try:
        return SavedSystem.model_validate_json(path.read_bytes())
    except OSError:
        raise MetaAgentXError(
            f"{directory} has no {FILE}: give a directory that `metaagentx export RUN --out DIR` wrote"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise MetaAgentXError(f"{path}: {place}: {first['msg']}; export the run again") from None
