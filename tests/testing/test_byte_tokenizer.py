"""The byte tokenizer behaves as any other Tokenizer."""

from pathlib import Path

from octavo.testing.byte_tokenizer import BOS_ID, EOS_ID, IM_END_ID, VOCAB_SIZE, byte_tokenizer
from octavo.testing.toy_model import tiny_llama
from octavo.tokenizer.loading import load_tokenizer
from octavo.weights.model_file import open_model


def test_ids_are_bytes() -> None:
    tokenizer = byte_tokenizer()
    text = "plain, é, 漢, \x00\n\t 🙂"
    ids = tokenizer.encode(text)
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text
    assert [tokenizer.id_to_bytes(i) for i in range(256)] == [bytes([i]) for i in range(256)]
    assert tokenizer.vocab_size == VOCAB_SIZE == 260


def test_control_tokens_only_on_demand() -> None:
    tokenizer = byte_tokenizer(add_bos=True)
    assert tokenizer.encode("a<|eos|>", parse_special=True) == [BOS_ID, 97, EOS_ID]
    assert EOS_ID not in tokenizer.encode("a<|eos|>")
    assert tokenizer.decode([BOS_ID, 97, EOS_ID]) == "a"
    assert tokenizer.decode([97, EOS_ID], skip_special_tokens=False) == "a<|eos|>"
    assert tokenizer.eos_token_ids == (EOS_ID, IM_END_ID)
    assert tokenizer.special_ids == frozenset(range(256, 260))


def test_a_saved_tiny_model_opens_as_any_other(tmp_path: Path) -> None:
    tiny = tiny_llama(seed=7)
    with open_model(tiny.save(tmp_path / "tiny")) as file:
        assert file.config == tiny.config
        assert set(file.tensors) == tiny.weights.names
        tokenizer = load_tokenizer(file)
    assert tokenizer.encode("hi") == [104, 105]
    assert tokenizer.eos_token_ids == (EOS_ID, IM_END_ID)
