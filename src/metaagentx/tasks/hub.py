"""Fetch rows from the Hugging Face hub with `datasets` (the `hub` extra). No code of a repository is ever run."""

import logging
from pathlib import Path

from .rows import JsonlRows, Rows, TableRows, TaskError, first_line
from .source import Hub, Source


def hub_rows(source: Source, split: str, files: tuple[str, ...], put: str) -> list[Rows]:
    """Return the published rows. `files`: stems of a set in installments. `put`: what to do without the hub."""
    try:
        import datasets
        import huggingface_hub
    except ImportError:
        raise TaskError(f"{put}; or fetch it from the hub: pip install 'metaagentx[hub]'") from None
    # Five retries per file are logged as warnings; the one error below says the same.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)

    def fetch(hub: Hub) -> list[Rows]:
        if hub.files:
            names = [name for name in hub.files if name.removesuffix(".jsonl") in files]
            paths = [huggingface_hub.hf_hub_download(hub.repository, name, repo_type="dataset") for name in names]
            return [JsonlRows(Path(path)) for path in paths]
        table = datasets.load_dataset(hub.repository, hub.config or None, split=hub.split or split)
        known = {*source.fields, *source.optional_fields}
        table = table.select_columns([name for name in table.column_names if name in known])
        return [TableRows(f"{hub.repository}/{hub.split or split}", len(table), table.__getitem__)]

    try:
        return [rows for hub in source.hub[split] for rows in fetch(hub)]
    except Exception as error:
        # Whatever the cause (no network, a mirror's error page, a full disk), the remedy is the same file.
        raise TaskError(
            f"{put}; the hub did not give {source.hub[split][0].repository}: {first_line(error)}"
        ) from error
