"""The embedded backend: any Hugging Face causal LM on a CPU or one GPU, sampled and trained in this process."""

from . import threads as threads  # before anything that imports torch
from .chat import ChatTokenizer
from .model import LocalModel, LoraOptions, load_model

__all__ = ["ChatTokenizer", "LocalModel", "LoraOptions", "load_model"]
