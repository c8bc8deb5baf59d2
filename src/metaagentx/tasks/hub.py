"""Rows from the Hugging Face hub, through `datasets` (the `hub` extra). No code of a repository is ever run."""

import logging
from pathlib import Path

from .rows import JsonlRows, Rows, TableRows, TaskError, first_line
from .source import Hub, Source


def hub_rows(source: Source, split: str, files: tuple[str, ...], put: str) -> list[Rows]:
    """The published rows. `files` are the stems of a set in instalments; `put` tells what to do without the hub."""
    try:
        import datasets
        import huggingface_hub
    except ImportError:
        raise TaskError(f"{put}; or, to have it from the hub: pip install 'metaagentx[hub]'") from None
    # Five retries for each file are announced as warnings; our one line says what they add up to.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)

    def fetch(hub: Hub) -> list[Rows]:
        if hub.files:
            wanted = [name for name in hub.files if name.removesuffix(".jsonl") in files]
            paths = [huggingface_hub.hf_hub_download(hub.repository, name, repo_type="dataset") for name in wanted]
            return [JsonlRows(Path(path)) for path in paths]
        table = datasets.load_dataset(hub.repository, hub.config or None, split=hub.split or split)
        known = {*source.fields, *source.optional_fields}
        table = table.select_columns([name for name in table.column_names if name in known])
        return [TableRows(f"{hub.repository}/{hub.split or split}", len(table), table.__getitem__)]

    try:
        return [rows for hub in source.hub[split] for rows in fetch(hub)]
    except Exception as error:
        # Whatever stops the hub (no network, a mirror's error page, a full disk), the way out is the same file.
        raise TaskError(
            f"{put}; the hub did not give {source.hub[split][0].repository}: {first_line(error)}"
        ) from error
