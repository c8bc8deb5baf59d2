"""Tasks in the style of LeetCode, written for these tests: a class, tests that make instances of it, wrong variants.

`wrong` holds replacements in the solution's text, each of which makes it fail.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class ClassTask:
    """A right solution, changes that make it wrong, and the source of its tests."""

    name: str
    solution: str
    wrong: tuple[tuple[str, str], ...]
    tests: str


def method_task(name: str, solution: str, wrong: tuple[tuple[str, str], ...], calls: str) -> ClassTask:
    """A class Solution with one method, tested as `check(Solution().name)`; `calls` is the body of check."""
    body = "\n".join(f"    {line}" for line in calls.strip().splitlines())
    return ClassTask(name, solution, wrong, f"def check(candidate):\n{body}\n\ncheck(Solution().{name})\n")


METHOD_TASKS = (
    method_task(
        "pairWithSum",
        """class Solution:
    def pairWithSum(self, numbers: List[int], total: int) -> List[int]:
        seen = {}
        for place, number in enumerate(numbers):
            if total - number in seen:
                return [seen[total - number], place]
            seen[number] = place
        return []
""",
        (("total - number in seen", "total + number in seen"), ("return []", "return None"), (", place]", "]")),
        """assert candidate(numbers = [2, 9, 4, 7], total = 11) == [0, 1]
assert candidate(numbers = [5, 1, 5], total = 10) == [0, 2]
assert candidate([1, 2], 9) == []""",
    ),
    method_task(
        "longestRun",
        """class Solution:
    def longestRun(self, text: str) -> int:
        return max((len(list(group)) for _, group in groupby(text)), default=0)
""",
        (("default=0", "default=1"), ("max(", "min("), ("groupby(text)", "groupby(sorted(text))")),
        """assert candidate("abba") == 2
assert candidate("") == 0
assert candidate("aabcccca") == 4
assert candidate("abab") == 1""",
    ),
    method_task(
        "isBalanced",
        """class Solution:
    def isBalanced(self, text):
        stack, pairs = [], {")": "(", "]": "["}
        for character in text:
            if character in pairs.values():
                stack.append(character)
            elif character in pairs and (not stack or stack.pop() != pairs[character]):
                return False
        return not stack
""",
        (("return not stack", "return True"), ("not stack or ", "stack and "), ("return False", "return 0")),
        """assert candidate("([])") is True
assert candidate("([)]") is False
assert candidate("(") is False
assert candidate("]") is False""",
    ),
    method_task(
        "sortColors",
        """class Solution:
    def sortColors(self, colors: List[int]) -> None:
        counts = Counter(colors)
        colors[:] = [color for color in range(3) for _ in range(counts[color])]
""",
        (("colors[:] =", "colors ="), ("range(3)", "range(2)"), ("for color in range(3)", "for color in (2, 1, 0)")),
        """colors = [2, 0, 1, 2, 0]
assert candidate(colors) is None
assert colors == [0, 0, 1, 2, 2]
named = [1, 0]
candidate(colors=named)
assert named == [0, 1]""",
    ),
    method_task(
        "rotate",
        """class Solution:
    def rotate(self, grid):
        grid[:] = [list(row) for row in zip(*grid[::-1])]
""",
        (("grid[::-1]", "grid"), ("[list(row) for row in zip(*grid[::-1])]", "grid[::-1]")),
        """grid = [[1, 2], [3, 4]]
candidate(grid)
assert grid == [[3, 1], [4, 2]]""",
    ),
    method_task(
        "half",
        """class Solution:
    def half(self, value: float, /, digits: int = 2) -> float:
        return round(value / 2, digits)
""",
        (("value / 2", "value / 3"), ("digits: int = 2", "digits: int = 1")),
        """assert abs(candidate(5.5) - 2.75) < 1e-9
assert abs(candidate(1, digits=1) - 0.5) < 1e-9""",
    ),
    method_task(
        "groupByLength",
        """class Solution:
    def groupByLength(self, words: List[str]) -> Dict[int, List[str]]:
        groups = defaultdict(list)
        for word in words:
            groups[len(word)].append(word)
        return groups
""",
        (("groups[len(word)]", "groups[word[0]]"), ("append(word)", "append(len(word))")),
        """assert candidate(["a", "bb", "c"]) == {1: ["a", "c"], 2: ["bb"]}
assert candidate([]) == {}""",
    ),
    method_task(
        "mergeIntervals",
        """class Solution:
    def mergeIntervals(self, intervals):
        merged = []
        for low, high in sorted(intervals):
            if merged and low <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], high)
            else:
                merged.append([low, high])
        return merged
""",
        (("low <= merged", "low < merged"), ("max(merged[-1][1], high)", "high"), ("sorted(intervals)", "intervals")),
        """assert candidate([[5, 6], [1, 4], [2, 3]]) == [[1, 4], [5, 6]]
assert candidate([[1, 2], [2, 3]]) == [[1, 3]]""",
    ),
    method_task(
        "countPaths",
        """class Solution:
    @cache
    def countPaths(self, rows: int, columns: int) -> int:
        if rows == 1 or columns == 1:
            return 1
        return self.countPaths(rows - 1, columns) + self.countPaths(rows, columns - 1)
""",
        (("rows - 1, columns)", "rows - 1, columns - 1)"), ("return 1", "return 2")),
        """assert candidate(3, 7) == 28
assert candidate(rows=2, columns=2) == 2""",
    ),
    method_task(
        "reverseList",
        """class Solution:
    def reverseList(self, head):
        before = None
        while head:
            head.next, before, head = before, head, head.next
        return before
""",
        (("return before", "return head"), ("before, head, head.next", "None, head, head.next")),
        """class ListNode:
    def __init__(self, val=0, next=None): self.val, self.next = val, next
head = candidate(ListNode(1, ListNode(2, ListNode(3))))
values = []
while head:
    values.append(head.val)
    head = head.next
assert values == [3, 2, 1]
assert candidate(None) is None""",
    ),
    method_task(
        "depth",
        """class Solution:
    def depth(self, root: Optional["TreeNode"]) -> int:
        return 0 if root is None else 1 + max(self.depth(root.left), self.depth(root.right))
""",
        (("1 + max", "max"), ("root.right", "root.left")),
        """class TreeNode:
    def __init__(self, left=None, right=None): self.left, self.right = left, right
assert candidate(TreeNode(None, TreeNode(None, TreeNode()))) == 3
assert candidate(None) == 0""",
    ),
    method_task(
        "distinct",
        """class Solution:
    def distinct(self, items):
        return set(items), len(set(items))
""",
        (("len(set(items))", "len(items)"), ("set(items),", "list(set(items)),")),
        """assert candidate([1, 1, 2]) == ({1, 2}, 2)
found, count = candidate("aab")
assert found == {"a", "b"} and count == 2""",
    ),
    method_task(
        "parse",
        """class Solution:
    def parse(self, text):
        if not text.lstrip("-").isdigit():
            raise ValueError("not a number: " + text)
        return int(text)
""",
        (
            ("raise ValueError", "raise KeyError"),
            ("return int(text)", "return text"),
            ('raise ValueError("', 'return ("'),
        ),
        """assert candidate("-12") == -12
try:
    candidate("twelve")
except ValueError as error:
    assert "twelve" in str(error)
else:
    assert False""",
    ),
)

STATEFUL_TASKS = (
    ClassTask(
        "LRUCache",
        """class LRUCache:
    def __init__(self, capacity: int):
        self.capacity, self.items = capacity, OrderedDict()
    def get(self, key: int) -> int:
        if key not in self.items:
            return -1
        self.items.move_to_end(key)
        return self.items[key]
    def put(self, key: int, value: int) -> None:
        self.items[key] = value
        self.items.move_to_end(key)
        if len(self.items) > self.capacity:
            self.items.popitem(last=False)
""",
        (("last=False", "last=True"), ("return -1", "return None"), ("> self.capacity", "> self.capacity + 1"),
         ("            return -1\n        self.items.move_to_end(key)\n", "            return -1\n")),
        """c = LRUCache(2)
c.put(1, 1)
assert c.get(1) == 1
c.put(2, 2)
assert c.get(1) == 1
c.put(3, 3)
assert c.get(2) == -1
assert c.get(1) == 1 and c.get(3) == 3
""",
    ),
    ClassTask(
        "MinStack",
        """class MinStack:
    def __init__(self): self.items = []
    def push(self, value): self.items.append((value, min(value, self.items[-1][1]) if self.items else value))
    def pop(self): self.items.pop()
    def top(self): return self.items[-1][0]
    def getMin(self): return self.items[-1][1]
""",
        (("self.items[-1][1]) if", "value) if"), ("def pop(self): self.items.pop()", "def pop(self): pass")),
        """first, second = MinStack(), MinStack()
first.push(3)
first.push(5)
second.push(-1)
assert first.getMin() == 3 and second.getMin() == -1
first.push(1)
assert first.top() == 1 and first.getMin() == 1
first.pop()
assert first.getMin() == 3 and first.top() == 5
try:
    MinStack().top()
    raise RuntimeError("an empty stack has no top")
except IndexError:
    pass
""",
    ),
    ClassTask(
        "Trie",
        """class Trie:
    def __init__(self): self.words = set()
    def insert(self, word): self.words.add(word)
    def search(self, word): return word in self.words
    def startsWith(self, prefix): return any(word.startswith(prefix) for word in self.words)
""",
        (("self.words.add(word)", "self.words.add(word[:-1])"), ("return any(", "return all("),
         ("def __init__(self): self.words = set()", "words = {'bee'}\n    def __init__(self): pass")),
        """trie, other = Trie(), Trie()
trie.insert("apple")
assert trie.search("apple") and not trie.search("app") and trie.startsWith("app")
trie.insert("bed")
assert trie.startsWith("app") is True and trie.startsWith("b")
assert other.search("apple") is False and other.startsWith("b") is False
""",
    ),
    ClassTask(
        "Account",
        """class Account:
    rate = 2
    def __init__(self, owner: str, *, balance: int = 0, history: Optional[list] = None):
        self.owner, self.balance, self.history = owner, balance, history if history is not None else []
    def move(self, amount: int, to: "Account") -> "Account":
        self.balance -= amount
        to.balance += amount
        self.history.append((to.owner, amount))
        return self
    @staticmethod
    def parse(text): return int(text.strip())
    @property
    def empty(self): return self.balance == 0
    def __len__(self): return len(self.history)
    def __getitem__(self, place): return self.history[place]
    def __iter__(self): return iter(self.history)
    def __str__(self): return f"{self.owner}: {self.balance}"
""",
        (("to.balance += amount", "to.balance = amount"), ("return self\n", "return None\n"),
         ("rate = 2", "rate = 3"),
         ("self.balance == 0", "True"), ('{self.owner}: ', '{self.owner} ')),
        """a, b = Account("Ann", balance=10), Account("Bob", balance=1)
assert a.move(3, b) is a and a.move(amount=4, to=b).move(1, a) is a
assert (a.balance, b.balance) == (3, 8) and a.owner == "Ann"
assert len(a) == 3 and a[0] == ("Bob", 3) and [name for name, _ in a] == ["Bob", "Bob", "Ann"]
assert str(b) == "Bob: 8" and isinstance(a, Account) and a != b
assert Account.parse(" 7 ") == 7 and Account.rate == 2 and a.rate == 2
b.balance = 0
assert b.empty and not a.empty and not hasattr(a, "interest")
log = []
c = Account("Cem", history=log)
c.move(1, a)
assert c.history == [("Ann", 1)]
""",
    ),
    ClassTask(
        "Graph",
        """class Node:
    def __init__(self, name): self.name, self.edges = name, []
class Graph:
    def __init__(self, pairs=()):
        self.nodes = {}
        for pair in pairs: self.add(*pair)
    def add(self, one, other):
        self.node(one).edges.append(self.node(other))
    def node(self, name): return self.nodes.setdefault(name, Node(name))
    def reach(self, start):
        seen, todo = set(), [start if isinstance(start, Node) else self.node(start)]
        while todo:
            node = todo.pop()
            if node.name not in seen:
                seen.add(node.name)
                todo += node.edges
        return sorted(seen)
""",
        (("return sorted(seen)", "return sorted(seen)[1:]"), ("todo += node.edges", "pass")),
        """g = Graph([(1, 2), (2, 3), (4, 1)])
assert g.reach(1) == [1, 2, 3] and g.reach(4) == [1, 2, 3, 4]
node = g.node(2)
assert node.name == 2 and [edge.name for edge in node.edges] == [3]
assert g.reach(node) == [2, 3]
own = Node(9)
own.edges = [node]
assert g.reach(own) == [2, 3, 9] and own.edges[0].name == 2
""",
    ),
)  # fmt: skip
