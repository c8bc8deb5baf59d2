"""Samples one token in each row of a batch from a random number between 0 and 1 that belongs to the row.

Shapes: B rows, V vocabulary.
"""

import torch
from torch import Tensor


def sample_tokens(logits_B_V: Tensor, temperatures_B: Tensor, uniforms_B: Tensor, some_greedy: bool = True) -> Tensor:
    """Return tokens and their log-probabilities, [2, B], in double precision so that both fit in one tensor.

    The token is where the cumulative probability passes the row's random number. A temperature of 0 takes the most
    likely token; its log-probability is that of temperature 1.
    """
    greedy_B = temperatures_B == 0
    scale_B = torch.where(greedy_B, 1.0, temperatures_B)
    logprobs_B_V = (logits_B_V.float() / scale_B[:, None]).log_softmax(-1)
    cumulative_B_V = logprobs_B_V.exp().cumsum(-1)
    # Below 1 also after rounding: the threshold stays before the end, after which no token follows.
    threshold_B = uniforms_B.float().clamp_max(1 - 2**-24) * cumulative_B_V[:, -1]
    sampled_B = torch.searchsorted(cumulative_B_V, threshold_B[:, None], right=True)[:, 0]
    tokens_B = torch.where(greedy_B, logprobs_B_V.argmax(-1), sampled_B) if some_greedy else sampled_B
    return torch.stack([tokens_B.double(), logprobs_B_V.gather(1, tokens_B[:, None])[:, 0].double()])
