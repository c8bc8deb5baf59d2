r"""Wrong answers that look right, written against the rules for signs, ratios, primes, thousands, regions and words.

One pair a line, the gold and the answer. All must be refused; KNOWN are those that are not.
"""

from collections.abc import Iterator

from benchmarks.math_perturbations import Pair

PAIRS = r"""
\pm 1 | 1
\pm 1, \pm 7 | \pm 1, \pm 7, 0
\pm 1, \pm 7 | 1, 7, -1
\pm 1, 7 | \pm 7, 1
(\pm 1, 0) | (1, \pm 0)
(\pm 1,\pm 2) | (1,2),(-1,-2)
(\pm 1,\pm 2) | (1,2),(1,-2),(-1,2),(-1,-2),(0,0)
(1,2),(-1,2) | (\pm 1,2),(1,2)
1,-1 | (1,-1),(−1,1)
2\pm 3 | 5
2\pm 3 | -5,1
2\pm 3 | 5,1
3:4:5 | 3:4.5
3:4:5 | 3/4/5
3:4:5 | 9:16:25
3:4:5 | -3:4:5
1:2 | 1:2:0
1:2:3 | 1:2:3:4
1:2:3 | 1:2, 3
2:3 | 4:9
2:3 | 3:2
1:1:1 | 1
1:1:1 | 1:1
12:00 | 0
12:00 | 12
12:30 | 6:15
7:05 | 7.05
0:0:1 | 0:1:0
a:b:c | a:c:b
42' | 42''
42 | 42^{''}
42^\circ | 42'
5'6'' | 5'7''
x' | x
f'(2) | f(2)
y'' | y'
30^\circ 15' | 30^\circ 16'
1234 | 1 234 5
1234 | 12 34
1234567 | 1,234 567
100200 | 100, 200
100 200 | 100, 200
12345 | 1 2 345
0.001 | 0 001
1000 | 1 000 000
3 1/2 | 31/2
10 | 1 0
5 123 | 5, 123
1.234 | 1,234
11111100 | 11,\! 111,\! 10
]0,1[ | ]0,1[ \cup \{1\}
]0,1[ | ]1,0[
]0,1[ | ]0,1
]0,1[ | 0,1
]0,1[ | [0,1]
]0,1] | [0,1[
(0,1) | (0,1),(0,1)
[0,1] | [0,1] \cup [2,3]
[0,2] | [0,1] \cup (1,2)
[0,2] | [0,1) \cup (1,2]
(0,2) | (0,1) \cup (1,2)
x<2 | x\le 2
x<2 | 2<x
x<2 \text{ or } x>5 | x<2 \text{ and } x>5
x<2 \text{ or } x>5 | 2<x<5
x<2 \text{ or } x>5 | x<5 \text{ or } x>2
x>2 \text{ and } x<5 | x>2 \text{ or } x<5
2<x<5 | 5<x<2
|x|<1 | |x|>1
|x|<1 | x<1
|x|<1 | -1<x<0
|x|<1 | |x|<-1
|x-1|<2 | (-3,1)
|x-1|<2 | |x+1|<2
|x|\ge 2 | [-2,2]
x\ne 3 | x=3
x\ne 3 | (-\infty,3)
\mathbb{R}\setminus\{1,2\} | \mathbb{R}\setminus\{1\}
\mathbb{R} | (0,\infty)
(-\infty,\infty) | \emptyset
\emptyset | \mathbb{R}
\emptyset | \text{solution}
\emptyset | \text{No solution for } x=1
\emptyset | \text{none of these}
\emptyset | \text{no integer solutions}
\text{No solution} | \text{No}
\text{no solutions} | 1 \text{ solution}
\{\} | ()
\{\} | \{1\}
\{\emptyset\} | \emptyset
0 | \text{none}
0 | \{\}
(1,0),(-1,0) | (\pm 1, 1)
(1,0) | (\pm 1,0)
6 | 2+3
6 | 2(4)
5 | 2(3)
7/2 | 3(1/2)
3\frac{1}{2} | 3\cdot\frac{1}{2}
(2,3) | 2(3)
23 | 2(3)
23 | (2)(3)
\{1,2\} | \{1,2,\}3
x=1 \text{ or } x=2 | x=1
x=1 \text{ or } x=2 | x=1 \text{ and } x=3
1 \text{ or } 2 | 1 \text{ or } 3
A \text{ or } B | A
y=2x \text{ or } y=3x | y=2x
x\ge 3 | [3,\infty) \cup \{1\}
x\ge 3 | [3,\infty]
(3,\infty) | 3<x<\infty, x\ne 5
[1,2] | \{1,2\}
[1,2] | 1,2
(1,2) | ]1,2]
x \in (0,1) | y \in (0,2)
t>3 | x>3
0<x<1 | 0<x<1 \text{ or } x=5
\{x \mid x>3\} | \{x \mid x\ge 3\}
\{x \mid x>3\} | x<3
(1,2)\cup(3,4) | (1,4)
(1,2)\cup(3,4) | (1,2)\cap(3,4)
(1,2),(3,4) | (1,2)\cup(3,4)
(1,2),(3,4) | (1,3),(2,4)
\frac{1}{2}:\frac{1}{3}:\frac{1}{6} | 3:2:2
x_1' | x_1
42 | 42^{\circ\prime}
10 | 10:1
1:10 | 10
0.5 | 1:2:1
x+x' | 2x
24 | 4(3)(1)
\pm\sqrt{2}\pm 1 | \sqrt2+1,-\sqrt2-1
\sqrt{2}+1,\sqrt2-1 | \pm\sqrt{2}\pm 1
2,3 | 2 \text{ or } 3 \text{ or } 4
100 | 1 00
1000000 | 1 000 00
"""
# A ratio of two parts is a fraction, whatever it stands for.
KNOWN = {("12:30", "6:15"), ("10", "10:1")}


def near_misses() -> Iterator[Pair]:
    """The pairs, none of which deserves to be accepted."""
    for line in PAIRS.strip().splitlines():
        gold, _, answer = line.partition(" | ")
        yield Pair("near misses", gold, answer, False)
