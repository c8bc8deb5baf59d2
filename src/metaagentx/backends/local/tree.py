"""Data that begin alike become one tree, and trees become micro-batches: what is shared is computed once.

In lexicographic order the data of a tree follow one another as its branches do, depth first, so a tree is a list of
tokens in which node i is above node j exactly when i <= j < ends[i]. That one inequality is the attention mask, and the
depth of a node is its position. Each datum is wholly in one tree and keeps its path, so that its loss is computed once,
wherever trees are cut; a cut only repeats the tokens above it.

Trees lie in rows of equal length, side by side where a row has room. No torch here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tree:
    """Tokens in depth-first order; `paths` has for each datum the nodes of its tokens."""

    tokens: list[int]
    depths: list[int]
    ends: list[int]
    """For each node, the first node after those below it."""
    paths: Mapping[int, list[int]]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Trees in rows of equal length. `ends` count within their row; `paths` count through all rows."""

    rows: int
    length: int
    tokens: list[int]
    depths: list[int]
    ends: list[int]
    paths: Mapping[int, list[int]]
    used: int
    """How many of the places hold a token; the rest are padding, which attends to itself only."""
    chains: bool
    """Each row is one sequence without a branch: plain causal attention will do."""


def plan(sequences: Mapping[int, Sequence[int]], token_budget: int, span: float) -> list[MicroBatch]:
    """Micro-batches of at most `token_budget` places. A sequence that is longer alone has a micro-batch of its own.

    `span` is how many attended tokens cost as much as the rest of the network does for one token. Sharing saves the
    network and adds attention to the branches beside; a tree grows while that pays.
    """
    trees = grow_trees(sequences, token_budget, span)
    trees.sort(key=lambda tree: -len(tree.tokens))
    batches = []
    while trees:
        rows, trees = _fill(trees, token_budget)
        batches.append(_lay_out(rows))
    return batches


def grow_trees(sequences: Mapping[int, Sequence[int]], token_budget: int, span: float) -> list[Tree]:
    """The fewest tokens that are worth it: sequences in order, each on the tree before it or on a new one."""
    ordered = sorted(((tuple(tokens), index) for index, tokens in sequences.items()))
    groups: list[list[tuple[tuple[int, ...], int, int]]] = []
    size = 0
    last: tuple[int, ...] = ()
    for tokens, index in ordered:
        shared = common_prefix(last, tokens)
        grown = size + len(tokens) - shared
        attention = (grown**2 - size**2 - len(tokens) ** 2) / span
        if groups and shared and grown <= token_budget and attention <= shared:
            groups[-1].append((tokens, index, shared))
            size = grown
        else:
            groups.append([(tokens, index, 0)])
            size = len(tokens)
        last = tokens
    return [_join(group) for group in groups]


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two sequences share from their beginning, by halving: comparing slices is one call each."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _join(group: Sequence[tuple[tuple[int, ...], int, int]]) -> Tree:
    tokens: list[int] = []
    depths: list[int] = []
    ends: list[int] = []
    paths: dict[int, list[int]] = {}
    path: list[int] = []
    for sequence, index, shared in group:
        start, fresh = len(tokens), len(sequence) - shared
        for node in path[shared:]:
            ends[node] = start
        path = path[:shared] + list(range(start, start + fresh))
        paths[index] = path
        tokens += sequence[shared:]
        depths += range(shared, len(sequence))
        ends += [0] * fresh
    for node in path:
        ends[node] = len(tokens)
    return Tree(tokens, depths, ends, paths)


def _fill(trees: Sequence[Tree], token_budget: int) -> tuple[list[list[Tree]], list[Tree]]:
    """Rows for one micro-batch, as long as its largest tree, and the trees that are left for the next.

    A tree much shorter than the rows opens none, it only fills holes: in a long row it would pay for attention to
    all of it, and further down there are rows of its own length.
    """
    length = len(trees[0].tokens)
    most = max(1, token_budget // max(1, length))
    rows: list[list[Tree]] = []
    room: list[int] = []
    left: list[Tree] = []
    for tree in trees:
        size = len(tree.tokens)
        place = next((row for row, free in enumerate(room) if free >= size), None)
        if place is not None:
            rows[place].append(tree)
            room[place] -= size
        elif len(rows) < most and 2 * size >= length:
            rows.append([tree])
            room.append(length - size)
        else:
            left.append(tree)
    return rows, left


def _lay_out(rows: Sequence[Sequence[Tree]]) -> MicroBatch:
    length = max(sum(len(tree.tokens) for tree in row) for row in rows)
    tokens: list[int] = []
    depths: list[int] = []
    ends: list[int] = []
    paths: dict[int, list[int]] = {}
    used = 0
    chains = all(len(row) == 1 and row[0].depths[-1] == len(row[0].tokens) - 1 for row in rows)
    for number, row in enumerate(rows):
        column = 0
        for tree in row:
            start = number * length + column
            tokens += tree.tokens
            depths += tree.depths
            ends += [end + column for end in tree.ends]
            paths.update((index, [node + start for node in path]) for index, path in tree.paths.items())
            column += len(tree.tokens)
        used += column
        padding = range(column, length)
        tokens += [0] * len(padding)
        depths += padding if chains else [0] * len(padding)
        ends += [place + 1 for place in padding]
    return MicroBatch(len(rows), length, tokens, depths, ends, paths, used, chains)
