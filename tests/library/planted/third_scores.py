"""Sequence first, axes named in an einsum: t queries, s keys, b examples, h heads."""

from functools import cache, partial

import torch

from planted.plants import PLANTS, Plant

KEYS = 3  # axes of the scores: queries, batch, heads, keys
CALL = {"arguments": "queries=q, keys=k, values=v", "layout": "TBHd"}
SINKS = torch.tensor([0.9, -0.4, 1.7])


def root(queries, _keys, _values):
    return queries.shape[-1] ** -0.5


def whole(queries, keys):
    return torch.einsum("tbhd,sbhd->tbhs", queries, keys)


def by_two_blocks(queries, keys):
    """The scores of the first half of the keys, then those of the others beside them."""
    cut = keys.shape[0] // 2
    return torch.cat([whole(queries, keys[:cut]), whole(queries, keys[cut:])], dim=KEYS)


def over(*axes):
    def weigh(scores):
        shifted = (scores - scores.amax(dim=axes, keepdim=True).detach()).exp()
        return shifted / shifted.sum(dim=axes, keepdim=True)

    return weigh


over_keys = over(KEYS)


def blend(weights, values):
    return torch.einsum("tbhs,sbhd->tbhd", weights, values)


def widened(tensor):
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def same(tensor):
    return tensor


def as_they_are(queries, keys, values):
    return queries, keys, values


def by_group(queries, keys, values):
    each = queries.shape[2] // keys.shape[2]
    return queries, keys.repeat_interleave(each, 2), values.repeat_interleave(each, 2)


def named(
    queries,
    keys,
    values,
    *,
    enter=as_they_are,
    wide=widened,
    scale=root,
    multiply=whole,
    bound=same,
    weigh=over_keys,
    mix=blend,
    leave=same,
    narrow=None,
):
    dtype = queries.dtype
    queries, keys, values = enter(queries, keys, values)
    queries, keys, values = wide(queries), wide(keys), wide(values)
    scores = bound(multiply(queries, keys) * scale(queries, keys, values))
    out = leave(mix(weigh(scores), values))
    return out.to(narrow or dtype)


@cache
def right(size, parts=()):
    return partial(named, multiply=(whole, by_two_blocks)[size], **dict(parts))


def plant(mistake, *, good=(), intent=None, **parts):
    """``good`` are the parts of the right one; the plant has them too, but for ``parts``."""
    good = tuple(dict(good).items())
    merged = {**dict(good), **parts}

    def build(size):
        return partial(named, **{"multiply": (whole, by_two_blocks)[size], **merged})

    PLANTS.append(
        Plant(mistake, "third", build, partial(right, parts=good), {**CALL, **(intent or {})})
    )


# The scale.
for _mistake, _scale in {
    "scale_missing": lambda q, k, v: 1.0,
    "scale_multiplied": lambda q, k, v: q.shape[-1] ** 0.5,
    "scale_by_d_k": lambda q, k, v: 1.0 / q.shape[-1],
    "scale_twice": lambda q, k, v: root(q, k, v) * root(q, k, v),
    "scale_by_num_heads": lambda q, k, v: q.shape[2] ** -0.5,
    "scale_by_value_width": lambda q, k, v: v.shape[-1] ** -0.5,
    "scale_by_length": lambda q, k, v: k.shape[0] ** -0.5,
    "scale_by_model_width": lambda q, k, v: (q.shape[2] * q.shape[3]) ** -0.5,
}.items():
    plant(_mistake, scale=_scale)
plant("scale_ignored", good={"scale": lambda q, k, v: 0.3}, intent={"scale": 0.3}, scale=root)

# From scores to weights.
for _mistake, _weigh in {
    "softmax_over_queries": over(0),
    "softmax_over_heads": over(2),
    "softmax_over_batch": over(1),
    "softmax_flattened": over(2, 3),
    "softmax_low_precision": lambda s: s.bfloat16().softmax(KEYS).to(s.dtype),
    "softmax_no_maximum": lambda s: s.exp() / s.exp().sum(dim=KEYS, keepdim=True),
    "softmax_twice": lambda s: over_keys(over_keys(s)),
    "softmax_sigmoid": lambda s: 1.0 / (1.0 + torch.exp(-s)),
    "softmax_relu_normalised": lambda s: (
        s.clamp(min=0.0) / (s.clamp(min=0.0).sum(KEYS, keepdim=True) + 1e-9)
    ),
    "softmax_missing": same,
    "softmax_log": lambda s: s - s.logsumexp(dim=KEYS, keepdim=True),
}.items():
    plant(_mistake, weigh=_weigh)

# A softcap of 5, a sink for each head.
CAPPED = {"bound": lambda s: 5.0 * torch.tanh(s / 5.0)}
CAP = {"good": CAPPED, "intent": {"softcap": 5.0}}
plant("softcap_missing", **CAP, bound=same)
plant("softcap_clamped", **CAP, bound=lambda s: s.clamp(-5.0, 5.0))
plant("softcap_after_softmax", **CAP, bound=same, weigh=lambda s: CAPPED["bound"](over_keys(s)))
plant(
    "softcap_before_scale",
    **CAP,
    multiply=lambda q, k: CAPPED["bound"](whole(q, k)),
    bound=same,
)


def with_a_sink(scores):
    extra = SINKS.to(scores.dtype).expand(*scores.shape[:2], -1)[..., None]
    return over_keys(torch.cat([scores, extra], dim=KEYS))[..., :-1]


plant(
    "sinks_dropped",
    good={"weigh": with_a_sink},
    intent={"sinks": SINKS, "heads": 3},
    weigh=over_keys,
)

# What enters.
for _mistake, _enter in {
    "query_key_swapped": lambda q, k, v: (k, q, v),
    "key_value_swapped": lambda q, k, v: (q, v, k),
    "value_is_key": lambda q, k, v: (q, k, k),
    "value_is_query": lambda q, k, v: (q, k, q),
    "order_rotated": lambda q, k, v: (v, q, k),
    "one_head_only": lambda q, k, v: tuple(t[:, :, :1].expand_as(t) for t in (q, k, v)),
    "gradient_detached_q": lambda q, k, v: (q.detach(), k, v),
    "gradient_detached_k": lambda q, k, v: (q, k.detach(), v),
    "gradient_detached_v": lambda q, k, v: (q, k, v.detach()),
    "gradient_missing": lambda q, k, v: tuple(t.new_tensor(t.detach().numpy()) for t in (q, k, v)),
    "batch_leak": lambda q, k, v: (q, k.transpose(1, 2).reshape(k.shape), v),
}.items():
    plant(_mistake, enter=_enter)

GROUPS = {"good": {"enter": by_group}, "intent": {"heads": 4, "kv_heads": 2}}
plant(
    "kv_heads_tiled",
    **GROUPS,
    enter=lambda q, k, v: (q, *(t.repeat(1, 1, q.shape[2] // t.shape[2], 1) for t in (k, v))),
)
plant(
    "kv_first_head_for_all",
    **GROUPS,
    enter=lambda q, k, v: (q, *(t[:, :, [0] * q.shape[2]] for t in (k, v))),
)


# What leaves.
class ForgetfulSoftmax(torch.autograd.Function):
    """Its gradient lacks what each weight loses to the others of its row."""

    @staticmethod
    def forward(ctx, scores):
        weights = over_keys(scores)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx, incoming):
        return incoming * ctx.saved_tensors[0]


def between_heads(weights, values):
    return torch.einsum("tbgh,tbhd->tbgd", weights, values)


plant("gradient_wrong", weigh=ForgetfulSoftmax.apply)
plant("gradient_detached_weights", weigh=lambda s: over_keys(s).detach())
plant("channels_reversed", leave=lambda out: out.flip(-1))
plant("heads_reversed", leave=lambda out: out.flip(2))
plant("heads_averaged", weigh=lambda s: over_keys(s).mean(dim=2, keepdim=True).expand_as(s))
plant(
    "heads_not_moved",
    multiply=lambda q, k: torch.einsum("tbgd,tbhd->tbgh", q, k),
    mix=between_heads,
)
plant("not_float32_inside", wide=same)
plant("output_dtype", narrow=torch.float32)  # of double precision, too
