"""Replies token by token: the pieces of a text, whatever a tokenizer does with spaces and parts of characters."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from metaagentx.rollout.token_lengths import token_lengths


class Pieces:
    """A tokenizer whose token n is the n-th piece of UTF-8; `strips`: it leaves out a leading space, as some do."""

    def __init__(self, pieces: Sequence[bytes], strips: bool = False) -> None:
        self._pieces, self._strips = pieces, strips

    def decode(self, tokens: Sequence[int]) -> str:
        text = b"".join(self._pieces[token] for token in tokens).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._strips else text

    def __getattr__(self, name: str) -> object:
        raise AttributeError(name)


def lengths(*pieces: bytes, strips: bool = False) -> tuple[int, ...]:
    tokenizer = Pieces(pieces, strips)
    tokens = range(len(pieces))
    return token_lengths(tokenizer, tokens, tokenizer.decode(tokens))  # type: ignore[arg-type]


def test_tokens_have_the_lengths_of_their_texts() -> None:
    assert lengths(b"Let", b" us", b" see", b"") == (3, 3, 4, 0)
    assert lengths() == ()


def test_a_space_that_is_left_out_belongs_to_its_token() -> None:
    assert lengths(b" Let", b" us", b" see", strips=True) == (3, 3, 4)


def test_a_character_of_several_tokens_belongs_to_the_last_of_them() -> None:
    snow = "☃".encode()
    assert lengths(b"a", snow[:1], snow[1:], b"b") in ((1, 0, 1, 1), (1, 0, 0, 2))


def test_a_text_that_tokens_do_not_fit_has_none() -> None:
    assert token_lengths(Pieces([b"one", b"two"]), [0, 1], "something else altogether") == ()  # type: ignore[arg-type]


@given(st.lists(st.text(max_size=5), max_size=30))
def test_lengths_add_up(words: list[str]) -> None:
    found = lengths(*(word.encode("utf-8", "replace") for word in words))
    assert found == () or sum(found) == len("".join(words).encode("utf-8", "replace").decode())
