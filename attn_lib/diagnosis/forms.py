"""What a report says instead where a mistake has one of its further forms."""

# id of the mistake and number of the form, counted from 0: name, likely, look for, repair
FORMS: dict[tuple[str, int], tuple[str, str, str, str]] = {
    ("heads_split_without_transpose", 1): (
        "heads are split and merged by views alone",
        "The heads are split by a view to (B, H, T, d), and merged by another. The two undo each "
        "other, so the order looks right; but a head sees only about T / H neighbouring tokens.",
        "x.view(B, H, T, d), and out.reshape(B, T, H * d) of (B, H, T, d)",
        "x.view(B, T, H, d).transpose(1, 2), and out.transpose(1, 2).reshape(B, T, H * d)",
    ),
    ("heads_interleaved", 1): (
        "channels are dealt to the heads in turn",
        "Head h gets the channels h, h + H, h + 2H, … of queries, keys and values, not d_k "
        "channels side by side; the heads are merged as they should be.",
        "x.view(B, T, d, H)",
        "x.view(B, T, H, d)",
    ),
    ("heads_interleaved", 2): (
        "channels of the heads are merged in turn",
        "The heads are split as they should be, but channel c of head h is merged to channel "
        "c · H + h, where h · d + c is meant.",
        "out.permute(0, 2, 3, 1).reshape(B, T, H * d) of (B, H, T, d)",
        "out.transpose(1, 2).reshape(B, T, H * d)",
    ),
    ("kv_heads_tiled", 1): (
        "key heads are tiled instead of repeated, values are not",
        "Query head h uses the keys of head h % H_kv where those of head h // (H / H_kv) are "
        "meant; its values are those that are meant.",
        "k.repeat(1, groups, 1, 1)",
        "k.repeat_interleave(groups, dim=1)",
    ),
    ("kv_heads_tiled", 2): (
        "value heads are tiled instead of repeated, keys are not",
        "Query head h uses the values of head h % H_kv where those of head h // (H / H_kv) are "
        "meant; its keys are those that are meant.",
        "v.repeat(1, groups, 1, 1)",
        "v.repeat_interleave(groups, dim=1)",
    ),
    **dict.fromkeys(
        [("mask_of_the_batch", 2), ("mask_of_the_batch", 3)],
        (
            "the queries' masks are merged",
            "The masks of all queries are merged into one for every query of the example.",
            "mask.any(dim=-2), mask.all(dim=-2)",
            "Keep the axis of the queries.",
        ),
    ),
    ("cache_mask", 1): (
        "no causal mask with a cache",
        "With a cache, a piece of several positions has no causal mask: each of them attends to "
        "the later ones of its piece too.",
        "is_causal=past == 0, or a mask only where T == S",
        "tril(ones(T, S), diagonal=S - T)",
    ),
}
