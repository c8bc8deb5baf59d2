"""Packs sequences into prefix trees, and trees into micro-batches: tokens of a shared prefix are computed once.

In lexicographic order the sequences of a tree follow one another as its branches do, depth first, so a tree is a list
of tokens in which node i is an ancestor of node j exactly when i <= j < ends[i]. That one inequality is the attention
mask, and the depth of a node is its position. Each sequence is in exactly one tree and keeps its path, so that its loss
is computed once, wherever trees are cut; a cut only repeats the tokens above it.

Trees are laid out in rows of equal length, several in a row where they fit. No torch here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Tokens in depth-first order; `paths` has the nodes of each sequence by its index."""

    tokens: list[int]
    depths: list[int]
    ends: list[int]
    """For each node, the first node after its descendants."""
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
    """How many positions hold a token; the rest are padding, which attends to itself only."""
    chains: bool
    """Each row is one sequence without branches, so that plain causal attention suffices."""


def pack(sequences: Mapping[int, Sequence[int]], token_budget: int, break_even: float) -> list[MicroBatch]:
    """Return micro-batches of at most `token_budget` positions. A longer sequence has its own micro-batch.

    `break_even` is how many attended tokens cost as much as the rest of the network does for one token. Sharing a
    prefix saves the network and adds attention to the other branches; a tree grows while that pays.
    """
    trees = build_trees(sequences, token_budget, break_even)
    trees.sort(key=lambda tree: -len(tree.tokens))
    batches = []
    while trees:
        rows, trees = _fill_rows(trees, token_budget)
        batches.append(_lay_out(rows))
    return batches


def build_trees(sequences: Mapping[int, Sequence[int]], token_budget: int, break_even: float) -> list[PrefixTree]:
    """Return the trees of the sorted sequences, each added to the tree before it where that pays."""
    ordered = sorted(((tuple(tokens), index) for index, tokens in sequences.items()))
    groups: list[list[tuple[tuple[int, ...], int, int]]] = []
    size = 0
    last: tuple[int, ...] = ()
    for tokens, index in ordered:
        shared = common_prefix(last, tokens)
        new_size = size + len(tokens) - shared
        attention_cost = (new_size**2 - size**2 - len(tokens) ** 2) / break_even
        if groups and shared and new_size <= token_budget and attention_cost <= shared:
            groups[-1].append((tokens, index, shared))
            size = new_size
        else:
            groups.append([(tokens, index, 0)])
            size = len(tokens)
        last = tokens
    return [_merge(group) for group in groups]


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the length of the shared prefix, by bisection: comparing two slices is a single call."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _merge(group: Sequence[tuple[tuple[int, ...], int, int]]) -> PrefixTree:
    """Return the tree of sorted sequences, each with its index and the length it shares with the one before it."""
    tokens: list[int] = []
    depths: list[int] = []
    ends: list[int] = []
    paths: dict[int, list[int]] = {}
    path: list[int] = []
    for sequence, index, shared in group:
        start, added = len(tokens), len(sequence) - shared
        for node in path[shared:]:
            ends[node] = start
        path = path[:shared] + list(range(start, start + added))
        paths[index] = path
        tokens += sequence[shared:]
        depths += range(shared, len(sequence))
        ends += [0] * added
    for node in path:
        ends[node] = len(tokens)
    return PrefixTree(tokens, depths, ends, paths)


def _fill_rows(trees: Sequence[PrefixTree], token_budget: int) -> tuple[list[list[PrefixTree]], list[PrefixTree]]:
    """Return the rows of one micro-batch, as long as its largest tree, and the trees that are left for the next.

    A tree much shorter than the rows starts none, it only fills gaps: in a long row it would pay for attention to all
    of it, and later micro-batches have rows of its own length.
    """
    length = len(trees[0].tokens)
    max_rows = max(1, token_budget // max(1, length))
    rows: list[list[PrefixTree]] = []
    room: list[int] = []
    left: list[PrefixTree] = []
    for tree in trees:
        size = len(tree.tokens)
        row = next((index for index, free in enumerate(room) if free >= size), None)
        if row is not None:
            rows[row].append(tree)
            room[row] -= size
        elif len(rows) < max_rows and 2 * size >= length:
            rows.append([tree])
            room.append(length - size)
        else:
            left.append(tree)
    return rows, left


def _lay_out(rows: Sequence[Sequence[PrefixTree]]) -> MicroBatch:
    length = max(sum(len(tree.tokens) for tree in row) for row in rows)
    tokens: list[int] = []
    depths: list[int] = []
    ends: list[int] = []
    paths: dict[int, list[int]] = {}
    used = 0
    chains = all(len(row) == 1 and row[0].depths[-1] == len(row[0].tokens) - 1 for row in rows)
    for index, row in enumerate(rows):
        column = 0
        for tree in row:
            start = index * length + column
            tokens += tree.tokens
            depths += tree.depths
            ends += [end + column for end in tree.ends]
            paths.update((sequence, [node + start for node in path]) for sequence, path in tree.paths.items())
            column += len(tree.tokens)
        used += column
        padding = range(column, length)
        tokens += [0] * len(padding)
        depths += padding if chains else [0] * len(padding)
        ends += [position + 1 for position in padding]
    return MicroBatch(len(rows), length, tokens, depths, ends, paths, used, chains)


@dataclass(frozen=True, slots=True)
class CompactNodes:
    """The nodes of all rows of a micro-batch one after the other, without padding. `ends` count in this list."""

    tokens: list[int]
    depths: list[int]
    ends: list[int]
    places: list[int]
    """For each position of the micro-batch its index in this list; -1 for padding."""


@dataclass(frozen=True, slots=True)
class AttentionSpan:
    """Adjacent nodes, and those that at least one of them attends to: ancestors of the first one, then the span."""

    start: int
    stop: int
    keys: list[int]
    ends: list[int]
    """Of the keys."""


def compact(batch: MicroBatch) -> CompactNodes:
    """Return a micro-batch without its padding."""
    positions = sorted({node for path in batch.paths.values() for node in path})
    places = [-1] * (batch.rows * batch.length)
    for index, position in enumerate(positions):
        places[position] = index
    # The last descendant of a node is a node, so its index tells where the descendants end.
    ends = [places[position - position % batch.length + batch.ends[position] - 1] + 1 for position in positions]
    tokens, depths = ([values[position] for position in positions] for values in (batch.tokens, batch.depths))
    return CompactNodes(tokens, depths, ends, places)


def attention_spans(nodes: CompactNodes, longest: int = 96, shortest: int = 32) -> list[AttentionSpan]:
    """Return spans that cover all nodes. One starts where a branch does, unless the span before is too short for that.

    Branches in one span are masked from one another, which costs little only while they are short.
    """
    starts = [node for node, depth in enumerate(nodes.depths) if node == 0 or depth != nodes.depths[node - 1] + 1]
    cuts = [0]
    for start, stop in zip(starts, [*starts[1:], len(nodes.depths)], strict=True):
        if start - cuts[-1] >= shortest or stop - cuts[-1] > longest:
            cuts.append(start)
        parts = -(-(stop - cuts[-1]) // longest)
        first, count = cuts[-1], stop - cuts[-1]
        cuts += [first + count * part // parts for part in range(1, parts)]
    cuts = [*dict.fromkeys(cuts), len(nodes.depths)]
    spans = []
    ancestors: list[int] = []
    node = 0
    for start, stop in pairwise(cuts):
        while node < start:
            ancestors.append(node)
            node += 1
        ancestors = [ancestor for ancestor in ancestors if nodes.ends[ancestor] > start]
        keys = [*ancestors, *range(start, stop)]
        spans.append(AttentionSpan(start, stop, keys, [nodes.ends[key] for key in keys]))
    return spans
