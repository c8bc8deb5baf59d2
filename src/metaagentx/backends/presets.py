"""The shapes of the small models that `new_model` creates. Without torch, so that a wrong name is found at once."""

from dataclasses import dataclass

from ..errors import MetaAgentXError


@dataclass(frozen=True, slots=True)
class Preset:
    """The shape of a model."""

    width: int
    layers: int
    heads: int
    key_heads: int
    hidden: int
    """Intermediate size of the MLP."""
    vocabulary: int
    context: int = 4096
    theta: float = 10_000.0
    """Base of the rotary positions. A small one distinguishes adjacent positions with more of the dimensions: a model
    of two layers then copies and reverses better (dev/LOG.md)."""


PRESETS = {
    "nano": Preset(width=96, layers=2, heads=4, key_heads=2, hidden=256, vocabulary=1024),
    "micro": Preset(width=128, layers=3, heads=4, key_heads=4, hidden=256, vocabulary=1024, theta=200.0),
    "tiny": Preset(width=128, layers=4, heads=4, key_heads=2, hidden=320, vocabulary=1024),
    "small": Preset(width=192, layers=4, heads=6, key_heads=3, hidden=512, vocabulary=1536),
    "4m": Preset(width=256, layers=4, heads=8, key_heads=4, hidden=896, vocabulary=2048),
    "10m": Preset(width=384, layers=5, heads=12, key_heads=6, hidden=1280, vocabulary=2048),
}


def check_preset(name: str) -> None:
    """Raise for an unknown preset."""
    if name not in PRESETS:
        raise MetaAgentXError(f"unknown preset {name}: choose one of {', '.join(PRESETS)}")
