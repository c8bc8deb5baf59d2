"""Attention of a decode step where plain products over all of the keys and values would cost more.

Shapes: B rows, K key heads, G query heads of each, T positions, D head width.
"""

import torch
from torch import Tensor


def attend_shared(
    q_B_K_G_D: Tensor, keys_B_K_T_D: Tensor, values_B_K_T_D: Tensor, mask_B_T: Tensor, shared: int
) -> Tensor:
    """Return the attention of rows with a shared prefix, which is read once, in the first row, for all of them."""
    rows = q_B_K_G_D.shape[0]
    q_K_BG_D = q_B_K_G_D.transpose(0, 1).flatten(1, 2)
    common_K_BG_T = q_K_BG_D @ keys_B_K_T_D[0, :, :shared].transpose(1, 2)
    own_B_K_G_T = q_B_K_G_D @ keys_B_K_T_D[:, :, shared:].transpose(2, 3) + mask_B_T[:, None, None, shared:]
    common_B_K_G_T = common_K_BG_T.unflatten(1, (rows, -1)).transpose(0, 1)
    weights_B_K_G_T = torch.cat([common_B_K_G_T, own_B_K_G_T], dim=-1).softmax(-1)
    weights_K_BG_T = weights_B_K_G_T[..., :shared].transpose(0, 1).flatten(1, 2)
    common_K_BG_D = weights_K_BG_T @ values_B_K_T_D[0, :, :shared]
    own_B_K_G_D = weights_B_K_G_T[..., shared:] @ values_B_K_T_D[:, :, shared:]
    attended: Tensor = (common_K_BG_D.unflatten(1, (rows, -1)).transpose(0, 1) + own_B_K_G_D).flatten(1)
    return attended


def attend_bf16(
    q_B_K_G_D: Tensor, keys_B_K_T_D: Tensor, values_B_K_T_D: Tensor, mask_B_T: Tensor, shared: int
) -> Tensor:
    """Return the attention of fp32 queries to keys and values in bf16; scores and their softmax are fp32.

    The keys are the left factor: on a CPU, bf16 products with a transposed right factor take twice as long.
    """
    rows = q_B_K_G_D.shape[0]
    q_B_K_D_G = q_B_K_G_D.to(keys_B_K_T_D.dtype).transpose(2, 3)
    own_B_K_T_G = keys_B_K_T_D[:, :, shared:] @ q_B_K_D_G
    own_B_K_G_T = own_B_K_T_G.transpose(2, 3).to(q_B_K_G_D.dtype, memory_format=torch.contiguous_format)
    own_B_K_G_T += mask_B_T[:, None, None, shared:]
    if not shared:
        weights_B_K_G_T = own_B_K_G_T.softmax(-1).to(values_B_K_T_D.dtype)
        alone: Tensor = (weights_B_K_G_T @ values_B_K_T_D).flatten(1).to(q_B_K_G_D.dtype)
        return alone
    q_K_D_BG = q_B_K_D_G.permute(1, 2, 0, 3).flatten(2)
    common_K_T_BG = keys_B_K_T_D[0, :, :shared] @ q_K_D_BG
    common_B_K_G_T = common_K_T_BG.unflatten(2, (rows, -1)).permute(2, 0, 3, 1)
    weights_B_K_G_T = torch.cat([common_B_K_G_T.float(), own_B_K_G_T], dim=-1).softmax(-1).to(values_B_K_T_D.dtype)
    weights_K_BG_T = weights_B_K_G_T[..., :shared].transpose(0, 1).flatten(1, 2)
    common_K_BG_D = weights_K_BG_T @ values_B_K_T_D[0, :, :shared]
    own_B_K_G_D = weights_B_K_G_T[..., shared:] @ values_B_K_T_D[:, :, shared:]
    common_B_K_G_D = common_K_BG_D.unflatten(1, (rows, -1)).transpose(0, 1)
    attended: Tensor = (common_B_K_G_D.float() + own_B_K_G_D).flatten(1)
    return attended
