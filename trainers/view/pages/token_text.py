"""Texts of single tokens, for the token view. Without a tokenizer the view shows ids.

The tokenizer is read from local files: nothing is downloaded, and no code of a model is run.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_FILE = "tokenizer.json"
_UNREADABLE = "\ufffd"


class Pieces:
    """Texts of token ids. Each call looks for a tokenizer in the folders, in order, until one is found."""

    def __init__(self, folders: Sequence[Path], name: str = "") -> None:
        """Set the folders to search, and then the folder or hub name of the model. Only the local hub cache is used."""
        self._folders, self._name = (*folders, *([Path(name)] if name else [])), name
        self._tokenizer: Any = None
        self._asked_hub = False
        self.fault = ""
        """Error message of a tokenizer that could not be read; "" if there is none."""

    def texts(self, ids: Iterable[int]) -> dict[int, str] | None:
        """Return the text of each id; None if no tokenizer is available yet."""
        if self._tokenizer is None and not self._load():
            return None
        return {token_id: self._text(token_id) for token_id in ids}

    def _load(self) -> bool:
        for folder in self._folders:
            if (folder / _FILE).is_file():
                from tokenizers import Tokenizer

                try:
                    self._tokenizer, self.fault = Tokenizer.from_file(str(folder / _FILE)), ""
                    return True
                except Exception as error:  # The library raises only Exception.
                    self.fault = f"{folder / _FILE} cannot be read: {str(error)[:200]}"
        if self._name and not self._asked_hub and not Path(self._name).exists():
            self._asked_hub = True
            self._tokenizer = _from_hub(self._name)
        return self._tokenizer is not None

    def _text(self, token_id: int) -> str:
        """Return the text of a token, or its spelling in the vocabulary if it is not a whole character."""
        if token_id < 0:
            return _UNREADABLE
        spelling = self._tokenizer.id_to_token(token_id)
        if spelling is None:
            return _UNREADABLE
        text = str(self._tokenizer.decode([token_id], skip_special_tokens=False))
        if _UNREADABLE in text or not text:
            return str(spelling)
        # SentencePiece drops the space before the first token of a text, and here every token is the first.
        return f" {text}" if spelling.startswith("\u2581") and not text.startswith(" ") else text


def _from_hub(name: str) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError):
        return None
    return getattr(tokenizer, "backend_tokenizer", None)
