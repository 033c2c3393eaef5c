"""Shapes, types and bounds that docstrings name, held against what calls take and give."""

import ast
import importlib
import inspect
import itertools
import json
import keyword
import pkgutil
import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch

import attn_lib
from attn_lib import functional, fused, generation, masks, models, plotting, positions, vision
from attn_lib import recurrent as one_state
from attn_lib.layers import FeedForward, MultiHeadAttention, merge_heads, split_heads
from attn_lib.training import train
from attn_lib.transformer import TransformerBlock, TransformerDecoder, TransformerEncoder

ROOT = Path(__file__).resolve().parents[2]
ARGUMENT = re.compile(r"(?m)^    \*{0,2}(\w+): (.*(?:\n        .*)*)")
SHAPE = re.compile(r"^(?:``.*``: out )?(?:([a-z]+\d*) )?\(([^()]*)\)(,? or)?(?: ([a-z]+\d*))?")
KINDS = {"bool": torch.bool, "integers": torch.int64, "uint8": torch.uint8, "int64": torch.int64}
KINDS |= {"float32": torch.float32}


def documented() -> dict:
    """From code to the name and the docstring of what is public; a class is its ``__init__``."""
    found = {}
    names = [f"attn_lib.{i.name}" for i in pkgutil.iter_modules(attn_lib.__path__)]
    for module in (importlib.import_module(n) for n in names if "__main__" not in n):
        for name, thing in vars(module).items():
            if getattr(thing, "__module__", None) != module.__name__ or name[0] == "_":
                continue
            if inspect.isfunction(thing):
                found[inspect.unwrap(thing).__code__] = (name, inspect.getdoc(thing) or "", thing)
            elif inspect.isclass(thing):
                for inner, method in vars(thing).items():
                    if inspect.isfunction(method) and (inner[0] != "_" or inner == "__init__"):
                        of = thing if inner == "__init__" else method
                        full = f"{name}.{inner}".removesuffix(".__init__")
                        code = inspect.unwrap(method).__code__
                        found[code] = (full, inspect.getdoc(of) or "", of)
    return found


SAID = documented()


def part(doc: str, title: str) -> str:
    found = re.search(rf"(?m)^{title}:\n((?:    .*\n?|\n(?=    ))+)", doc)
    return found[1] if found else ""


def arguments(doc: str) -> dict[str, str]:
    return {name: " ".join(text.split()) for name, text in ARGUMENT.findall(part(doc, "Args"))}


# ---------------------------------------------------------------- calls, every size another prime


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def calls() -> None:
    q, k, v = draw(2, 3, 5, 11), draw(2, 3, 7, 11), draw(2, 3, 7, 13)
    for attend in (functional.attention, fused.fused_attention):
        attend(q, k, v, mask=masks.padding_mask(torch.tensor([7, 4]), 7))
    functional.attention_weights(q, k, mask=masks.causal_mask(5, 7))
    functional.attention_weights(q, k, mask=torch.ones(2, 3, 5, 7).bool())
    fused.fused_attention(draw(2, 6, 5, 11), k, v)
    heads, some = draw(2, 3, 5, 11), masks.padding_mask(torch.tensor([5, 4]), 5)
    options = {"mask": some, "state": draw(2, 3, 11, 13)}
    for decay in (-draw(2, 3, 5).exp(), -draw(2, 3, 5, 11).exp()):
        given = (draw(2, 6, 5, 11), heads, draw(2, 3, 5, 13))
        one_state.linear_attention(*given, log_decay=decay, **options)
        one_state.gated_delta_rule(*given, draw(2, 3, 5).sigmoid(), log_decay=decay, **options)
    taps = {"bias": draw(21), "mask": some, "state": draw(2, 3, 21)}
    one_state.short_convolution(draw(2, 5, 21), draw(21, 4), **taps)
    merge_heads(split_heads(draw(2, 5, 21), 3))
    for offset in (None, torch.tensor([0, 1])):
        masks.causal_mask(5, 7, offset=offset)
        masks.window_mask(5, 7, window=3, offset=offset)
    masks.segment_mask(torch.zeros(2, 5, dtype=torch.int64))
    masks.from_binary(masks.to_binary(masks.padding_mask(torch.tensor([7, 4]), 7)))
    positions.apply_rope(draw(2, 3, 5, 14), torch.arange(5))
    positions.apply_rope(draw(5, 14), torch.arange(5))
    positions.apply_rope(draw(2, 3, 5, 14), torch.arange(5).expand(2, 1, 5))
    positions.sinusoidal(5, 14)
    positions.alibi_bias(3, 5, 7)
    positions.LearnedPositions(max_len=19, d_model=14)(draw(2, 5, 14), torch.arange(5))
    sizes = {"d_model": 21, "num_heads": 3, "d_ff": 23, "num_layers": 1}
    crossing = MultiHeadAttention(21, 3, d_context=17)
    for closing in (masks.causal_mask(5, 7), torch.ones(2, 3, 5, 7).bool()):
        crossing(draw(2, 5, 21), draw(2, 7, 17), mask=closing)
    FeedForward(d_model=21, d_ff=23)(draw(2, 5, 21))
    block = {name: size for name, size in sizes.items() if name != "num_layers"}
    for kind, given in ((TransformerBlock, block), (TransformerEncoder, sizes)):
        kind(**given, cross_attention=True)(draw(2, 5, 21), draw(2, 7, 21))
    TransformerDecoder(**sizes)(draw(2, 5, 21), draw(2, 7, 21))
    tokens, context = torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 7, dtype=torch.int64)
    source_mask, target_mask = (masks.padding_mask(torch.tensor([4, n]), n) for n in (7, 5))
    sizes["max_len"] = 19
    model = models.Transformer(source_vocab_size=29, target_vocab_size=31, **sizes).eval()
    model(context, tokens, source_mask=source_mask, target_mask=target_mask)
    read = model.encode(context, mask=source_mask)
    model.decode(tokens, read, context_mask=source_mask)
    writer = models.DecoderLM(vocab_size=31, logit_softcap=2.0, **sizes).eval()
    real = masks.padding_mask(torch.tensor([5, 5]), 5)
    generation.generate(writer, tokens, max_new_tokens=3, mask=real)
    encoder = models.SentenceEncoder(vocab_size=31, **sizes).eval()
    encoder(tokens, mask=target_mask)
    encoder.embed(tokens)
    del sizes["max_len"]
    patches = {"patch_size": 11, "in_channels": 1}
    seer = vision.VisionTransformer(image_size=33, num_classes=37, **patches, **sizes).eval()
    seer(draw(2, 1, 33, 33))
    seer.features(draw(2, 1, 33, 33))
    vision.PatchEmbedding(**patches, d_model=21)(draw(2, 1, 33, 22))
    vision.resample_positions(draw(10, 21), 2)
    vision.attention_rollout([draw(2, 3, 5, 5).softmax(dim=-1)])
    train(writer, lambda m, _: m(tokens).square().mean(), steps=2, lr=1e-3)
    plotting.plot_weights(draw(5, 7).softmax(dim=-1))
    plotting.plot_mask(masks.causal_mask(5, 7))


def recorded() -> list[tuple]:
    """Of each call of what is documented: code, arguments, result."""
    found, open_calls, sizes = [], [], {}

    def watch(frame, event, result):
        if frame.f_code in SAID and event == "call":
            given, key = dict(frame.f_locals), id(frame.f_locals.get("self"))
            if frame.f_code.co_name == "__init__":
                sizes[key] = {**given, **given.get("block", {})} | sizes.get(key, {})
            open_calls.append({**sizes.get(key, {}), **given})
        elif frame.f_code in SAID and event == "return":
            found.append((frame.f_code, open_calls.pop(), result))

    calls()  # what is imported for the first call is not watched, which takes long
    sys.setprofile(watch)
    try:
        calls()
    finally:
        sys.setprofile(None)
        plt.close("all")
    return found


@pytest.fixture(scope="module")
def made(one_thread):
    return recorded()


# ---------------------------------------------------------------- shapes and types


def size(letters: str, known: dict[str, int]) -> int | None:
    """What an axis is worth, where all its letters are known: ``1 + n · n``, ``a · b / c²``."""
    worth = 0
    for term in letters.split(" + "):
        value = 1
        for sign, name, square in re.findall(r"([·/]?) ?(\w+?)(²?)(?= |$)", term):
            number = int(name) if name.isdigit() else known.get(name)
            if number is None:
                return None
            number **= 2 if square else 1
            value = value // number if sign == "/" else value * number
        worth += value
    return worth


def misfits(text: str, value, known: dict[str, int]) -> list[str]:
    """Where a tensor is not what a text says; a letter that is new becomes known."""
    match = SHAPE.match(text)
    if match is None or match[3] or not isinstance(value, torch.Tensor):
        return []
    kinds, letters = {match[1], match[4]} & {*KINDS}, match[2].rstrip(",").split(", ")
    wrong = [kind for kind in kinds if value.dtype != KINDS[kind]]
    shape = [*value.shape]
    if letters[0] == "...":
        letters = letters[1:]
        shape = shape[len(shape) - len(letters) :]
    if len(letters) != len(shape):
        return [*wrong, f"({match[2]})"]
    for letter, real in zip(letters, shape, strict=True):
        if re.fullmatch(r"[A-Za-z]\w*", letter):
            known.setdefault(letter, real)
        wrong += [letter] * (size(letter, known) not in (None, real))
    return wrong


def held(doc: str, given: dict, result) -> tuple[dict[str, int], list[str]]:
    """What the letters of a docstring are worth in one call, and what it says that is not so."""
    own = {**vars(given.get("self", draw)), **given}
    known = {name: number for name, number in own.items() if type(number) is int}
    told = {name: (text, given.get(name)) for name, text in arguments(doc).items()}
    first = result[0] if isinstance(result, tuple) else result
    told["Returns"] = (" ".join(part(doc, "Returns").split()), first)
    for _ in range(2):  # a letter may be used before it is named
        wrong = {name: misfits(*pair, known) for name, pair in told.items()}
    return known, [f"{name}: {what}" for name, faults in wrong.items() for what in faults]


def untrue(made: list[tuple], faults, change=str) -> set[str]:
    """What docstrings say of calls that is not so; ``change`` plants a mistake."""
    told = [(*SAID[code], *call) for code, *call in made]
    return {f"{name}, {x}" for name, doc, *call in told for x in faults(change(doc), *call)}


def of_shapes(doc: str, _, given: dict, result) -> list[str]:
    return held(doc, given, result)[1]


READING = {"dinov2_inputs", "minilm_inputs"}  # of weights and photographs


def test_shapes_are_those_of_the_calls(made):
    assert untrue(made, of_shapes) == set()
    assert len(untrue(made, of_shapes, lambda doc: doc.replace("T, d_model)", "d_model, T)"))) > 5
    told = ((name, arguments(doc).values()) for name, doc, _ in SAID.values())
    shaped = {name for name, texts in told if any(map(SHAPE.match, texts))}
    assert shaped - {SAID[code][0] for code, *_ in made} == {"plot_diagram", *READING}


INNER = re.compile(r"(?<=. )\((?:[A-Z],|n,|(?:[A-Z]|\d+|\.\.\.), [^()]*)\)")
# what a function is called with that is passed, and what is only read
UNFIT = {"MultiHeadAttention (B, H + H_kv, T, d_k)", "MultiHeadAttention (B, ·, heads, d_k)"}
UNFIT |= {"generate (B, T, vocabulary)", "weather (1461, 4)", "fashion (n,)"}
UNFIT |= {"photographs (3, 448, 448)"}
UNFIT |= {"VisionTransformer.forward (B, d_model)"}  # of a model without classes


def inner(doc: str) -> set[str]:
    """Shapes within a text, not at its beginning: ``(T,) or (B, T)``, ``For x (B, T)``."""
    texts = [*arguments(doc).values(), " ".join(part(doc, "Returns").split())]
    return {shape for text in texts for shape in INNER.findall(re.sub("``.*?``", "code", text))}


def test_shapes_within_a_text_are_those_of_calls(made):
    """Each of them is that of some tensor of some call."""
    found = {f"{name} {shape}" for name, doc, _ in SAID.values() for shape in inner(doc)}
    for code, given, result in made:
        name, doc, _ = SAID[code]
        known, _ = held(doc, given, result)
        values = [*given.values(), *(result if isinstance(result, tuple) else [result])]
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        for shape in inner(doc):
            if not all(misfits(shape, tensor, {**known}) for tensor in tensors):
                found.discard(f"{name} {shape}")
    assert found == UNFIT


# ---------------------------------------------------------------- bounds, types, sizes

# in the text of an argument: numbers that are taken, and numbers that are refused
BOUNDS = {r"at least (\d+)(?! text)": lambda n: ([int(n)], [int(n) - 1])}
BOUNDS |= {r"in \[0, 1\]": lambda: ([0.0, 1.0], [-0.1, 1.1])}
BOUNDS |= {r"in \(0, 1\]": lambda: ([1.0], [0.0, 1.1])}
BOUNDS |= {r"a positive|above 0": lambda: ([0.5], [0, -1.0])}
# in a clause of ``Raises``: of what type the arguments are, and what is refused in their place
WRONG = [
    ("integer", int, lambda x: x + 0.5),
    ("integer", torch.int64, torch.Tensor.double),
    ("not bool", torch.bool, torch.Tensor.int),
    ("not floating point", torch.float32, torch.Tensor.int),
    ("below 1", int, lambda x: 0),
    ("negative(?! or)", int, lambda x: -1),
    ("not positive", float, lambda x: 0.0),
]


def clauses(doc: str) -> list[tuple[str, str]]:
    """Errors, each with one of its reasons."""
    raised = re.findall(r"(?m)^    (\w+): (.*(?:\n        .*)*)", part(doc, "Raises"))
    texts = ((error, " ".join(text.split()).rstrip(".")) for error, text in raised)
    return [(error, clause) for error, text in texts for clause in re.split("[;,] ", text)]


def trials(doc: str, given: dict):
    """Arguments with a value, and what a docstring says is raised then: one of these errors."""
    for name, text in arguments(doc).items():
        for pattern, values in BOUNDS.items():
            match = re.search(pattern, text)
            if match and isinstance(given.get(name), int | float):
                right, others = values(*match.groups())
                yield from ((name, value, {""}) for value in right)
                yield from ((name, value, {error for error, _ in clauses(doc)}) for value in others)
    for error, clause in clauses(doc):
        words = {*re.findall(r"\w+", clause)}
        told = {name for name in given if words & {name, name.split("_")[-1]}}
        meant = {*given} if "size" in clause or not told else told
        for name, (pattern, kind, change) in itertools.product(meant, WRONG):
            value = given[name]
            if re.search(pattern, clause) and getattr(value, "dtype", type(value)) == kind:
                yield name, change(value), {error}


def refused(thing, given: dict) -> str:
    """The error that a call raises."""
    for name, parameter in inspect.signature(thing).parameters.items():
        if parameter.kind == parameter.VAR_KEYWORD:
            given |= given.pop(name)
    try:
        with torch.set_grad_enabled(thing is train):
            thing(**given)
    except (TypeError, ValueError) as error:
        return type(error).__name__
    return ""


def of_trials(doc: str, thing, given: dict, _) -> list[str]:
    given = {name: given[name] for name in inspect.signature(thing).parameters if name in given}
    tried = trials(doc, given)
    return [f"{n}={v}" for n, v, said in tried if refused(thing, given | {n: v}) not in said]


def test_what_a_docstring_says_is_refused_is_refused(made):
    assert untrue(made, of_trials) == set()
    assert len(untrue(made, of_trials, lambda doc: doc.replace("at least 1", "at least 2"))) > 5
    # in all docstrings: a word that was changed is no bound any more
    docs = [doc for _, doc, _ in SAID.values()]
    texts = " ".join(text for doc in docs for text in arguments(doc).values())
    reasons = " ".join(clause for doc in docs for _, clause in clauses(doc))
    found = sum(len(re.findall(pattern, texts)) for pattern in BOUNDS)
    assert (found, sum(len(re.findall(word, reasons)) for word, _, _ in WRONG)) == (24, 86)


# ---------------------------------------------------------------- errors that another docstring has


def unraised(docs: dict[str, str]) -> list[str]:
    """Names whose errors are as in another docstring, where there is none of that name."""
    found = []
    for name, doc in docs.items():
        for error, clause in clauses(doc):
            if other := re.search(r"as (?:in )?:\w+:`(?:attn_lib\.\w+\.)?([\w.]+)`", clause):
                own = f"{name.partition('.')[0]}.{other[1]}"
                there = docs.get(own, docs.get(other[1], ""))
                found += [name] * (error not in dict(clauses(there)))
    return found


def test_errors_as_elsewhere_are_raised_there():
    assert unraised({name: doc for name, doc, _ in SAID.values()}) == []
    text = "Raises:\n    ValueError: as :class:`One`.\n"
    assert unraised({"One": "Raises:\n    TypeError: a size.\n", "Two": text}) == ["Two"]


# ---------------------------------------------------------------- names

# of files and of other libraries
ELSEWHERE = """NN_name book share usr mnist pre aten sublayer _tools freqs_cis Attention ForCausalLM
BertModel Dinov2Model ViTModel LlamaModel Qwen3Attention last_hidden_state rotate_half
IMAGENET_DEFAULT_MEAN IMAGENET_DEFAULT_STD causal_lower_right CausalConvWithState"""


def strange(sources: list[str]) -> set[str]:
    """Names in docstrings that no code has."""
    named, known = set(), {*dir(torch), *keyword.kwlist, *dir(attn_lib), *ELSEWHERE.split()}
    for node in (node for source in sources for node in ast.walk(ast.parse(source))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            quoted = re.findall(r"`+([^`\n]+)`+", ast.get_docstring(node) or "")
            words = re.sub(r'"[^"]*"', "", " ".join(quoted))
            named |= {*re.findall(r"[A-Za-z_]\w{2,}", words)}
        known |= {getattr(node, part, None) for part in ("id", "attr", "arg", "name", "module")}
        if isinstance(node, ast.Constant) and " " not in str(node.value):
            known |= {*re.findall(r"\w+", str(node.value))}
    return named - known - {path.stem for path in ROOT.glob("attn_lib/*.py")}


def test_names_in_docstrings_exist():
    sources = [path.read_text() for path in sorted(ROOT.glob("attn_*/**/*.py"))]
    assert strange(sources) == set()
    assert strange(['def f(max_len):\n    """At most ``max_length``."""']) == {"max_length"}


PAGE = r"in the page on (.+?)[.;,]"
# what a page builds under another name, or by hand
UNNAMED = {"attention_weights", "split_heads", "merge_heads", "from_blocked", "SentenceEncoder"}
UNNAMED |= {"LearnedPositions", "alibi_bias"}


def singular(words: list[str]) -> set[str]:
    return {word.removesuffix("s") for word in words}


def test_pages_that_docstrings_name_have_what_they_are_about():
    """In their text or code; what metadata holds against them does not count."""
    texts, named, lost = {}, 0, set()
    for path in (ROOT / "book").glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        texts[path.stem] = "\n".join("".join(cell["source"]) for cell in cells)
    for name, doc, _ in SAID.values():
        if told := re.search(PAGE, " ".join(doc.split())):
            words, about = singular(told[1].split()), name.partition(".")[0]
            there = [text for stem, text in texts.items() if words & singular(stem.split("_"))]
            named += 1
            lost |= set() if any(about in text for text in there) else {about}
    assert named > 30
    assert lost == UNNAMED
