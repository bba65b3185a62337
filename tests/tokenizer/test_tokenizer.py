"""Tokenizer: round trips, control tokens in text, end tokens, and hub folders."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from octavo.errors import (
    ContextLengthError,
    InvalidRequestError,
    ModelLoadError,
    UnsupportedModelError,
)
from octavo.tokenizer.loading import load_chat_template, load_tokenizer
from octavo.tokenizer.tokenizer import Tokenizer
from tests.tokenizer.conftest import byte_level_inner

TEXTS = [
    "Hello, world!",
    "The year 2024, 1234567890 and 3.14159",
    "🦊👩‍👩‍👧🇫🇷 naïve 日本語 한국어 العربية",
    "  spaces \t tabs\n\n\nnewlines \r\n",
    "<|im_start|>user\nx<|im_end|><|endoftext|>",
    "<|im_<|im_end|>end|>",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip_with_control_tokens_as_text(text: str, smollm: Tokenizer) -> None:
    ids = smollm.encode(text)
    assert smollm.special_ids.isdisjoint(ids)
    assert smollm.decode(ids) == text
    assert b"".join(map(smollm.id_to_bytes, ids)) == text.encode()


@settings(max_examples=100, deadline=None)
@given(
    parts=st.lists(
        st.sampled_from(
            ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|im_", "end|>", " ", "a", "é"]
        ),
        max_size=12,
    )
)
def test_encode_never_reads_control_tokens_unasked(parts: list[str], smollm: Tokenizer) -> None:
    text = "".join(parts)
    ids = smollm.encode(text)
    assert smollm.special_ids.isdisjoint(ids)
    assert smollm.decode(ids) == text
    parsed = smollm.encode(text, parse_special=True)
    assert smollm.decode(parsed, skip_special_tokens=False) == text
    count = sum(text.count(token) for token in ("<|im_end|>", "<|im_start|>", "<|endoftext|>"))
    assert sum(i in smollm.special_ids for i in parsed) == count


def test_parse_special_reads_control_tokens(smollm: Tokenizer) -> None:
    assert smollm.encode("<|im_start|>a<|im_end|>", parse_special=True) == [1, 81, 2]
    assert smollm.decode([1, 2, 1], skip_special_tokens=False) == (
        "<|im_start|><|im_end|><|im_start|>"
    )
    assert smollm.decode([1, 81, 2]) == "a"


def test_a_batch_is_its_texts_one_by_one(smollm: Tokenizer) -> None:
    for parse in (False, True):
        batch = smollm.encode_batch(TEXTS, parse_special=parse)
        assert batch == [smollm.encode(text, parse_special=parse) for text in TEXTS]


def test_facts_of_the_default_model(smollm: Tokenizer) -> None:
    assert smollm.vocab_size == 49152
    assert smollm.eos_token_ids == (2, 0)
    assert smollm.bos_token_id == 1
    assert not smollm.add_bos
    assert smollm.special_ids == frozenset(range(17))
    assert smollm.token_str(smollm.encode(" the")[0]) == "Ġthe"
    assert smollm.id_to_token_text(smollm.encode(" the")[0]) == " the"
    assert smollm.token_to_id("<|im_end|>") == 2
    for out_of_range in (-1, 49152):
        assert smollm.id_to_bytes(out_of_range) == b""
        assert smollm.token_str(out_of_range) == ""


def test_all_tokens_together_hold_the_bytes_the_library_says(smollm: Tokenizer) -> None:
    inner = smollm._inner
    for token_id in range(17, smollm.vocab_size, 7):
        text = smollm.whole_text(token_id)
        if text is not None:
            assert inner.decode([token_id]) == text


def test_a_lone_surrogate_is_refused(smollm: Tokenizer) -> None:
    for parse in (False, True):
        with pytest.raises(InvalidRequestError, match="surrogate"):
            smollm.encode("a\ud800", parse_special=parse)


def test_a_text_that_cannot_fit_is_refused_unread(gguf_metadata: dict[str, Any]) -> None:
    tokenizer = load_tokenizer(SimpleNamespace(
        format="gguf", metadata=gguf_metadata, tokenizer_dir=None,
        config=SimpleNamespace(eos_token_ids=(2,), bos_token_id=1)))
    longest = max(map(len, tokenizer._inner.get_vocab()))
    tokenizer.limit_text(10)
    assert len(tokenizer.encode("a" * 10 * longest)) > 10  # may be too long, but was read
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_pieces([(False, text)])):
        with pytest.raises(ContextLengthError, match=f"{10 * longest + 1} characters; 10 tokens"):
            encode("a" * (10 * longest + 1))


def test_bos_and_eos_around_a_text(gguf_metadata: dict[str, Any]) -> None:
    metadata = gguf_metadata | {
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
        "tokenizer.ggml.eot_token_id": 5,
        "tokenizer.ggml.eom_token_id": 2,
    }
    model = SimpleNamespace(format="gguf", metadata=metadata, tokenizer_dir=None, config=None)
    tokenizer = load_tokenizer(model)
    assert tokenizer.add_bos
    assert tokenizer.encode("a") == [1, 81, 2]
    assert tokenizer.encode("a", add_special_tokens=False) == [81]
    assert tokenizer.eos_token_ids == (2, 5, 0)
    metadata["tokenizer.ggml.eos_token_id"] = 49152
    with pytest.raises(ModelLoadError, match="eos_token_id = 49152"):
        load_tokenizer(model)


def test_a_vocabulary_that_spells_a_control_token_as_a_word() -> None:
    """Merges lead to the control token's text: it must still not be read unasked."""
    inner = tokenizers.Tokenizer(
        models.BPE(
            vocab={"E": 0, "N": 1, "D": 2, "EN": 3, "END": 4}, merges=[("E", "N"), ("EN", "D")]
        )
    )
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken("END", special=True, normalized=False)])
    tokenizer = Tokenizer(inner)
    assert tokenizer.encode("END", parse_special=True) == [4]
    assert tokenizer.encode("ENDEND") == [0, 1, 2, 0, 1, 2]
    ids = tokenizer.encode("NEND" * 3000 + "EN")
    assert 4 not in ids
    assert tokenizer.decode(ids) == "NEND" * 3000 + "EN"


def test_control_tokens_that_swallow_white_space() -> None:
    inner = byte_level_inner([])
    inner.add_special_tokens(
        [
            AddedToken("<r>", special=True, normalized=False, rstrip=True),
            AddedToken("<l>", special=True, normalized=False, lstrip=True),
        ]
    )
    tokenizer = Tokenizer(inner)
    pieces = [(False, "a "), (True, "<r>"), (False, " \n b "), (True, "<l>"), (False, " c")]
    whole = tokenizer.encode("".join(text for _, text in pieces), parse_special=True)
    assert tokenizer.encode_pieces(pieces) == whole
    assert tokenizer.decode(whole, skip_special_tokens=False) == "a <r>b<l> c"
    hostile = [*pieces, (False, "<l>")]
    assert tokenizer.encode_pieces(hostile) == [*whole, *tokenizer.encode("<l>")]


def test_control_tokens_hidden_by_a_normalizer() -> None:
    inner = byte_level_inner([])
    inner.normalizer = normalizers.Lowercase()
    inner.add_special_tokens([AddedToken("<end>", special=True, normalized=True)])
    tokenizer = Tokenizer(inner)
    assert len(tokenizer.encode("<END>", parse_special=True)) == 1
    assert tokenizer.special_ids.isdisjoint(tokenizer.encode("<END>"))
    ids = tokenizer.encode_pieces([(False, "<END>"), (True, "<end>")])
    assert [i in tokenizer.special_ids for i in ids] == [False] * 5 + [True]


# --- hub folders ---


def write_folder(folder: Path, inner: Any, **files: Any) -> SimpleNamespace:
    inner.save(str(folder / "tokenizer.json"))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    return SimpleNamespace(
        format="safetensors",
        path=folder,
        metadata={},
        tokenizer_dir=folder,
        config=SimpleNamespace(eos_token_ids=(257,), bos_token_id=256),
    )


def test_a_folder_and_its_settings(tmp_path: Path) -> None:
    inner = byte_level_inner(["<s>", "<|end|>", "</s>"])
    inner.enable_truncation(2)
    model = write_folder(
        tmp_path,
        inner,
        tokenizer_config={
            "bos_token": {"content": "<s>", "lstrip": False},
            "eos_token": "</s>",
            "add_bos_token": True,
            "chat_template": [
                {"name": "default", "template": "{{ bos_token }}one{{ eos_token }}"},
                {"name": "tool_use", "template": "two"},
            ],
        },
        generation_config={"eos_token_id": [258, 257]},
    )
    tokenizer = load_tokenizer(model)
    assert tokenizer.bos_token_id == 256
    assert tokenizer.eos_token_ids == (258, 257)
    assert tokenizer.add_bos
    assert len(tokenizer.encode("abcdef")) == 7  # the file's truncation is off
    template = load_chat_template(model, tokenizer)
    messages = [{"role": "user", "content": "x"}]
    assert template.render(messages).pieces == ((True, "<s>"), (False, "one"), (True, "</s>"))
    assert template.render(messages, tools=[{}]).text == "two"
    (tmp_path / "chat_template.jinja").write_text("own file", encoding="utf-8")
    assert load_chat_template(model, tokenizer).render(messages).text == "own file"


def test_bos_of_the_post_processor_unless_the_settings_say_no(tmp_path: Path) -> None:
    inner = byte_level_inner(["<s>"])
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 256)]
    )
    model = write_folder(tmp_path, inner, tokenizer_config={"bos_token": "<s>"})
    tokenizer = load_tokenizer(model)
    assert tokenizer.encode("a") == [256, *tokenizer.encode("a", add_special_tokens=False)]
    settings_file = {"bos_token": "<s>", "add_bos_token": False}
    model = write_folder(tmp_path, inner, tokenizer_config=settings_file)
    assert load_tokenizer(model).encode("a", add_special_tokens=True) == tokenizer.encode(
        "a", add_special_tokens=False
    )


def sentencepiece_inner() -> Any:
    """A SentencePiece-style tokenizer with byte fallback, as Llama 2's tokenizer.json."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁helo"]
    inner = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    inner.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    inner.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")]
    )
    return inner


def test_sentencepiece_style_vocabularies() -> None:
    tokenizer = Tokenizer(sentencepiece_inner())
    for text in ("hello hello", "he 🦊 é", "  x</s>"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.special_ids.isdisjoint(ids)
    fox = tokenizer.encode("🦊")
    assert b"".join(map(tokenizer.id_to_bytes, fox)) == " 🦊".encode()
    assert tokenizer.decode([*fox[1:], 2], skip_special_tokens=False) == "🦊</s>"


def test_unknown_decoders_are_refused_by_name() -> None:
    inner = byte_level_inner([])
    inner.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedModelError, match="WordPiece"):
        Tokenizer(inner)
    bare = tokenizers.Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    with pytest.raises(UnsupportedModelError, match="no decoder"):
        Tokenizer(bare)


def test_broken_folders_are_refused(tmp_path: Path) -> None:
    model = SimpleNamespace(format="safetensors", metadata={}, tokenizer_dir=tmp_path, config=None)
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json: not found"):
        load_tokenizer(model)
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json: not a tokenizer"):
        load_tokenizer(model)
    byte_level_inner([]).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text("[", encoding="utf-8")
    with pytest.raises(ModelLoadError, match=r"tokenizer_config\.json: not JSON"):
        load_tokenizer(model)


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    model_file = SimpleNamespace(path=tmp_path, format="safetensors", metadata={},
                                 tokenizer_dir=None, config=SimpleNamespace())
    with pytest.raises(ModelLoadError) as caught:
        load_tokenizer(model_file)
    assert str(tmp_path) in caught.value.message and "tokenizer.json" in caught.value.message
