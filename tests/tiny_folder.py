"""A tiny target with a byte tokenizer and a chat template, and its head, as folders on disk."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from eagle_fsd.heads.draft_head import build_head
from eagle_fsd.heads.files import write_head
from eagle_fsd.heads.head_config import HeadConfig

SIZES = {
    "vocab_size": 258,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
CHAT_TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


def write_target(
    folder: Path, *, seed: int = 0, max_positions: int = 2048, layers: int = 4
) -> Path:
    """A random Llama in float32 whose vocabulary is the 256 bytes, <s> and </s>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<s>": 0, "</s>": 1} | {char: i for i, char in enumerate(alphabet, start=2)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        **SIZES,
        num_hidden_layers=layers,
        max_position_embeddings=max_positions,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.3,  # so that the argmax varies with the context
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def write_random_head(folder: Path, *, seed: int = 7, **changes) -> Path:
    """A random head that fits write_target's model unless told other sizes."""
    torch.manual_seed(seed)
    write_head(folder, build_head(HeadConfig(**SIZES | changes)).bfloat16())
    return folder
