"""Models by their name on the Hugging Face hub, such as `Qwen/Qwen3-0.6B`: in its cache on this machine, or downloaded.

A directory of that name always wins. HF_HOME and HF_HUB_OFFLINE count, as everywhere.
"""

import shlex
import sys
from pathlib import Path
from typing import Any

from ..errors import MetaAgentXError
from ..options import is_hub_name
from ..progress import print_line
from .model_files import check_model

_FILES = ("*.safetensors", "*.json", "*.model", "*.txt", "*.jinja")


def find_model(path: str, gguf_file: str | None = None) -> Path | None:
    """Return the directory of a model on this machine, or None for a hub name that is not in the cache."""
    if not is_hub_name(path) or Path(path).exists():
        return Path(path)
    try:
        snapshot = _snapshot(path, gguf_file, local_files_only=True)
        check_model(snapshot, gguf_file)
    except (OSError, MetaAgentXError):  # a part of it may be there
        return None
    return snapshot


def fetch_model(path: str, gguf_file: str | None = None) -> Path:
    """Return the directory of a model; one that only the hub has is downloaded."""
    found = find_model(path, gguf_file)
    if found is not None:
        return found
    import huggingface_hub
    from huggingface_hub import constants, errors

    if not constants.HF_HUB_OFFLINE:
        print_line(f"downloading {path} from the Hugging Face hub to {constants.HF_HUB_CACHE}")
    if not sys.stderr.isatty():
        huggingface_hub.utils.disable_progress_bars()
    try:
        directory = _snapshot(path, gguf_file)
    except errors.RepositoryNotFoundError as error:
        raise MetaAgentXError(
            f"no directory {path}, and the Hugging Face hub has no model of that name that you may read: check the "
            "spelling, or log in with `hf auth login`"
        ) from error
    except (OSError, errors.HfHubHTTPError) as error:
        reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else str(error).strip().partition("\n")[0]
        local = shlex.quote(f"models/{path.rpartition('/')[2]}")
        raise MetaAgentXError(
            f"no directory {path}, it is not in the Hugging Face cache {constants.HF_HUB_CACHE}, and the hub cannot be "
            f"reached ({reason}): with a network, run `hf download {path} --local-dir {local}`, then set model.path to "
            "that directory"
        ) from error
    try:
        check_model(directory, gguf_file)
    except MetaAgentXError as error:
        raise MetaAgentXError(f"{error}, or complete the download with `hf download {path}`") from error
    return directory


def _snapshot(name: str, gguf_file: str | None, **options: Any) -> Path:
    from huggingface_hub import snapshot_download

    if gguf_file is not None:
        return Path(snapshot_download(name, allow_patterns=[gguf_file], **options))
    return Path(snapshot_download(name, allow_patterns=list(_FILES), ignore_patterns=["*/*"], **options))
