"""How many characters of a reply each token wrote, so that a page can show the reply token by token."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from ..policy import Tokenizer

_UNFINISHED = "\ufffd"
"""What a tokenizer decodes part of a character to."""
_NEARBY = 16
"""How far ahead the text of a token is searched, after one that wrote part of a character."""

_PIECES: WeakKeyDictionary[Tokenizer, dict[int, str]] = WeakKeyDictionary()


def token_lengths(tokenizer: Tokenizer, tokens: Sequence[int], text: str) -> tuple[int, ...]:
    """Return one number for each token; together they are the length of the text. Empty where tokens do not fit it.

    Tokens are decoded one by one, which is linear in their number. A character that several tokens write belongs to
    the last of them; a space that a tokenizer leaves out when it decodes a single token belongs to that token.
    """
    lengths: list[int] = []
    position = 0
    for token in tokens:
        piece = _decode(tokenizer, token).strip(_UNFINISHED)
        at = text.find(piece, position, position + len(piece) + _NEARBY) if piece else position
        if at < 0:
            return ()
        lengths.append(at + len(piece) - position)
        position = at + len(piece)
    if not lengths or len(text) - position > _NEARBY:
        return ()
    lengths[-1] += len(text) - position
    return tuple(lengths)


def _decode(tokenizer: Tokenizer, token: int) -> str:
    """Return the text of a token. It is kept: decoding one anew costs more than all else here."""
    known = _PIECES.setdefault(tokenizer, {})
    if token not in known:
        known[token] = tokenizer.decode([token])
    return known[token]
