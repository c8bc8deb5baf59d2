"""The local backend: any Hugging Face causal LM on a CPU or one GPU, sampled and trained in this process.

Importing this imports torch; commands that may not need it import it inside a function.
"""

from . import threads as threads  # before anything that imports torch

# isort: split
from ..chat import ChatTokenizer
from .engine import Engine
from .model import LocalModel, LoraOptions, load_model
from .policy import LocalPolicy
from .presets import new_model

__all__ = [
    "ChatTokenizer",
    "Engine",
    "LocalModel",
    "LocalPolicy",
    "LoraOptions",
    "load_model",
    "new_model",
]
