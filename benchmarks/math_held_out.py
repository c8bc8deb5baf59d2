r"""A second list of pairs, written after the grader was finished and graded once before anything was fixed.

The first list steered the work, so its error rates flatter; docs/graders.md gives the first result on this one.
"""

from collections.abc import Iterator

from benchmarks.math_perturbations import Pair

# (gold, [equal answers], [wrong answers])
ROWS: list[tuple[str, list[str], list[str]]] = [
    (r"\frac{11}{36}", [r"\frac{11}{36}\approx 0.3056", r"11/36", r"\frac{22}{72}"], ["0.3056", r"\frac{11}{35}",
     r"\frac{1}{3}"]),
    (r"\frac{5\pi}{12}", [r"\frac{5}{12}\pi", r"5\pi/12", r"75^\circ"], [r"\frac{5\pi}{6}", "1.309",
     r"\frac{12\pi}{5}"]),
    (r"2\sqrt{13}", [r"\sqrt{52}", r"2 \sqrt{13} \text{ cm}", r"\sqrt{4 \cdot 13}"], [r"13\sqrt{2}", "7.211",
     r"\sqrt{26}", r"4\sqrt{13}"]),
    (r"\frac{\sqrt{6}+\sqrt{2}}{4}", [r"\cos 15^\circ", r"\frac{1}{4}(\sqrt{2}+\sqrt{6})", r"\sin 75^{\circ}"],
     [r"\frac{\sqrt{6}-\sqrt{2}}{4}", r"\frac{\sqrt{8}}{4}", "0.9659"]),
    ("144", [r"12^2", r"144 \text{ ways}", r"\mathbf{144}", r"4! \cdot 3!", r"\text{The answer is } 144"], ["145",
     "12", r"14.4", r"4!\cdot 3"]),
    (r"2^{2023}", [r"2\cdot 2^{2022}", r"4^{1011}\cdot 2"], [r"2^{2024}", r"2^{2022}", r"2023^2"]),
    ("-1", [r"i^2", r"\cos\pi", r"e^{i\pi}", r"\log_{10} 0.1"], ["1", "i", r"\pm 1", r"\cos 2\pi"]),
    (r"\frac{1}{2}+\frac{\sqrt{3}}{2}i", [r"\frac{1+\sqrt{3}i}{2}", r"\frac{1+i\sqrt{3}}{2}", r"e^{i\pi/3}",
     r"\cos 60^\circ + i \sin 60^\circ"],
     [r"\frac{1-i\sqrt{3}}{2}", r"\frac{1+\sqrt{3}}{2}", r"\frac{\sqrt{3}+i}{2}"]),
    (r"3\cdot 5^2\cdot 7", ["525", r"3\times 25\times 7", r"7\cdot 5^2\cdot 3"], ["175", r"3\cdot 5\cdot 7",
     r"3+5^2+7"]),
    (r"x=2,\ y=-1", [r"y=-1, x=2", r"x = 2, y = -1"], [r"x=-1, y=2", r"x=2, y=1", "2"]),
    (r"(x-3)^2+(y+2)^2=16", [r"(y+2)^2+(x-3)^2=16", r"x^2-6x+y^2+4y-3=0", r"(x-3)^2+(y+2)^2=4^2"],
     [r"(x+3)^2+(y-2)^2=16", r"(x-3)^2+(y+2)^2=4", "16"]),
    (r"y=-\frac{1}{2}x+4", [r"y=4-\frac{x}{2}", r"x+2y=8", r"2y + x - 8 = 0", r"y = -0.5x+4"], [r"y=\frac{1}{2}x+4",
     r"x+2y=4", r"y=-2x+4"]),
    (r"\left(\frac{3}{2},\frac{13}{4}\right)", [r"(1.5, 3.25)", r"\left(1\frac12, 3\frac14\right)",
     r"x=1.5,y=3.25"], [r"\left(\frac{13}{4},\frac{3}{2}\right)", "(1.5,3.2)", "4.75"]),
    (r"(0,9)\cup(9,36)", [r"(9,36)\cup(0,9)", r"\left(0,9\right) \cup \left(9,36\right)"], [r"(0,36)",
     r"(0,9]\cup(9,36)", r"[0,9)\cup(9,36]"]),
    (r"\left[-\frac{1}{2},\frac{1}{2}\right]", [r"[-0.5,0.5]", r"-\frac12\le x\le\frac12", r"|x| \le \frac{1}{2}"],
     [r"(-\frac12,\frac12)", r"[-0.5,0.6]", r"-\frac12<x<\frac12"]),
    (r"x<-2 \text{ or } x>3", [r"(-\infty,-2)\cup(3,\infty)", r"x>3 \text{ or } x<-2"], [r"x<-2 \text{ or } x\ge 3",
     r"-2<x<3", r"(-\infty,-2]\cup(3,\infty)"]),
    (r"k\pi, k\in\mathbb{Z}", [r"k\pi, k \in \mathbb{Z}", r"k \pi,\ k\in\mathbb{Z}"], [r"2k\pi, k\in\mathbb{Z}",
     r"k\pi", r"\pi"]),
    (r"\{-2,0,2\}", [r"0,\pm 2", r"\{0, -2, 2\}", r"x = -2, 0, 2", r"-2, 0, \text{ and } 2"], [r"\{-2,2\}",
     r"\pm 2", r"\{-2,0,1\}", r"0,2"]),
    (r"\{(1,2),(2,1)\}", [r"(2,1),(1,2)", r"\{(2,1),(1,2)\}", r"(1,2) \text{ or } (2,1)"], [r"(1,2)",
     r"\{(1,1),(2,2)\}", r"\{1,2\}"]),
    (r"a^2-b^2", [r"(a-b)(a+b)", r"-b^2+a^2", r"-(b-a)(b+a)"], [r"b^2-a^2", r"(a-b)^2", r"A^2-B^2", r"a^2+b^2"]),
    (r"\frac{x^2-1}{x+2}", [r"\frac{(x-1)(x+1)}{x+2}", r"(x^2-1)/(x+2)", r"x-2+\frac{3}{x+2}"],
     [r"\frac{x^2+1}{x+2}", r"x-1", r"\frac{x^2-1}{x-2}"]),
    (r"\ln(x+1)+C", [r"C+\ln(x+1)", r"\ln (1+x) + C"], [r"\ln(x+1)", r"\ln x + C", r"\log_{10}(x+1)+C"]),
    (r"n!", [r"n\cdot(n-1)!", r"n!"], [r"(n-1)!", r"(n+1)!", r"n"]),
    (r"\frac{4^n-1}{3}", [r"\frac{2^{2n}-1}{3}", r"\frac{1}{3}(4^n-1)"], [r"\frac{4^n+1}{3}", r"\frac{2^n-1}{3}",
     r"4^n-1"]),
    (r"\sec^2 x", [r"\frac{1}{\cos^2 x}", r"1+\tan^2 x", r"\sec^2(x)"], [r"\tan^2 x", r"\sec x", r"\csc^2 x"]),
    (r"\arctan 2", [r"\tan^{-1} 2", r"\tan^{-1}(2)", r"\frac{\pi}{2}-\arctan\frac{1}{2}"], [r"\arctan\frac12",
     "1.107", r"\frac{1}{\tan 2}"]),
    (r"\log_3 10", [r"\frac{\log 10}{\log 3}", r"\frac{1}{\log_{10} 3}"], [r"\log_{10} 3", "2.096", r"\ln 10"]),
    (r"\begin{pmatrix}2\\-1\end{pmatrix}", [r"\begin{bmatrix} 2 \\ -1 \end{bmatrix}",
     r"\left(\begin{matrix}2\\-1\end{matrix}\right)"], [r"\begin{pmatrix}-1\\2\end{pmatrix}",
     r"\begin{pmatrix}2&-1\end{pmatrix}", "2"]),
    (r"50\sqrt{3}\text{ m}^2", [r"50\sqrt{3}", r"50\sqrt{3}\ \text{square meters}", r"50\sqrt3\,\mathrm{m}^2"],
     [r"50\sqrt{3}\text{ m}", r"50\sqrt{2}", "86.6", r"25\sqrt{3}\text{ m}^2"]),
    (r"\$1{,}250", ["1250", r"\$1,250.00", r"1250\text{ dollars}", "$1250"], ["125", "1251", r"\$12.50", "1,25"]),
    (r"3\text{ hours}", ["3", r"3\text{ h}", "3 hours"], [r"3\text{ minutes}", "4", r"3\text{ days}"]),
    (r"20\%", [r"0.2", r"\frac15", r"20 \%", "20 percent"], [r"0.02", r"2\%", r"20.5\%", "200"]),
    ("3:5", [r"3 : 5", r"3:5"], ["5:3", "3:4", "35"]),
    (r"\text{odd}", [r"\text{Odd}", "odd"], [r"\text{even}", "o"]),
    (r"\text{Monday}", [r"\textit{Monday}", r"\text{ Monday }"], [r"\text{Tuesday}", r"\text{Sunday}"]),
    ("B", [r"\text{B}", r"\textbf{B}", r"\text{(B)}", r"\mathrm{(B)}"], ["A", r"\text{(A)}", "AB", "A, B", "8"]),
    (r"101101_2", [r"101101_{2}", r"101101_{\text{two}}", "101101"], ["45", "101101_3", "10110_2"]),
    ("1.5", [r"\frac32", r"1\frac12", r"1.50", r"3/2"], ["1.05", "15", r"\frac23", "1.49"]),
    (r"6.02\times 10^{23}", [r"6.02 \cdot 10^{23}", r"602\times 10^{21}", "6.02e23"], [r"6.02\times 10^{22}",
     r"6.03\times 10^{23}", "6.02"]),
    (r"mg\sin\theta", [r"mg \sin(\theta)", r"\sin\theta \, mg", r"F = mg\sin\theta"], [r"mg\cos\theta",
     r"g\sin\theta", r"Mg\sin\theta"]),
    (r"v_0\sqrt{\frac{2h}{g}}", [r"\sqrt{\frac{2h}{g}}v_0", r"v_{0}\sqrt{2h/g}",
     r"v_0\left(\frac{2h}{g}\right)^{1/2}"], [r"v_0\sqrt{\frac{h}{g}}", r"v\sqrt{\frac{2h}{g}}", r"v_0\frac{2h}{g}"]),
    (r"\frac{GM}{r^2}", [r"GMr^{-2}", r"g=\frac{GM}{r^2}", r"\frac{MG}{r^{2}}"], [r"\frac{GM}{r}",
     r"\frac{Gm}{r^2}", r"\frac{GM}{R^2}"]),
    ("7", [r"\boxed{7}", r"n=7", r"7\,", "seven=7", r"\frac{14}{2}=7", r"7.000"], ["8", "n=8", "7, 8", "7 or 8",
     r"7\text{ or }8", r"\text{7 or 8}", r"7\text{ or 8}", r"7\text{ million}", "6=7", "7=8", "1 7", "7..."]),
]  # fmt: skip


def held_out() -> Iterator[Pair]:
    """The pairs of the second list; every gold is also compared with itself."""
    for gold, right, wrong in ROWS:
        yield Pair("held out", gold, gold, True)
        yield from (Pair("held out", gold, answer, True) for answer in right)
        yield from (Pair("held out", gold, answer, False) for answer in wrong)
