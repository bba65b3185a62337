"""A tokenizer without a model file: token id = byte value, and four control tokens behind them."""

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from octavo.tokenizer.tokenizer import Tokenizer

CONTROL_TOKENS = ("<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>")
BOS_ID, EOS_ID, IM_START_ID, IM_END_ID = range(256, 260)
VOCAB_SIZE = 256 + len(CONTROL_TOKENS)


def byte_tokenizer(*, add_bos: bool = False) -> Tokenizer:
    """The real `Tokenizer` class over bytes; EOS is <|eos|>, then <|im_end|>."""
    return Tokenizer(
        raw_byte_tokenizer(),
        eos_token_ids=(EOS_ID, IM_END_ID),
        bos_token_id=BOS_ID,
        prefix_ids=(BOS_ID,) if add_bos else (),
    )


def raw_byte_tokenizer() -> tokenizers.Tokenizer:
    """The `tokenizers` object, for whoever writes a tokenizer.json."""
    inner = tokenizers.Tokenizer(models.BPE(_alphabet(), []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([tokenizers.AddedToken(t, special=True) for t in CONTROL_TOKENS])
    return inner


def _alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in of each byte to the byte's value."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_in = {byte: chr(byte) for byte in printable}
    stand_in |= {byte: chr(256 + n) for n, byte in enumerate(others)}
    return {stand_in[byte]: byte for byte in range(256)}
