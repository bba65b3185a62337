"""The GGUF reader: against the `gguf` package, and every kind of broken file."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.errors import ModelLoadError, ModelNotFoundError, UnsupportedModelError
from octavo.weights.gguf import read_gguf
from octavo.weights.gguf_write import TensorToWrite, encode_value, write_gguf
from octavo.weights.model_file import open_model
from octavo.weights.quant_types import QUANT_TYPES
from octavo.weights.quantize import WRITABLE_TYPES, quantize
from octavo.weights.tensor_names import canonical_from_gguf
from tests.weights.builders import gguf_metadata, gguf_tensors, save_gguf


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_gguf(tmp_path / "tiny.gguf", gguf_metadata(), gguf_tensors())


def refusal(path: Path, error: type[ModelLoadError] = ModelLoadError) -> str:
    """The one line that opening `path` is refused with."""
    with pytest.raises(error) as caught:
        open_model(path)
    message = str(caught.value)
    assert "\n" not in message and message.startswith(str(path.parent)), message
    return message


def edited(path: Path, edit: Callable[[bytearray], None]) -> Path:
    data = bytearray(path.read_bytes())
    edit(data)
    target = path.with_name("edited.gguf")
    target.write_bytes(data)
    return target


def test_reads_what_the_oracle_reads(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    values = random.standard_normal((6, 256)).astype(np.float32)
    path = tmp_path / "all.gguf"
    metadata = {
        "a.flag": True, "a.small": 3, "a.negative": -5, "a.big": 1 << 40, "a.low": -(1 << 40),
        "a.real": 0.5, "a.text": "héllo", "a.words": ["x", "", "ß"], "a.ids": [1, 2, 3],
        "a.none": encode_value([]), "a.u8": encode_value(200, 0), "a.f64": encode_value(0.1, 12),
        "a.reals": [0.5, 1.5], "a.flags": [True, False],
    }  # fmt: skip
    tensors = [
        TensorToWrite(f"w.{q}", (6, 256), q, lambda q=q: quantize(values, q))
        for q in WRITABLE_TYPES
    ] + [TensorToWrite("cube", (2, 3, 256), "F32", lambda: values)]
    write_gguf(path, metadata=metadata, tensors=tensors)

    theirs = gguf.GGUFReader(path)
    ours = read_gguf(path)
    for key in metadata:
        expected = theirs.fields[key].contents() if key != "a.none" else []
        assert ours.metadata[key] == expected, key
    assert ours.metadata.array_length("a.words") == 3
    assert ours.metadata.array_length("a.small") is None
    assert list(ours.metadata) == list(metadata) and "b" not in ours.metadata
    assert len(ours.tensors) == len(theirs.tensors)
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.offset == tensor.data_offset and mine.nbytes == tensor.n_bytes
        assert mine.shape == tuple(int(n) for n in reversed(tensor.shape))
        assert mine.quant.gguf_id == int(tensor.tensor_type)


def test_reads_what_the_oracle_writes(tmp_path: Path) -> None:
    path = tmp_path / "theirs.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in gguf_metadata().items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif key != "general.architecture":
            writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    tensors = gguf_tensors(head=True)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_model(path) as model:
        for name, values in tensors.items():
            assert (model.f32(canonical_from_gguf(name) or "") == values).all()
        assert not model.config.tie_word_embeddings


def test_real_model_matches_the_oracle(model_path: Path) -> None:
    """One tensor of each type in the default model; the package's own reader is too slow."""
    with open_model(model_path) as model:
        assert {t.quant for t in model.tensors.values()} == {"Q4_1", "Q8_0", "F32"}
        assert len(model.tensors) == 272
        assert model.config.num_layers == 30 and model.config.eos_token_ids == (2, 0)
        assert model.config.rope.style == "interleaved"
        for name in ("layers.7.mlp.down_proj.weight", "embed_tokens.weight"):
            info = model.tensors[name]
            raw = model.raw(name)[:64]
            theirs = gguf.dequantize(raw, gguf.GGMLQuantizationType[info.quant])
            assert (model.f32(name)[:64] == theirs).all()
        assert model.metadata["tokenizer.ggml.tokens"][:3] == [
            "<|endoftext|>", "<|im_start|>", "<|im_end|>",
        ]  # fmt: skip


def test_release_keeps_the_data(model: Path) -> None:
    with open_model(model) as opened:
        name = "layers.0.mlp.up_proj.weight"
        before = opened.f32(name)
        opened.release(name)
        assert (opened.f32(name) == before).all()


def test_views_outlive_close(model: Path) -> None:
    opened = open_model(model)
    view = opened.raw("norm.weight")
    opened.close()
    opened.close()
    assert view.shape == (1, 256) and view.view(np.float32).any()
    assert not view.flags.writeable


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"nothing\.gguf: no such file"):
        open_model(tmp_path / "nothing.gguf")


def test_a_named_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "not a regular file" in refusal(tmp_path / "pipe.gguf")


def put(offset: int, fmt: str, *values: object) -> Callable[[bytearray], None]:
    return lambda data: struct.pack_into(fmt, data, offset, *values)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (put(0, "4s", b"ggjt"), "not a GGUF file: the magic is b'ggjt'"),
        (put(4, ">I", 3), "big-endian"),
        (put(4, "<I", 1), "version 1"),
        (put(4, "<I", 99), "version 99"),
        (put(8, "<Q", 1 << 62), "4611686018427387904 tensors cannot fit"),
        (put(16, "<Q", 1 << 62), "4611686018427387904 keys"),
        (put(24, "<Q", 1 << 50), "a name of 1125899906842624 bytes"),
        (put(16, "<Q", 10), "has 9 dimensions"),  # too few keys: a key is read as a tensor
    ],
)
def test_broken_header(model: Path, edit: Callable[[bytearray], None], words: str) -> None:
    assert words in refusal(edited(model, edit))


def test_truncated_anywhere(model: Path) -> None:
    data = model.read_bytes()
    cut = model.with_name("cut.gguf")
    for size in (0, 3, 7, 20, 100, 700, len(data) // 2, len(data) - 40):
        cut.write_bytes(data[:size])
        message = refusal(cut)
        assert "truncated" in message or size == 3, (size, message)
    assert f"expected at least {len(data)}" in message and f"size {len(data) - 40}" in message


def tensor_table_entry(data: bytes, name: str) -> int:
    """Offset of the dimension count in the tensor's table entry."""
    encoded = name.encode()
    return data.index(struct.pack("<Q", len(encoded)) + encoded) + 8 + len(encoded)


@pytest.mark.parametrize(
    ("at", "fmt", "value", "words"),
    [
        (0, "<I", 0, "0 dimensions"),
        (0, "<I", 77, "77 dimensions"),
        (4, "<Q", 65, "has shape [96, 65]"),
        (4, "<Q", (1 << 64) - 1, "truncated"),
        (12, "<Q", 1 << 63, "truncated"),
        (20, "<I", 12345, "unknown type id 12345"),
        (20, "<I", 23, "type IQ4_XS (id 23) is not supported; supported are F32"),
        (24, "<Q", 7, "misaligned"),
        (24, "<Q", 1 << 63, "truncated"),
        (24, "<Q", 0, "overlaps tensor"),
    ],
)
def test_broken_tensor_entry(model: Path, at: int, fmt: str, value: int, words: str) -> None:
    name = "blk.1.ffn_up.weight"
    start = tensor_table_entry(model.read_bytes(), name) + at
    if words.startswith("has shape"):  # the data must stay inside the file and clear of others
        broken = gguf_tensors()
        broken[name] = np.zeros((96, 65), np.float32)
        path = save_gguf(model.with_name("edited.gguf"), gguf_metadata(), broken)
    else:
        path = edited(model, put(start, fmt, value))
    message = refusal(path)
    assert words in message and (name in message or "overlaps" in words)


def test_row_that_is_no_whole_number_of_blocks(model: Path) -> None:
    start = tensor_table_entry(model.read_bytes(), "blk.1.ffn_up.weight")
    path = edited(model, put(start + 20, "<I", QUANT_TYPES["Q4_K"].gguf_id))
    assert "rows of 64 elements are not whole blocks of 256 (Q4_K)" in refusal(path)


def test_duplicate_tensor_and_key(model: Path) -> None:
    def twice(data: bytearray) -> None:
        start = data.index(b"blk.0.ffn_up.weight")
        data[start : start + 5] = b"blk.1"

    message = refusal(edited(model, twice))
    assert "blk.1.ffn_up.weight" in message and "twice" in message

    def key_twice(data: bytearray) -> None:
        at = data.index(b"tokenizer.ggml.bos_token_id")
        data[at : at + 27] = b"tokenizer.ggml.eos_token_id"

    assert "key tokenizer.ggml.eos_token_id: appears twice" in refusal(edited(model, key_twice))


@pytest.mark.parametrize("key", [k for k in gguf_metadata() if k.startswith(("general", "llama"))])
def test_missing_key_is_named(tmp_path: Path, key: str) -> None:
    metadata = gguf_metadata()
    del metadata[key]
    path = save_gguf(tmp_path / "m.gguf", metadata, gguf_tensors())
    if key.endswith("freq_base"):  # the one key with a default
        assert open_model(path).config.rope.theta == 10000.0
    elif key.endswith("head_count_kv"):  # absent: as many as query heads
        assert "blk.0.attn_k.weight: has shape [32, 64]" in refusal(path)
    else:
        assert f"key {key}: is missing" in refusal(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block_count": "2"}, "key llama.block_count: is '2', expected a positive integer"),
        ({"block_count": 0}, "key llama.block_count: is 0"),
        ({"block_count": 3}, "tensor blk.2.attn_norm.weight: is missing"),
        ({"block_count": 1}, "tensor blk.1."),
        ({"embedding_length": 128}, "tensor token_embd.weight: has shape [40, 64], the model"),
        ({"feed_forward_length": 97}, "blk.0.ffn_gate.weight: has shape [96, 64]"),
        ({"attention__head_count": 3}, "key llama.attention.head_count_kv: is 2"),
        ({"attention__head_count_kv": [2, 2]}, "key llama.attention.head_count_kv: [2, 2]"),
        ({"attention__layer_norm_rms_epsilon": float("nan")}, "epsilon: is nan"),
        ({"attention__key_length": 16, "attention__value_length": 8}, "value_length: 8"),
        ({"rope__dimension_count": 8}, "key llama.rope.dimension_count: 8 is not supported"),
        ({"rope__scaling__type": "yarn"}, "key llama.rope.scaling.type: 'yarn' is not supported"),
        ({"rope__freq_base": -1.0}, "rope.freq_base: is -1.0"),
        ({"expert_count": 8}, "key llama.expert_count: 8 is not supported"),
        ({"attention__causal": False}, "key llama.attention.causal: False"),
        ({"vocab_size": 39}, "has 40 tokens, more than vocab_size 39"),
    ],
)  # fmt: skip
def test_bad_key_is_named(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    path = save_gguf(tmp_path / "m.gguf", gguf_metadata(**changes), gguf_tensors())
    assert words in refusal(path)


def test_unsupported_is_its_own_error(tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "m.gguf", gguf_metadata("gemma3"), gguf_tensors())
    message = refusal(path, UnsupportedModelError)
    assert "key general.architecture: 'gemma3' is not supported (supported: llama" in message


def test_missing_and_surplus_tensors(tmp_path: Path) -> None:
    tensors = gguf_tensors()
    norm = tensors.pop("output_norm.weight")
    path = save_gguf(tmp_path / "m.gguf", gguf_metadata(), tensors)
    assert "tensor output_norm.weight: is missing" in refusal(path)
    for extra in ("blk.0.attn_output.bias", "blk.1.ffn_gate_inp.weight", "blk.7.attn_norm.weight"):
        save_gguf(path, gguf_metadata(), tensors | {"output_norm.weight": norm, extra: norm})
        assert f"tensor {extra}: is not part of a llama model" in refusal(
            path, UnsupportedModelError
        )


def test_qwen_families(tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "q2.gguf", gguf_metadata("qwen2"), gguf_tensors(bias=True))
    with open_model(path) as model:
        assert model.config.attention_bias and model.config.rope.style == "neox"
        assert model.tensors["layers.0.self_attn.q_proj.bias"].shape == (64,)
    path = save_gguf(tmp_path / "q2b.gguf", gguf_metadata("qwen2"), gguf_tensors())
    assert "tensor blk.0.attn_q.bias: is missing" in refusal(path)
    path = save_gguf(tmp_path / "q3.gguf", gguf_metadata("qwen3"), gguf_tensors(qk_norm=True))
    with open_model(path) as model:
        assert model.config.qk_norm and not model.config.attention_bias
        assert model.tensors["layers.1.self_attn.k_norm.weight"].shape == (16,)


def test_rope_settings(tmp_path: Path) -> None:
    divisors = np.linspace(1, 8, 8).astype(np.float32)
    tensors = gguf_tensors() | {"rope_freqs.weight": divisors}
    path = save_gguf(tmp_path / "m.gguf", gguf_metadata(), tensors)
    with open_model(path) as model:
        assert model.config.rope.freqs == tuple(divisors.tolist())
        assert model.config.rope.scaling is None and "rope_freqs.weight" not in model.tensors
    save_gguf(path, gguf_metadata(), gguf_tensors() | {"rope_freqs.weight": divisors[:5]})
    assert "tensor rope_freqs.weight: is F32 [5], expected F32 [8]" in refusal(path)
    save_gguf(path, gguf_metadata(), gguf_tensors() | {"rope_freqs.weight": divisors - 1})
    assert "rope_freqs.weight: has values that are not positive" in refusal(path)
    for linear in (
        {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0},
        {"rope__scale_linear": 4.0},
    ):
        save_gguf(path, gguf_metadata(**linear), gguf_tensors())
        rope = open_model(path).config.rope
        assert (rope.scaling, rope.factor) == ("linear", 4.0)
    save_gguf(path, gguf_metadata(rope__scaling__type="linear"), gguf_tensors())
    assert "key llama.rope.scaling.factor: is missing" in refusal(path)


def test_end_tokens_and_window(tmp_path: Path) -> None:
    path = save_gguf(
        tmp_path / "m.gguf", gguf_metadata(attention__sliding_window=16), gguf_tensors()
    )
    config = open_model(path).config
    assert config.eos_token_ids == (38, 39) and config.bos_token_id == 1
    assert config.sliding_window == 16 and config.generation_defaults == {}


def save_split(folder: Path, *, count: int = 2, keys: bool = True) -> list[Path]:
    tensors = list(gguf_tensors().items())
    paths = []
    for number in range(count):
        split = {
            "split.no": encode_value(number, 2),
            "split.count": encode_value(count, 2),
            "split.tensors.count": encode_value(len(tensors), 5),
        }
        metadata = gguf_metadata() if number == 0 else {}
        path = folder / f"model-{number + 1:05}-of-{count:05}.gguf"
        part = dict(tensors[number::count])
        paths.append(save_gguf(path, metadata | (split if keys else {}), part))
    return paths


@pytest.mark.parametrize("keys", [True, False])
def test_split_model(tmp_path: Path, keys: bool) -> None:
    first, *_ = save_split(tmp_path, count=3, keys=keys)
    with open_model(first) as model:
        assert model.name == "model" and len(model.tensors) == 20
        for name, values in gguf_tensors().items():
            assert (model.f32(canonical_from_gguf(name) or "") == values).all()


@pytest.mark.parametrize("keys", [True, False])
def test_split_model_refusals(tmp_path: Path, keys: bool) -> None:
    first, second = save_split(tmp_path, keys=keys)
    message = refusal(second)
    assert "later shard" in message and "open model-00001-of-00002.gguf" in message
    duplicate = second.read_bytes()
    second.unlink()
    assert "shard model-00002-of-00002.gguf is missing" in refusal(first)
    second.write_bytes(duplicate[:200])
    assert "model-00002-of-00002.gguf: truncated" in refusal(first)
    second.write_bytes(first.read_bytes())
    assert "model-00002-of-00002.gguf: " in refusal(first)
    if keys:
        second.write_bytes(duplicate)
        renamed = first.rename(tmp_path / "renamed.gguf")
        assert "is shard 1 of 2, but its name" in refusal(renamed)


@pytest.mark.parametrize("value", ["x", [1], 2.5, -1, 1 << 63])
@pytest.mark.parametrize("key", ["split.no", "split.count", "split.tensors.count"])
def test_senseless_split_keys(tmp_path: Path, key: str, value: object) -> None:
    save_split(tmp_path)
    first = tmp_path / "model-00001-of-00002.gguf"
    split = {"split.no": 0, "split.count": 2} | {key: value}
    save_gguf(first, gguf_metadata() | split, dict(list(gguf_tensors().items())[::2]))
    assert key in refusal(first) or "later shard" in refusal(first)


def test_names_in_messages_are_printable(model: Path) -> None:
    def newline(data: bytearray) -> None:
        at = data.index(b"blk.0.ffn_up.weight")
        data[at : at + 5] = b"b\n\x1b[x"

    message = refusal(edited(model, newline))
    assert "\\n" in message and "\x1b" not in message


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_mutated_headers_are_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "tiny.gguf"
    if not path.exists():
        save_gguf(path, gguf_metadata(), gguf_tensors())
    sound = bytearray(path.read_bytes())
    header = sound.index(b"output_norm.weight") + 60
    interesting = st.sampled_from([0, 1, 2, 7, 8, 9, 12, 127, 128, 255])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, header - 8))
        width = data.draw(st.sampled_from([1, 1, 4, 8]))
        sound[at : at + width] = bytes(data.draw(interesting) for _ in range(width))
    if data.draw(st.booleans()):
        del sound[data.draw(st.integers(0, len(sound))) :]
    mutated = tmp_path / "mutated.gguf"
    mutated.write_bytes(sound)
    try:
        with open_model(mutated) as opened:
            for key in opened.metadata:
                opened.metadata[key]
            for name in opened.tensors:
                assert opened.raw(name).nbytes == opened.tensors[name].nbytes
    except ModelLoadError as err:
        assert "\n" not in str(err)


@given(st.binary(max_size=200))
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_random_bytes_behind_the_magic(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "noise.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", 3) + tail)
    with pytest.raises(ModelLoadError):
        open_model(path)
