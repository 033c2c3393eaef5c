"""One state in place of a cache: by tokens, in chunks, padded, as in layers of transformers."""

import inspect
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import for_each, raises_for_each
from transformers import DynamicCache, KimiLinearConfig, Qwen3NextConfig
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from attn_lib import recurrent
from attn_lib.recurrent import gated_delta_rule, linear_attention, short_convolution

B, H, H_KV, T, D_K, D_V = 2, 6, 3, 11, 5, 7  # a prime each, but the heads that share a state


def drawn(seed=0, *, decay="head", T=T, dtype=torch.float64) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)  # noqa: E731
    shape = {"head": (B, H_KV, T), "channel": (B, H_KV, T, D_K)}[decay]
    return {
        "q": draw(B, H, T, D_K),
        "k": F.normalize(draw(B, H_KV, T, D_K), dim=-1),
        "v": draw(B, H_KV, T, D_V),
        "beta": draw(B, H_KV, T).sigmoid(),
        "log_decay": -draw(*shape).exp(),
        "state": draw(B, H_KV, D_K, D_V),
    }


def by_loops(q, k, v, beta=None, log_decay=None, state=None, real=None):
    """The formula with a loop over everything, each head by itself, by sums of numbers."""
    (B, H, T, d_k), d_v, group = q.shape, v.shape[-1], q.shape[1] // k.shape[1]
    out, last = q.new_zeros(B, H, T, d_v), k.new_zeros(B, k.shape[1], d_k, d_v)
    for b, h in itertools.product(range(B), range(k.shape[1])):
        S = torch.zeros(d_k, d_v, dtype=q.dtype) if state is None else state[b, h].clone()
        for t in range(T):
            if real is not None and not real[b, t]:
                continue
            if log_decay is not None:
                S = S * log_decay[b, h, t].exp().expand(d_k)[:, None]
            new = v[b, h, t]
            if beta is not None:
                new = beta[b, h, t] * (new - (S * k[b, h, t][:, None]).sum(0))
            S = S + k[b, h, t][:, None] * new[None, :]
            for one in range(h * group, (h + 1) * group):
                out[b, one, t] = (S * q[b, one, t][:, None]).sum(0) / math.sqrt(d_k)
        last[b, h] = S
    return out, last


def run(given: dict, **options):
    """Both public functions: with ``beta`` the delta rule, without it plain writes."""
    rule = gated_delta_rule if "beta" in given else linear_attention
    return rule(**given, **options)


def close(made, wanted, tolerance=1e-12) -> bool:
    """The same shapes, and no error above the tolerance times (1 + the largest number)."""
    for m, w in zip(made, wanted, strict=True):
        largest = w.abs().amax() if w.numel() else 0.0
        if m.shape != w.shape or not bool(((m - w).abs() <= tolerance * (1 + largest)).all()):
            return False
    return True


RULES = {
    "linear": ("beta", "log_decay"),
    "gated": ("beta",),
    "delta": ("log_decay",),
    "gated delta": (),
}


def of_rule(rule, decay="head", **more):
    return {n: x for n, x in drawn(decay=decay, **more).items() if n not in RULES[rule]}


@pytest.mark.parametrize("decay", ["head", "channel"])
@pytest.mark.parametrize("rule", RULES)
def test_every_form_is_the_formula_and_so_are_its_gradients(rule, decay):
    def answers(call, **options):
        given = {n: x.clone().requires_grad_() for n, x in of_rule(rule, decay).items()}
        out, state = call(given, **options)
        (out.sin().sum() + state.cos().sum()).backward()
        return [out.detach(), state.detach(), *(x.grad for x in given.values())]

    wanted = answers(lambda given: by_loops(**given))
    for chunk_size in (None, 4, 64):
        assert close(answers(run, chunk_size=chunk_size), wanted)


sizes = st.integers(1, 9)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(T=st.integers(0, 17), chunk_size=st.none() | sizes, data=st.data())
def test_any_split_any_chunk_any_padding(T, chunk_size, data):
    """Outputs and state do not know the pieces, the chunks, the padding or the other rows."""
    decay = data.draw(st.sampled_from(["head", "channel"]))
    given = of_rule(data.draw(st.sampled_from([*RULES])), decay, T=T)
    if "log_decay" in given and T:
        gates = data.draw(st.sampled_from(["as drawn", "keep all", "forget all at one token"]))
        if gates == "keep all":
            given["log_decay"] = torch.zeros_like(given["log_decay"])
        elif gates == "forget all at one token":
            given["log_decay"][:, :, data.draw(st.integers(0, T - 1))] = -math.inf
    padding = st.lists(st.booleans(), min_size=T, max_size=T)
    real = torch.tensor([data.draw(padding) for _ in range(B)], dtype=torch.bool).view(B, T)
    wanted = by_loops(**given, real=real)

    spoilt = dict(given)
    for name in given.keys() - {"state"}:
        padded = ~real.view(B, 1, T, *[1] * (given[name].dim() - 3))
        spoilt[name] = given[name].masked_fill(padded, math.nan)  # what padding holds is not read
    mask = real[:, None, None]
    assert close(run(spoilt, mask=mask, chunk_size=chunk_size), wanted)

    cut, outs, state = data.draw(st.integers(0, T)), [], given["state"]
    for a, b in ((0, cut), (cut, T)):
        piece = {n: x[:, :, a:b] for n, x in spoilt.items() if n != "state"}
        out, state = run(piece | {"state": state}, mask=mask[..., a:b], chunk_size=chunk_size)
        outs.append(out)
    assert close((torch.cat(outs, dim=2), state), wanted)

    alone = {n: x[:1] for n, x in given.items()}
    assert close(run(alone, mask=mask[:1], chunk_size=chunk_size), [w[:1] for w in wanted])


@pytest.mark.parametrize("decay", ["head", "channel"])
def test_large_decays_neither_overflow_nor_lose_the_small_ones(decay):
    """exp(−cumsum) would be infinite; a difference of float32 sums has an error of 1e-4."""
    given = of_rule("gated delta", decay, dtype=torch.float32, T=64)
    given["log_decay"] = given["log_decay"].abs().mul(-1e-3)
    given["log_decay"][:, :, :32] -= 60.0
    exact = by_loops(**{n: x.double() for n, x in given.items()})
    for chunk_size in (None, 64):
        out, state = run(given, chunk_size=chunk_size)
        assert close([out.double(), state.double()], exact, tolerance=1e-6)
    assert math.isinf(float(given["log_decay"].sum(dim=2).neg().exp().max()))


@pytest.mark.parametrize("decay", ["head", "channel"])
@pytest.mark.parametrize("forgets", [-800.0, -math.inf])
def test_gradients_are_finite_where_all_is_forgotten(forgets, decay):
    """exp(800) is infinite in double precision, and 0 times infinity would be NaN."""

    def gradients(chunk_size):
        given = of_rule("gated delta", decay)
        given["log_decay"][:, :, 5:7] = forgets
        given = {n: x.requires_grad_() for n, x in given.items()}
        out, state = run(given, chunk_size=chunk_size)
        return torch.autograd.grad(out.sin().sum() + state.sum(), [*given.values()])

    for chunk_size in (3, 4, 7, 64):  # the last chunk is seldom as long as a power of two
        assert close(gradients(chunk_size), gradients(None))


@pytest.mark.parametrize("chunk_size", [None, 4])
def test_autocast_changes_nothing(chunk_size):
    given = of_rule("gated delta", dtype=torch.float32)
    exact = run(given, chunk_size=chunk_size)
    with torch.autocast("cpu", torch.bfloat16):
        assert close(run(given, chunk_size=chunk_size), exact, tolerance=0.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_its_state_in_float32(dtype):
    given = of_rule("gated delta", dtype=dtype)
    exact = by_loops(**{n: x.double() for n, x in given.items()})
    for chunk_size in (None, 4):
        out, state = run(given, chunk_size=chunk_size)
        assert out.dtype == dtype
        assert state.dtype == torch.float32
        assert close([out.double()], exact[:1], tolerance=2 * torch.finfo(dtype).eps)
        assert close([state.double()], exact[1:], tolerance=1e-5)


def test_the_state_that_is_given_stays_as_it_is():
    given = drawn()
    before = {name: x.clone() for name, x in given.items()}
    for chunk_size in (None, 4):
        run(given, chunk_size=chunk_size)
    assert all(torch.equal(given[name], x) for name, x in before.items())


def test_a_chunk_has_no_loop_over_its_tokens():
    calls = []
    for C in (8, 64):
        with torch.profiler.profile() as seen:
            run(of_rule("gated delta", T=C), chunk_size=C)
        calls.append(len(seen.events()))
    assert calls[0] == calls[1]


# ---------------------------------------------------------------- planted mistakes


@for_each(
    ("_token", "beta * (v - k @ state)", "beta * v"),
    ("_chunk", "(k * left)", "k"),
    ("_products", ".triu(1)", ".triu(2)"),
    ("_products_of_channels", "1, :, :] - end", "1, :, :]"),
)
def test_planted_mistakes_are_seen(name, old, new, monkeypatch):
    source = inspect.getsource(getattr(recurrent, name))
    assert source.count(old) == 1
    space = dict(vars(recurrent))
    exec(source.replace(old, new), space)  # noqa: S102
    monkeypatch.setattr(recurrent, name, space[name])
    given = drawn(decay="channel" if "channel" in name else "head")
    made = gated_delta_rule(**given, chunk_size=None if name == "_token" else 4)
    assert not close(made, by_loops(**given), tolerance=1e-3)


# ---------------------------------------------------------------- refusals

RIGHT = drawn()
ONES = torch.ones(B, 1, 1, T)
CHANNELS = RIGHT["beta"][..., None].expand(-1, -1, -1, D_K)
NARROW = {"q": RIGHT["q"][..., :0], "k": RIGHT["k"][..., :0], "state": RIGHT["state"][:, :, :0]}


@raises_for_each(
    ({"q": RIGHT["q"].int()}, TypeError, "^q must be floating point"),
    ({"k": RIGHT["k"].int()}, TypeError, "^k must be floating point"),
    ({"v": RIGHT["v"].int()}, TypeError, "^v must be floating point"),
    ({"beta": RIGHT["beta"].int()}, TypeError, "^beta must be floating point"),
    ({"k": RIGHT["k"].to("meta")}, ValueError, "^k must be on the device of q, got meta and cpu$"),
    ({"beta": RIGHT["beta"].to("meta")}, ValueError, "^beta must be on the device of q"),
    ({"q": RIGHT["q"][0]}, ValueError, "4 axes"),
    ({"k": RIGHT["k"].float()}, TypeError, "dtype of q"),
    ({"k": RIGHT["k"][:, :2]}, ValueError, "fit together"),
    ({"v": RIGHT["v"][:, :, :3]}, ValueError, "fit together"),
    (NARROW, ValueError, r"^q \(B, H, T, d_k\), k .* must fit together, got shapes"),
    ({"q": RIGHT["q"][:, :4]}, ValueError, "multiple"),
    ({"beta": CHANNELS}, ValueError, "beta must have shape"),
    ({"log_decay": RIGHT["log_decay"].mT}, ValueError, "log_decay must have shape"),
    (
        {"log_decay": RIGHT["log_decay"].clamp(min=0.5)},
        ValueError,
        "^log_decay must be at most 0, and not NaN: ",
    ),
    ({"log_decay": RIGHT["log_decay"] * math.nan}, ValueError, "NaN"),
    ({"state": RIGHT["state"].mT}, ValueError, "state must have shape"),
    (
        {"mask": ONES[:, 0, 0].bool()},
        ValueError,
        rf"shape \({B}, 1, 1, {T}\), as from padding_mask",
    ),
    ({"mask": ONES}, TypeError, "^mask must be a bool tensor"),
    ({"chunk_size": 0}, ValueError, "chunk_size"),
    ({"scale": math.inf}, ValueError, "^scale must be finite"),
)
def test_what_does_not_fit_is_refused(change):
    gated_delta_rule(**RIGHT | change)


@pytest.mark.parametrize("d_k", [1, 2])
@pytest.mark.parametrize("chunk_size", [None, 4])
def test_narrow_keys_with_a_decay_of_each_channel(d_k, chunk_size):
    given = drawn(decay="channel")
    given |= {name: given[name][..., :d_k] for name in ("q", "k", "log_decay")}
    given |= {"state": given["state"][:, :, :d_k]}
    assert close(gated_delta_rule(**given, chunk_size=chunk_size), by_loops(**given))


def test_shapes_are_known_without_numbers():
    out, state = gated_delta_rule(**{name: x.to("meta") for name, x in RIGHT.items()})
    assert (out.shape, state.shape) == ((B, H, T, D_V), (B, H_KV, D_K, D_V))


def test_a_scale_is_one_of_the_queries():
    k, v = RIGHT["k"], RIGHT["v"]
    scaled, larger = linear_attention(RIGHT["q"], k, v, scale=0.3), RIGHT["q"] * 0.3
    assert close(scaled, linear_attention(larger, k, v, scale=1.0))


X, WEIGHT = torch.randn(2, 5, 3), torch.randn(3, 4)


@raises_for_each(
    ({"x": X[0]}, ValueError, r"3 axes and weight 2, got \(5, 3\) and \(3, 4\)$"),
    ({"x": X.int()}, TypeError, "^x must"),
    ({"weight": WEIGHT[None]}, ValueError, "^x must have 3 axes and weight 2, got"),
    ({"weight": WEIGHT.T}, ValueError, "^weight must have shape"),
    ({"weight": WEIGHT.double()}, TypeError, "^weight must have the dtype of x"),
    ({"weight": WEIGHT[:, :0]}, ValueError, "^weight must have shape"),
    ({"bias": torch.zeros(4)}, ValueError, "^bias must have shape"),
    ({"bias": torch.zeros(3).double()}, TypeError, "^bias must have the dtype of x"),
    ({"state": torch.zeros(2, 4, 3)}, ValueError, "^state must have shape"),
    ({"state": torch.zeros(2, 3, 3).double()}, TypeError, "^state must have the dtype of x"),
    ({"mask": ONES[..., :5].bool().to("meta")}, ValueError, "^mask"),
)
def test_what_does_not_fit_a_convolution_is_refused(change):
    short_convolution(**{"x": X, "weight": WEIGHT} | change)


# ---------------------------------------------------------------- the short convolution


@settings(max_examples=60, deadline=None, derandomize=True)
@given(K=st.integers(1, 5), T=st.integers(0, 9), cut=st.integers(0, 9), data=st.data())
def test_a_convolution_in_pieces_and_among_padding(K, T, cut, data):
    g = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*s, generator=g) for s in ((2, T, 3), (3, K), (3,)))
    before = torch.randn(2, K - 1, 3, generator=g)
    padding = st.lists(st.booleans(), min_size=T, max_size=T)
    real = torch.tensor([data.draw(padding) for _ in range(2)], dtype=torch.bool).view(2, T)
    mask = real[:, None, None]
    spoilt = x.masked_fill(~real[..., None], math.nan)
    out, state = short_convolution(spoilt, weight, bias=bias, mask=mask, state=before)
    for b in range(2):
        alone = torch.cat([before[b], x[b, real[b]]])
        taps = [alone[j : len(alone) - K + 1 + j] * weight[:, j] for j in range(K)]
        wanted = torch.stack(taps).sum(dim=0) + bias
        assert torch.allclose(out[b, real[b]], wanted, atol=1e-6)
        assert torch.equal(state[b], alone[len(alone) - K + 1 :])
        assert not out[b, ~real[b]].any()
    first, middle = short_convolution(
        spoilt[:, :cut], weight, bias=bias, mask=mask[..., :cut], state=before
    )
    second, last = short_convolution(
        spoilt[:, cut:], weight, bias=bias, mask=mask[..., cut:], state=middle
    )
    assert torch.allclose(torch.cat([first, second], dim=1), out, atol=1e-6)
    assert torch.equal(last, state)


# ---------------------------------------------------------------- two libraries' layers


def unit(x):
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


class Ours:
    """The layers around the functions, from another library's weights; the state is kept here."""

    def __init__(self, layer):
        self.layer, self.convolved, self.state = layer, None, None

    def mix(self, qkv, heads, beta, log_decay, mask):
        layer = self.layer
        qkv, self.convolved = short_convolution(
            qkv, layer.conv1d.weight[:, 0], mask=mask, state=self.convolved
        )
        widths = [h * w for h, w in heads]
        q, k, v = (
            x.unflatten(-1, (h, -1)).transpose(1, 2)
            for x, (h, _) in zip(F.silu(qkv).split(widths, dim=-1), heads, strict=True)
        )
        group = v.shape[1] // k.shape[1]  # here one key serves several values
        q, k = (unit(x).repeat_interleave(group, dim=1) for x in (q, k))
        out, self.state = gated_delta_rule(
            q, k, v, beta, log_decay=log_decay, mask=mask, state=self.state, chunk_size=4
        )
        return out.transpose(1, 2)

    def qwen3_next(self, x, mask=None):
        layer, log = self.layer, F.logsigmoid
        q, k, v, z, b, a = layer.fix_query_key_value_ordering(
            layer.in_proj_qkvz(x), layer.in_proj_ba(x)
        )
        log_decay = -layer.A_log.exp() * -log(-(a + layer.dt_bias))
        heads = [(y.shape[2], y.shape[3]) for y in (q, k, v)]
        qkv = torch.cat([y.flatten(2) for y in (q, k, v)], dim=-1)
        out = self.mix(qkv, heads, b.sigmoid().mT, log_decay.mT, mask)
        out = F.rms_norm(out, out.shape[-1:], layer.norm.weight, layer.norm.variance_epsilon)
        return layer.out_proj((out * F.silu(z)).flatten(2))

    def kimi_linear(self, x, mask=None):
        layer, H = self.layer, self.layer.num_heads
        qkv = torch.cat([p(x) for p in (layer.q_proj, layer.k_proj, layer.v_proj)], dim=-1)
        gate = layer.forget_gate
        a = (gate.f_b_proj(gate.f_a_proj(x)) + gate.dt_bias).unflatten(-1, (H, -1))
        log_decay = (-gate.A_log.exp() * F.softplus(a)).transpose(1, 2)
        out = self.mix(
            qkv, [(H, layer.head_dim)] * 3, layer.b_proj(x).sigmoid().mT, log_decay, mask
        )
        z = layer.g_b_proj(layer.g_a_proj(x)).unflatten(-1, (H, -1))
        norm = layer.o_norm
        out = F.rms_norm(out, out.shape[-1:], norm.weight, norm.variance_epsilon)
        return layer.o_proj((out * z.sigmoid()).flatten(2))


OF_LAYERS = {"hidden_size": 23, "num_hidden_layers": 2, "linear_conv_kernel_dim": 3}
OF_LAYERS |= {"layer_types": ["linear_attention"] * 2}
SHARED = {"linear_num_key_heads": 2, "linear_num_value_heads": 6}
SHARED |= {"linear_key_head_dim": 5, "linear_value_head_dim": 7}
ALIKE = {"linear_num_heads": 3, "linear_head_dim": 5}


@pytest.fixture(params=["qwen3_next", "kimi_linear"])
def theirs(request):
    torch.manual_seed(0)
    if request.param == "qwen3_next":
        config = Qwen3NextConfig(**OF_LAYERS, **SHARED)
        layer = Qwen3NextGatedDeltaNet(config, 0)
    else:
        config = KimiLinearConfig(**OF_LAYERS, **ALIKE)
        layer = KimiLinearDeltaAttention(config, 0)
    for p in layer.parameters():
        torch.nn.init.normal_(p, std=0.4)
    return request.param, config, layer


def off(made, wanted) -> float:
    return float((made - wanted).detach().abs().max() / wanted.detach().abs().max())


def test_a_layer_gives_the_outputs_and_gradients_of_its_library(theirs):
    name, _, layer = theirs
    x = torch.randn(2, 70, 23)  # more than one of its chunks of 64
    found = []
    for call in (layer, getattr(Ours(layer), name)):
        layer.zero_grad()
        y = x.clone().requires_grad_()
        out = call(y)
        out.sin().sum().backward()
        found.append([out.detach(), y.grad, *(p.grad.clone() for p in layer.parameters())])
    errors = [off(made, wanted) for wanted, made in zip(*found, strict=True)]
    assert max(errors) <= 1e-5


def test_a_layer_continues_at_any_split_as_its_library_does(theirs):
    name, config, layer = theirs
    x = torch.randn(2, 11, 23)
    whole = layer(x)
    for cuts in ([1] * 11, [5, 6], [8, 1, 1, 1], [1, 10]):
        ours, cache, outs, parts = Ours(layer), DynamicCache(config=config), [], []
        for piece in x.split(cuts, dim=1):
            outs.append(getattr(ours, name)(piece))
            parts.append(layer(piece, cache_params=cache))
        assert off(torch.cat(outs, dim=1), whole) <= 1e-5
        assert off(torch.cat(parts, dim=1), whole) <= 1e-5
        assert off(ours.state, cache.get_recurrent_state(0, state_idx=0)) <= 1e-5


def test_left_padding_is_read_as_its_library_reads_it(theirs):
    name, _, layer = theirs
    x = torch.randn(2, 11, 23)
    real = torch.arange(11) >= torch.tensor([[0], [4]])
    out = getattr(Ours(layer), name)(x, real[:, None, None])
    assert off(out[real], layer(x, attention_mask=real)[real]) <= 1e-5
    assert off(out[1:, 4:], layer(x[1:, 4:])) <= 1e-5
    assert off(layer(x)[1:, 4:], layer(x[1:, 4:])) > 1e-2  # without the mask it is another answer
