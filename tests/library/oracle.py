"""Attention in plain Python loops and double precision: shares no code with the library."""

import math

import torch


def attention_by_loops(
    q, k, v, *, mask=None, attn_bias=None, scale=None, softcap=None, causal=False, sink=-math.inf
):
    """(out, weights) of one head; q (T, d_k), k (S, d_k), v (S, d_v), mask and attn_bias (T, S).

    ``sink`` is a score without a key: a term of the denominator.
    """
    q, k, v = q.double().tolist(), k.double().tolist(), v.double().tolist()
    T, S = len(q), len(k)
    width = len(v[0]) if v else 0
    outs, rows = [], []
    for t in range(T):
        scores = {}
        for s in range(S):
            if mask is not None and not bool(mask[t, s]):
                continue
            if causal and s > t + S - T:
                continue
            score = math.fsum(a * b for a, b in zip(q[t], k[s], strict=True))
            score *= scale if scale is not None else len(q[t]) ** -0.5
            if softcap is not None:
                score = softcap * math.tanh(score / softcap)
            if attn_bias is not None:
                score += float(attn_bias[t, s])
            if score != -math.inf:
                scores[s] = score
        top = max(sink, *scores.values()) if scores else 0.0
        powers = {s: math.exp(score - top) for s, score in scores.items()}
        total = math.fsum(powers.values()) + math.exp(sink - top)
        row = [powers[s] / total if s in powers else 0.0 for s in range(S)]
        rows.append(row)
        outs.append([math.fsum(row[s] * v[s][j] for s in range(S)) for j in range(width)])
    return (
        torch.tensor(outs, dtype=torch.float64).reshape(T, width),
        torch.tensor(rows, dtype=torch.float64).reshape(T, S),
    )
