"""Draws one token in each row of a batch, by a number between 0 and 1 that is the row's own.

Shapes: B rows, V tokens in all.
"""

import torch
from torch import Tensor


def draw(logits_B_V: Tensor, temperatures_B: Tensor, chances_B: Tensor, some_greedy: bool = True) -> Tensor:
    """Tokens and their log-probabilities, [2, B], in double precision so that both fit in one tensor.

    A token is where the cumulated probability passes the row's chance. A temperature of 0 takes the likeliest token,
    and its log-probability is that of temperature 1.
    """
    greedy_B = temperatures_B == 0
    scale_B = torch.where(greedy_B, 1.0, temperatures_B)
    logprobs_B_V = (logits_B_V.float() / scale_B[:, None]).log_softmax(-1)
    cumulated_B_V = logprobs_B_V.exp().cumsum(-1)
    # Below 1 also after rounding: the threshold stays before the end, behind which there is no token.
    threshold_B = chances_B.float().clamp_max(1 - 2**-24) * cumulated_B_V[:, -1]
    drawn_B = torch.searchsorted(cumulated_B_V, threshold_B[:, None], right=True)[:, 0]
    tokens_B = torch.where(greedy_B, logprobs_B_V.argmax(-1), drawn_B) if some_greedy else drawn_B
    return torch.stack([tokens_B.double(), logprobs_B_V.gather(1, tokens_B[:, None])[:, 0].double()])
