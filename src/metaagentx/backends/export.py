"""Export the weights of a role's checkpoint: a LoRA as peft has it, or a whole model in Hugging Face format."""

import shutil
from pathlib import Path

from ..atomic import atomic_directory, follow_umask
from ..errors import MetaAgentXError
from .model_files import check_model, model_directory


def export_weights(checkpoint: Path, base: Path, out: Path, *, merged: bool) -> None:
    """Write the weights and the tokenizer of a checkpoint to a new directory. `merged`: a LoRA becomes part of `base`.

    What training needs besides is left out.
    """
    source = model_directory(checkpoint)
    is_lora = (source / "adapter_config.json").is_file()
    if is_lora and merged:
        check_model(base)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_directory(out) as directory:
        if is_lora and merged:
            _merge(source, base, directory)
        else:
            for file in sorted(source.iterdir()):
                if file.is_file() and file.name != "shared.json":
                    shutil.copy(file, directory / file.name)
        follow_umask(directory)


def _merge(lora: Path, base: Path, directory: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()
    try:
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype="auto"), lora)
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise MetaAgentXError(f"the LoRA {lora} does not fit the model {base}: {reason}") from error
    model.merge_and_unload().save_pretrained(directory)
    AutoTokenizer.from_pretrained(lora).save_pretrained(directory)
