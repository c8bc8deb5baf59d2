"""Numbers as text, for the sentences that describe a run."""

import re


def number(value: float) -> str:
    """Format a number with two or three digits."""
    if value and not 1e-2 <= abs(value) < 1e5:
        return re.sub(r"e([+-])0?(\d)", lambda match: f"e{match[1].strip('+')}{match[2]}", f"{value:.2g}")
    value += 0.0  # which makes a negative zero a plain one
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1 else f"{value:.2g}"


def percent(share: float) -> str:
    """Format a share as a percentage."""
    return f"{share:z.1%}" if 0 < abs(share) < 0.0995 else f"{share:z.0%}"
