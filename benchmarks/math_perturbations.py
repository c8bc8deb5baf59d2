r"""Pairs of gold and answer with the verdict they deserve, for the error rates in docs/graders.md.

`accept` rewrites the gold as an honest solver might; `refuse` changes its value a little. Written by rules over the
GSM8K golds and over numbers, and by hand for the shapes of MATH, AIME and OlympiadBench golds (none is copied from
there). The box is added by whoever grades.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

GSM8K = Path(__file__).parent.parent / "tests" / "data" / "gsm8k_train_300.jsonl"


@dataclass(frozen=True)
class Pair:
    """An answer, what it is compared with, and whether it is right."""

    kind: str
    gold: str
    answer: str
    accept: bool


# kind: [(gold, [equal answers], [wrong answers])]
BY_HAND: dict[str, list[tuple[str, list[str], list[str]]]] = {
    "fractions": [
        (r"\frac{3}{4}", [r"\dfrac{3}{4}", r"\frac34", "3/4", "0.75", ".75", r"\frac{6}{8}", r"\tfrac{3}{4}",
         r"75\%"],
         [r"\frac{4}{3}", r"\frac{3}{5}", "0.76", "0.7", r"-\frac{3}{4}", "34", r"\frac{3}{4}+1", "3.4"]),
        (r"-\frac{7}{12}", [r"\frac{-7}{12}", r"\frac{7}{-12}", "-7/12", r"-\dfrac{14}{24}", r"- \frac{7}{12}"],
         [r"\frac{7}{12}", r"-\frac{12}{7}", "-0.583", "-0.583333", r"-\frac{7}{11}", "-0.58333333"]),
        (r"\frac{1}{3}", [r"0.\overline{3}", "1/3", r"\frac{2}{6}", r"1 \div 3", r"0.\bar{3}", r"3^{-1}"],
         ["0.3", "0.33", "0.333333", "0.3333333333", r"\frac{1}{4}", "3", "0.34"]),
        (r"\frac{17}{5}", ["3.4", r"3\frac{2}{5}", r"3 \frac{2}{5}", "17/5", "3 2/5", r"\frac{34}{10}"],
         [r"3\frac{5}{2}", "3.5", r"\frac{5}{17}", r"\frac{6}{5}", "3.04"]),
        (r"\frac{a}{b}", [r"a/b", r"\dfrac ab", r"\frac{2a}{2b}", r"a b^{-1}"], [r"\frac{b}{a}", "ab",
         r"\frac{a}{2b}"]),
        (r"0.\overline{72}", [r"\frac{8}{11}", r"\frac{72}{99}"], ["0.72", r"\frac{18}{25}", "0.7272"]),
    ],
    "integers": [
        ("25", ["025", "25.0", "+25", "25.", r"\text{25}", r"\textbf{(025)}", "(25)", "5^2", r"\frac{50}{2}",
         r"25^\circ",
                "$25$", r"\mathbf{25}", r"20+5", "2.5e1", r"2.5\times 10^1"],
         ["26", "24", "-25", "2.5", "250", "25.1", "25, 26", "25 or 26", "52", "5^3", "25x", r"\frac{25}{2}",
         "25.0001"]),
        ("073", ["73", r"\textbf{(073)}", "073", r"\text{(73)}"], ["72", "74", "730", "-73"]),
        ("1234567", ["1,234,567", r"1{,}234{,}567", r"1\,234\,567", "1234567.0", r"1.234567\times 10^6"],
         ["1234568", "1,234,566", "123,456", "1.234567", "1 234"]),
        ("-8", ["-8", r"-2^3", r"(-2)^3", "−8", r"- 8"], ["8", "-7", "-9", "-80", "0.8"]),
        ("0", ["0", "0.0", "-0", r"\frac{0}{5}", "1-1"], ["1", "-1", "0.0001", r"10^{-20}", r"\emptyset"]),
        ("1000000", [r"10^6", "1,000,000", r"1\times10^{6}", "1e6"], [r"10^5", "1,000,00", "1,000,001", r"6^{10}"]),
        (r"2^{100}", [r"4^{50}", r"1267650600228229401496703205376", r"2^{99}\cdot 2"],
         [r"2^{101}", r"1267650600228229401496703205377", r"2^{100}+1", r"1.2676506\times 10^{30}"]),
    ],
    "radicals": [
        (r"\sqrt{2}", [r"\sqrt2", r"2^{1/2}", r"2^{\frac{1}{2}}", r"\frac{2}{\sqrt{2}}", r"\sqrt[2]{2}"],
         ["1.414", "1.41421356", "1.4142135623730951", r"\sqrt{3}", "2", r"-\sqrt{2}", r"\pm\sqrt{2}", r"2\sqrt{2}"]),
        (r"\frac{3\sqrt{3}}{4}", [r"\frac{3}{4}\sqrt{3}", r"\frac{\sqrt{27}}{4}", r"0.75\sqrt{3}",
         r"\frac{9}{4\sqrt{3}}",
                                 r"3\sqrt{3}/4"],
         [r"\frac{3\sqrt{3}}{2}", r"\frac{3\sqrt{2}}{4}", r"\frac{4}{3\sqrt{3}}", "1.299", "1.299038"]),
        (r"3+2\sqrt{2}", [r"2\sqrt{2}+3", r"(1+\sqrt{2})^2", r"3+\sqrt{8}", r"3 + 2 \sqrt 2"],
         [r"3-2\sqrt{2}", r"2+3\sqrt{2}", r"5\sqrt{2}", "5.828", r"3+2\sqrt{3}"]),
        (r"\sqrt[3]{4}", [r"4^{1/3}", r"4^{\frac13}", r"2^{\frac{2}{3}}", r"\sqrt[3]{\frac{8}{2}}"],
         [r"\sqrt{4}", r"\sqrt[4]{3}", r"\sqrt[3]{2}", "1.5874"]),
        (r"\frac{-1+\sqrt{5}}{2}", [r"\frac{\sqrt{5}-1}{2}", r"\frac{2}{1+\sqrt{5}}", r"\frac{\sqrt5}{2}-\frac12"],
         [r"\frac{1+\sqrt{5}}{2}", r"\frac{-1-\sqrt{5}}{2}", "0.618", r"\frac{\sqrt{5}-1}{4}"]),
        (r"\sqrt{5+2\sqrt{6}}", [r"\sqrt{2}+\sqrt{3}", r"\sqrt{3}+\sqrt{2}"], [r"\sqrt{5}+\sqrt{6}",
         r"\sqrt{3}-\sqrt{2}"]),
    ],
    "constants": [
        (r"\frac{\pi}{6}", [r"\pi/6", r"\frac{1}{6}\pi", r"\frac{2\pi}{12}", r"\arcsin\frac{1}{2}", "π/6",
         r"30^\circ"],
         ["0.5236", r"\frac{\pi}{3}", r"30", r"\frac{6}{\pi}", r"\frac{\pi}{5}", r"31^\circ"]),
        (r"4\pi", [r"4 \pi", r"\pi\cdot 4", r"2\cdot 2\pi"], ["12.566", r"4\pi^2", r"2\pi", "4", r"-4\pi"]),
        (r"\ln 2", [r"\log_e 2", r"\frac{1}{2}\ln 4", r"\ln(2)", r"-\ln\frac{1}{2}"], ["0.693", r"\ln 3",
         r"\log_{10} 2", "2"]),
        (r"e^2", [r"e\cdot e", r"e^{2}", r"\frac{1}{e^{-2}}"], ["7.389", r"2^e", r"e^3", r"2e"]),
        (r"\log_2 5", [r"\frac{\ln 5}{\ln 2}", r"\log_{2}(5)", r"1+\log_2\frac{5}{2}"], [r"\log_5 2", "2.3219",
         r"\log_2 6"]),
        (r"120", [r"5!", r"\binom{10}{3}", r"2^3\cdot 15"], [r"6!", r"\binom{10}{4}", "121"]),
        (r"\frac{1}{2}", [r"\sin 30^\circ", r"\cos 60^\circ", r"\sin\frac{\pi}{6}"], [r"\sin 30", r"\sin 60^\circ",
         r"\cos 30^\circ"]),
    ],
    "small numbers": [
        (r"1.6\times 10^{-19}", [r"1.6 \cdot 10^{-19}", r"0.16\times10^{-18}", "1.6e-19"],
         [r"9.1\times 10^{-31}", r"1.6\times 10^{-18}", r"1.7\times 10^{-19}", "0", r"3.2\times 10^{-19}"]),
        (r"\frac{1}{10^{20}}", [r"10^{-20}", r"0.1^{20}"], [r"\frac{2}{10^{20}}", r"10^{-21}", "0", r"-10^{-20}"]),
        (r"10^{-16}\pi", [r"\frac{\pi}{10^{16}}"], [r"2\cdot 10^{-16}\pi", r"10^{-17}\pi", "0"]),
    ],
    "decimals": [
        ("0.64", ["0.640", ".64", r"\frac{16}{25}", r"\frac{64}{100}", r"64\%"], ["0.63", "0.65", "6.4", "0.6",
         "0.6400001", "64"]),
        ("3.14", ["3.140", r"\frac{157}{50}"], [r"\pi", "3.1", "3.1416", "31.4", "3.15"]),
        ("18.90", ["18.9", r"\$18.90", r"\$18.9", "18.90 dollars", r"18.90\text{ dollars}"], ["18.09", "19", "18.8",
         "1890", "189"]),
        ("1.36", ["1.360"], ["1.35", "1.37", "1.4", "1.361", "136"]),
    ],
    "percentages": [
        (r"12\%", ["12", r"12\%", r"0.12", "12%", r"\frac{3}{25}", r"12\text{ percent}"], ["1.2", r"1.2\%", r"13\%",
         "0.012", r"-12\%", "120"]),
        ("37.5", [r"37.5\%", "37.50", r"\frac{75}{2}"], [r"37\%", "0.375", "3.75", "37.6"]),
        ("0.6", [r"60\%", r"\frac{3}{5}", "60%"], [r"0.6\%", r"6\%", r"61\%", "60", r"600\%"]),
    ],
    "lists": [
        ("3,5", ["5,3", "3, 5", r"3 \text{ and } 5", r"5 \text{ or } 3", r"\{3,5\}", r"x=3, x=5",
         r"x = 3 \text{ or } x = 5", "(3,5)",
                 r"4\pm 1", r"3,\ 5", "3 and 5", "5; 3", r"\left\{3,5\right\}"],
         ["3", "5", "3,5,7", "3,6", "-3,5", "3,5,5", "3,3,5", "35", "8", "15", "3.5", r"(5,3)", "3,5,3", r"4\pm 2"]),
        (r"1,-2,\frac{1}{2}", [r"-2, 0.5, 1", r"\{-2,\frac12,1\}"], [r"1,-2", r"1,2,\frac12", r"1,-2,\frac13",
         r"1,1,-2", "-2, 1"]),
        (r"-\sqrt{3},\sqrt{3}", [r"\pm\sqrt{3}", r"\sqrt{3}, -\sqrt{3}", r"x=\pm\sqrt 3"], [r"\sqrt{3}", r"\pm 3",
         r"\pm\sqrt{2}", r"-\sqrt{3}"]),
        (r"1\pm\sqrt{2}", [r"1+\sqrt{2}, 1-\sqrt{2}", r"1\mp\sqrt{2}"], [r"1+\sqrt{2}", r"-1\pm\sqrt{2}",
         r"\pm 1+\sqrt{2}, 5"]),
        ("120, 240", ["240, 120", "120,240", r"\{120,240\}"], ["120", "120, 241", "120240"]),
        ("4,6,14,15", ["15,14,6,4", "4, 6, 14, 15"], ["4,6,14", "4.6", "4,6,14,15,15", "4,6,14,16", "4,6", "461415"]),
    ],
    "sets": [
        (r"\{1,2,3\}", [r"\{3,2,1\}", r"\left\{1,2,3\right\}", r"\lbrace 1, 2, 3\rbrace", "1,2,3"],
         [r"\{1,2\}", r"\{1,2,3,4\}", r"(1,2,3)", r"\{1,2,4\}", r"\{1,2,3,3\}", r"[1,3]", r"\{-1,2,3\}"]),
        (r"\{5\}", ["5", r"\{5\}", r"x=5"], ["6", r"\{5,6\}", r"\{-5\}", r"\emptyset"]),
        (r"\emptyset", [r"\varnothing", r"\emptyset"], ["0", r"\{0\}", "1"]),
    ],
    "tuples": [
        ("(3,-5)", [r"(3, -5)", r"\left(3,-5\right)", "(3.0,-5)", r"(x,y)=(3,-5)", r"(\frac{6}{2},-5)", "3,-5"],
         ["(-5,3)", "(3,5)", "(3,-6)", "(-3,-5)", "(3,-5,0)", "3", r"\{3,-5\}", "[3,-5]", "-5,3", "(2,-5)"]),
        (r"(1,\frac{1}{2},\sqrt{2})", [r"(1,0.5,\sqrt{2})", r"\left(1,\frac{1}{2},2^{1/2}\right)"],
         [r"(1,\frac12,1.414)", r"(\frac12,1,\sqrt{2})", r"(1,\frac12)", r"(1,\frac{1}{3},\sqrt{2})"]),
        ("(2,1),(3,1)", ["(3,1),(2,1)", r"(2,1)\text{ and }(3,1)", r"\{(2,1),(3,1)\}"], ["(1,2),(3,1)", "(2,1)",
         "(2,1),(1,3)", "(2,1),(3,1),(2,1)", "2,1,3,1"]),
        ("(4,-5)", ["(4,-5)", "4,-5"], [r"4 \text{ or } -5", "(4 or -5)", "4 and -5",
         r"(4 \text{ and } -5)", "(4,-5)'"]),
        ("(a,b)", ["(a, b)", r"\left(a,b\right)"], ["(b,a)", "(a,-b)", "(a,b,c)"]),
    ],
    "intervals": [
        (r"[3,\infty)", [r"x\ge 3", r"x \geq 3", r"[3,+\infty)", r"3\le x", r"x\in[3,\infty)",
         r"\left[3,\infty\right)"],
         [r"(3,\infty)", r"x>3", r"[3,\infty]", r"(-\infty,3]", r"[4,\infty)", r"x\le 3", "3", r"[-3,\infty)"]),
        (r"(-1,2)", [r"-1<x<2", r"x\in(-1,2)", r"2>x>-1", r"\left(-1,2\right)"], [r"[-1,2]", r"-1\le x\le 2",
         r"(-1,2]", r"(2,-1)", r"(-2,1)", r"-1<x\le 2", r"(-1,3)"]),
        (r"(-\infty,1]\cup[10,\infty)", [r"[10,\infty)\cup(-\infty,1]", r"x\in(-\infty,1]\cup[10,+\infty)",
         r"(-\infty, 1] \cup [10, \infty)"],
         [r"(-\infty,1)\cup[10,\infty)", r"(-\infty,1]", r"[1,10]", r"(-\infty,1]\cup[11,\infty)",
         r"(-\infty,1]\cap[10,\infty)"]),
        (r"\left(-\infty,3\right)\cup\left(3,\infty\right)", [r"\mathbb{R}\setminus\{3\}",
         r"(3,\infty)\cup(-\infty,3)", r"x\ne 3"],
         [r"\mathbb{R}", r"\mathbb{R}\setminus\{-3\}", r"(-\infty,3)", r"x\ne -3"]),
        (r"x>5", [r"5<x", r"(5,\infty)", r"x>5.0"], [r"x\ge 5", r"x<5", "5", r"x>6", r"y>5", r"[5,\infty)"]),
    ],
    "expressions": [
        (r"x^2+2x+1", [r"(x+1)^2", r"1+2x+x^2", r"x(x+2)+1", r"(x+1)(x+1)", r"x^{2}+2x+1"],
         [r"x^2+2x-1", r"x^2-2x+1", r"x^2+x+1", r"2x^2+2x+1", r"(x-1)^2", r"y^2+2y+1", "x^2+2x"]),
        (r"x^4+x^3+x^2+x+1", [r"1+x+x^2+x^3+x^4", r"\frac{x^5-1}{x-1}"], [r"x^4+x^3+x^2+x", r"x^4-x^3+x^2-x+1"]),
        (r"e^{-x^2}", [r"\frac{1}{e^{x^2}}", r"e^{-x^{2}}"], [r"e^{x^2}", r"e^{-x}", r"-e^{x^2}"]),
        (r"\frac{11}{36}", [r"\frac{11}{36}\approx 0.3056", r"p=\frac{11}{36}\approx 0.31"],
         [r"\frac{11}{36}\approx 0.5", r"0.3056", r"\approx 0.3056", r"\frac{11}{35}\approx 0.3056"]),
        (r"2\sin x\cos x", [r"\sin 2x", r"\sin(2x)", r"2\cos x\sin x"], [r"\sin x\cos x", r"\cos 2x", r"2\sin x",
         r"\sin x^2"]),
        (r"\frac{n(n+1)}{2}", [r"\frac{n^2+n}{2}", r"\binom{n+1}{2}", r"\frac{1}{2}n(n+1)", r"n(n+1)/2"],
         [r"\frac{n(n-1)}{2}", r"n(n+1)", r"\frac{n^2+1}{2}", r"\binom{n}{2}", r"\frac{n(n+1)}{3}"]),
        (r"\frac{1}{x-1}", [r"(x-1)^{-1}", r"-\frac{1}{1-x}", r"\frac{x+1}{x^2-1}"], [r"\frac{1}{1-x}",
         r"\frac{1}{x+1}", r"x-1"]),
        (r"6+9i", [r"9i+6", r"3(2+3i)", r"6 + 9 i"], [r"6-9i", "6", r"9+6i", r"-6+9i", "15i", "15"]),
        (r"2i", [r"(1+i)^2", r"2 i"], ["2", "-2i", r"(1-i)^2"]),
        (r"\pi r^2", [r"r^2\pi", r"\pi r\cdot r"], [r"\pi R^2", r"2\pi r", r"\pi r", r"\pi d^2"]),
        (r"|x|", [r"\sqrt{x^2}", r"\left|x\right|", r"|-x|"], ["x", "-x", "x^2"]),
        (r"(-1)^n", [r"\cos(n\pi)", r"(-1)^{n+2}"], [r"(-1)^{n+1}", "1", "-1"]),
        (r"\frac{n!}{k!(n-k)!}", [r"\binom{n}{k}", r"\frac{n!}{(n-k)!k!}"], [r"\frac{n!}{(n-k)!}", r"\binom{k}{n}",
         r"\frac{n!}{k!}"]),
        (r"2^{n+1}-2", [r"2(2^n-1)", r"2\cdot 2^n-2"], [r"2^{n+1}-1", r"2^n-2", r"2^{n+1}"]),
        (r"0.5mv^2", [r"\frac{1}{2}mv^2", r"\frac{mv^2}{2}"], [r"mv^2", r"\frac12 m v", r"\frac12 Mv^2"]),
    ],
    "equations": [
        ("12", [r"x=12", r"x = 12", r"f(3)=12", r"AB = 12", r"10+2=12", r"x=10+2=12", r"x+y=12", "12=x",
         r"\text{Area}=12"],
         ["13=12", "12=13", "x=13=12", "x=12=13", "x=13", r"10+3=12", "2x=12", r"12\ne 12", r"12=12.5"]),
        (r"y=2x+3", [r"2x+3", r"y=3+2x", r"2x-y+3=0", r"y-2x=3", r"2y=4x+6"], [r"y=2x-3", r"y=3x+2", r"2x-y-3=0",
         r"x=2y+3", "3", r"y=2x"]),
        (r"x^2+y^2=25", [r"y^2+x^2=25", r"x^2=25-y^2", r"x^2+y^2-25=0", r"2x^2+2y^2=50"], [r"x^2+y^2=5",
         r"x^2-y^2=25", "25", r"x^2+y^2", r"x+y=5"]),
        ("x=1", ["1", "x=1", r"x = \frac{2}{2}"], ["x=2", "y=1", "2", "x=-1"]),
    ],
    "matrices": [
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", [r"\begin{bmatrix}1&2\\3&4\end{bmatrix}",
         r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
                                                  r"\left(\begin{array}{cc}1&2\\3&4\end{array}\right)",
                                                  r"\begin{pmatrix}1&\frac{4}{2}\\3&4\\ \end{pmatrix}"],
         [r"\begin{pmatrix}1&3\\2&4\end{pmatrix}", r"\begin{pmatrix}1&2\\3&5\end{pmatrix}",
         r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1&2&3&4\end{pmatrix}", "10",
         r"\begin{vmatrix}1&2\\3&4\end{vmatrix}"]),
        (r"\begin{pmatrix}-1\\ 2\\ \sqrt{2}\end{pmatrix}", [r"\begin{bmatrix}-1\\2\\2^{1/2}\end{bmatrix}"],
         [r"\begin{pmatrix}1\\2\\ \sqrt{2}\end{pmatrix}", r"\begin{pmatrix}-1&2&\sqrt{2}\end{pmatrix}",
         r"\begin{pmatrix}-1\\2\end{pmatrix}"]),
    ],
    "units": [
        (r"10\text{ cm}", ["10", r"10\text{ cm}", r"10\ \mathrm{cm}", "10 cm", r"10\text{ centimeters}",
         r"10\,\text{cm}"],
         [r"10\text{ m}", r"11\text{ cm}", r"100\text{ mm}", r"1\text{ cm}", r"10\text{ cm}^2", "100"]),
        (r"36\text{ square inches}", ["36", r"36\text{ in}^2", r"36\text{ square inches}"], ["6", r"36\text{ feet}",
         r"35\text{ square inches}"]),
        (r"336^\circ", ["336", r"336^{\circ}", "336°", r"336\text{ degrees}"], ["335", "337", r"336\pi",
         r"33.6^\circ", r"-336^\circ"]),
        ("0.64N", [r"0.64\text{N}", r"0.6400 N", r"\frac{16}{25}N", r"0.64\,\mathrm{N}"], ["0.64", "0.65N", "6.4N",
         "0.64M", "N"]),
        (r"5\text{ m/s}", ["5", r"5\text{ m/s}", r"5 \mathrm{~m/s}"], [r"5\text{ km/h}", "6", r"50\text{ m/s}"]),
        ("45", [r"45^\circ", r"45\text{ mph}", r"\$45", r"45\text{ minutes}"], [r"46^\circ", r"4.5",
         r"44\text{ mph}"]),
    ],
    "bases": [
        ("42_7", [r"42_{7}", "42_7", r"42_{\text{7}}", "42"], ["42_8", "43_7", "30", "24_7", "42_{10}", "420_7"]),
        ("30", [r"30_{10}", "30", "42_7"], ["30_7", "31_{10}", "42_8", "30_{16}"]),
        (r"1A3_{16}", [r"1A3_{16}", r"1a3_{16}"], ["1A3_{12}", "1A4_{16}", "419"]),
    ],
    "words": [
        (r"\text{Friday}", ["Friday", r"\text{friday}", r"\textbf{Friday}", r"\mathrm{Friday}"], [r"\text{Monday}",
         "F", r"\text{Fri day night}"]),
        (r"\text{(C)}", ["C", r"\textbf{(C)}", "(C)", r"\text{C}"], ["D", "c+1", r"\text{(B)}"]),
        (r"\text{even}", ["even", r"\text{Even}"], ["odd", r"\text{neither}"]),
        (r"\text{No}", ["No", r"\text{no}"], ["Yes", r"\text{yes}", "N"]),
    ],
    "unfinished": [
        ("5050", ["5050", r"\frac{100\cdot 101}{2}"], [r"\sum_{k=1}^{100} k", r"\sum_{k=1}^{100} k = 5051"]),
        ("2", ["2"], [r"2^{10} \bmod 7 + 0", r"\int_0^2 1\,dx", r"\lim_{x\to 2} x", r"\gcd(4,6)",
         r"\prod_{k=1}^{2}k", r"\max(1,2)"]),
    ],
    "signs": [
        (r"\pm 1, \pm 7", [r"\pm 7, \pm 1", r"1,-1,7,-7", r"\{-7,-1,1,7\}", r"\pm 1 \text{ and } \pm 7", r"\pm7,1,-1",
         r"x=\pm 1, \pm 7"], [r"\pm 1", "1,7", "1,-1,7", r"\pm 1, 7", r"\pm 1, \pm 8", r"1,-1,7,-7,0", r"\pm 1,\pm 1"]),
        ("-7,-1,1,7", [r"\pm 1, \pm 7", r"\pm 7, \pm 1"], [r"\pm 1, \pm 6", r"\pm 1, 7", "1,7"]),
        (r"(\pm 1,0)", ["(1,0),(-1,0)", r"(-1,0) \text{ and } (1,0)", r"\{(1,0),(-1,0)\}", r"(x,y)=(1,0),(-1,0)"],
         ["(1,0),(1,0)", "(1,0)", "(0,1),(0,-1)", "(1,0),(-1,0),(0,0)", r"(0,\pm 1)", "(1,-1)", "1,-1,0"]),
        ("(2,3),(-2,3)", [r"(\pm 2,3)", r"(\pm 2, 3)"], [r"(2,\pm 3)", r"(\pm 2,\pm 3)", r"(\pm 3,2)"]),
        ("(1,-1),(-1,1)", [r"(\pm 1,\mp 1)"], [r"(\pm 1,\pm 1)", r"(\pm 1, 1)"]),
        (r"\pm\sqrt{2\pm\sqrt{3}}", [r"\sqrt{2+\sqrt3},\sqrt{2-\sqrt3},-\sqrt{2+\sqrt3},-\sqrt{2-\sqrt3}"],
         [r"\sqrt{2+\sqrt3},-\sqrt{2-\sqrt3}", r"\pm\sqrt{2+\sqrt{3}}", r"\pm\sqrt{3\pm\sqrt{2}}"]),
    ],
    "ratios": [
        ("3:4:5", ["3 : 4 : 5", "6:8:10", "a:b:c=3:4:5", r"3\colon 4\colon 5", r"\frac{3}{5}:\frac{4}{5}:1"],
         ["3:5:4", "4:3:5", "3:4", "3:4:5:6", "3:4:6", "345", "5:4:3", r"\frac{3}{20}", "3,4,5"]),
        ("1:2", ["2:4", "1 : 2", r"\frac{1}{2}:1"], ["1:2:1", "2:1", "1:3", "12"]),
        ("1:2:1", ["2:4:2"], ["1:2", r"\frac12", "0.5", "1:1:2"]),
        (r"1:\sqrt{3}:2", [r"\sqrt{3}:3:2\sqrt{3}", r"\frac12:\frac{\sqrt3}{2}:1"], [r"1:2:\sqrt{3}", "1:3:2",
         r"1:\sqrt{2}:2"]),
        ("1:0:2", ["2:0:4"], ["1:2:0", "0:0:0", "1:1:2"]),
        ("7:05", ["7:05", "07:05"], ["7:50", "7:5", "7:5:0", "7:06", "14:10", "75"]),
    ],
    "primes": [
        ("42", ["42"], [r"42^{\prime}", "42'", r"42^\prime", r"42^{\prime\prime}", r"(42)'"]),
        (r"42^{\prime}", ["42'", r"42^\prime", r"42 ^{\prime}"], ["42", r"42^{\prime\prime}", r"43^{\prime}", "420"]),
        (r"f'(x)", [r"f^{\prime}(x)"], ["f(x)", "f''(x)"]),
        (r"2x'+x", [r"x+2x'"], ["3x", "3x'", "2x+x'"]),
    ],
    "products": [
        ("6", ["2(3)", "(2)(3)", r"(1)(2)(3)", r"12(\frac{1}{2})", r"(12)\frac{1}{2}"], ["4(2)", "(1)(5)", "3(3)"]),
        ("5", ["5(1)", "2(2)+1"], ["2(3)", "(2)(3)", "(4)(1)", "2 3", "1 4", r"2\{3\}", "1{4}", "2 + 1 2"]),
        (r"\frac{3}{2}x", [r"1\frac{1}{2}x", "1.5x", r"x\cdot 1\frac12"], [r"\frac{1}{2}x", r"2\frac{1}{2}x", "1 2x"]),
        (r"-\frac{1}{2}x+4", [r"4-\frac{x}{2}"], [r"-1\frac{1}{2}x+4", r"-\frac{1}{2}x+4'"]),
    ],
    "thousands": [
        ("11111100", [r"11,\! 111,\! 100", r"11,\!111,\!100", "11 111 100", "11,111,100", r"11\,111\,100"],
         [r"11,\! 111,\! 101", "11 111 10", "11 1111 00", "11 111", "11,111,10"]),
        (r"11,\! 111,\! 100", ["11111100", r"11,111,100", "11 111 100"], ["11111", "11, 111, 101", "1111110"]),
        ("1234567", ["1 234 567", "1~234~567", r"1\ 234\ 567", r"1 234 567\text{ km}", "1 234 567.0"],
         ["1 234 56", "12 34 567", "1 234 5678", "1 23 4567", "1 234 568", "1 234, 567", "1 234 . 567"]),
        ("1 234 567", ["1234567", "1,234,567"], ["1234", "567", "1 234 56", "1, 234, 567"]),
        ("123456", ["123 456"], ["1 234 56", "123 45 6", "123, 456 7"]),
    ],
    "regions": [
        (r"x\le 2 \text{ or } x\ge 3", [r"(-\infty,2]\cup[3,\infty)", r"x\ge 3 \text{ or } x\le 2",
         r"x\le 2 \lor x\ge 3",
         r"x\in(-\infty,2]\cup[3,+\infty)", r"[3,\infty)\cup(-\infty,2]", r"x \leq 2 or x \geq 3",
         r"\mathbb{R}\setminus(2,3)"],
         [r"x<2 \text{ or } x\ge 3", r"x\le 2 \text{ and } x\ge 3", r"2\le x\le 3", r"(-\infty,2)\cup[3,\infty)",
          r"x\le 2", r"y\le 2 \text{ or } y\ge 3", r"x\le 2 \text{ or } x\ge 4", r"x\ge 2 \text{ or } x\le 3"]),
        (r"(-\infty,2]\cup[3,\infty)", [r"x\le 2 \text{ or } x\ge 3", r"]-\infty,2]\cup[3,\infty["],
         [r"x\le 2 \text{ and } x\ge 3", r"x<2 \text{ or } x>3", r"]-\infty,2[\cup]3,\infty["]),
        ("]0,1[", ["(0,1)", "0<x<1", r"x\in ]0,1[", r"\left]0,1\right[", "]0;1["], ["]0,1]", "[0,1[", "[0,1]",
         r"0\le x<1", "]0,2[", "]1,0[", "0,1", "0, 1"]),
        (r"x\ge 3", [r"[3,\infty)", r"[3,+\infty["], [r"[3,\infty]", "]3,\\infty[", r"[3,\infty)\cup\{1\}"]),
        ("[0,1)", ["[0,1[", r"0\le x<1", r"\left[0,1\right["], ["]0,1[", "]0,1]", "[0,1]", "(0,1)"]),
        (r"[-\frac{1}{2},\frac{1}{2})\cup(1,2]", [r"[-0.5,0.5[\cup]1,2]"], [r"[-0.5,0.5[\cup[1,2]",
         r"[-0.5,0.5]\cup]1,2]"]),
        ("(-1,1)", ["|x|<1", "-1<x<1", r"\left|x\right| < 1", r"\{x \mid -1<x<1\}", r"|2x|<2",
         r"x>-1 \text{ and } x<1"],
         [r"|x|\le 1", "|x|>1", "|x|<2", "|x-1|<1", "x<1", r"x>-1 \text{ or } x<1", "|x|=1"]),
        ("|x|<1", ["(-1,1)", "-1<x<1"], ["[-1,1]", "(-1,1]", "x<1", "(0,1)", r"|x|\le 1", "|y|<1"]),
        (r"|x-2|\ge 3", [r"(-\infty,-1]\cup[5,\infty)", r"x\le -1 \text{ or } x\ge 5", r"|2-x|\ge 3"],
         [r"[-1,5]", r"(-\infty,-1)\cup(5,\infty)", r"|x+2|\ge 3", r"x\ge 5"]),
        (r"3\ge x>1", ["(1,3]", r"1<x\le 3"], ["[1,3]", "(1,3)", "[1,3)"]),
        (r"(2,3)", ["(2,3)"], ["(3,2)", "[2,3)", r"\{2,3\}"]),
    ],
    "empty sets": [
        (r"\emptyset", [r"\{\}", r"\{ \}", r"\text{No solutions}", r"\text{no solution}", "no real solutions",
         r"x\in\emptyset", r"\text{There is no solution}", "∅"],
         ["0", r"\{0\}", r"\{\emptyset\}", r"\text{No}", r"\text{one solution}", r"\text{no solution } x=0", "()"]),
        (r"\text{No solutions}", [r"\emptyset", r"\text{no solution}", r"\{\}"], ["0", r"\text{No}",
         r"\text{solutions}",
         r"\text{infinitely many solutions}", "x=0"]),
        (r"\{\}", [r"\emptyset", r"\varnothing"], ["0", r"\{0\}", r"\{\{\}\}"]),
        ("0", ["0"], [r"\text{No solution}", r"\emptyset", r"\{\}"]),
    ],
}  # fmt: skip


def by_hand() -> Iterator[Pair]:
    """The pairs written above; every gold is also compared with itself."""
    for kind, rows in BY_HAND.items():
        for gold, right, wrong in rows:
            yield Pair(kind, gold, gold, True)
            yield from (Pair(kind, gold, answer, True) for answer in right)
            yield from (Pair(kind, gold, answer, False) for answer in wrong)


def gsm8k() -> Iterator[Pair]:
    """Each GSM8K gold in several honest ways and with six near misses."""
    for line in GSM8K.read_text().splitlines():
        gold = json.loads(line)["answer"].rpartition("####")[2].strip()
        value = int(gold.replace(",", ""))
        same = (gold, f"{value:,}", f"{value}.00", rf"\${value}", rf"{value}\text{{ dollars}}")
        yield from (Pair("gsm8k", gold, answer, True) for answer in dict.fromkeys(same))
        for near in (value + 1, value - 1, -value if value else 7, value * 10 if value else 3):
            yield Pair("gsm8k", gold, str(near), False)
        yield Pair("gsm8k", gold, f"{value}.5", False)
        yield Pair("gsm8k", gold, f"{value}, {value + 1}", False)


def aime(count: int = 120) -> Iterator[Pair]:
    """AIME golds, three digits with leading zeros, against themselves and off by one."""
    for value in random.Random(0).sample(range(1000), count):
        gold = f"{value:03d}"
        yield Pair("aime", gold, str(value), True)
        yield Pair("aime", gold, rf"\textbf{{({gold})}}", True)
        yield Pair("aime", gold, str(value + 1), False)
        yield Pair("aime", gold, str(value - 1), False)


def generated(count: int = 60) -> Iterator[Pair]:
    """Fractions, radicals and polynomials over random numbers, rewritten by rules that keep or change the value."""
    rng = random.Random(1)
    for _ in range(count):
        a, b, c, k = rng.randint(2, 60), rng.randint(2, 60), rng.randint(2, 30), rng.randint(2, 9)
        fraction = rf"\frac{{{a}}}{{{b}}}"
        yield Pair("generated fractions", fraction, rf"\dfrac{{{a * k}}}{{{b * k}}}", True)
        yield Pair("generated fractions", fraction, f"{a}/{b}", True)
        yield Pair("generated fractions", fraction, rf"\frac{{{a + 1}}}{{{b}}}", False)
        yield Pair("generated fractions", fraction, rf"\frac{{{a}}}{{{b + 1}}}", False)
        if 1000000 * a % b:
            yield Pair("generated fractions", fraction, f"{a / b:.6f}", False)
        radical = rf"{a}+{b}\sqrt{{{c}}}"
        yield Pair("generated radicals", radical, rf"\sqrt{{{c * b * b}}}+{a}", True)
        yield Pair("generated radicals", radical, rf"\frac{{{a * k}+{b * k}\sqrt{{{c}}}}}{{{k}}}", True)
        yield Pair("generated radicals", radical, rf"{a}-{b}\sqrt{{{c}}}", False)
        yield Pair("generated radicals", radical, rf"{a}+{b}\sqrt{{{c + 1}}}", False)
        polynomial = rf"{a}x^2+{b}x-{c}"
        yield Pair("generated polynomials", polynomial, rf"x({a}x+{b})-{c}", True)
        yield Pair("generated polynomials", polynomial, rf"-{c}+{b}x+{a}x^2", True)
        yield Pair("generated polynomials", polynomial, rf"{a}x^2+{b}x+{c}", False)
        yield Pair("generated polynomials", polynomial, rf"{a}x^2+{b + 1}x-{c}", False)


def pairs() -> list[Pair]:
    """All of them."""
    return [*by_hand(), *gsm8k(), *aime(), *generated()]
