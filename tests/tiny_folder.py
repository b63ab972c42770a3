"""A tiny target with a byte tokenizer and a chat template, and its head, as folders on disk."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from eagle_fsd.heads.files import write_head
from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.heads.models import EagleHead

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS = 32, 44, 4, 2
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
        vocab_size=len(vocab),
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=max_positions,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.3,  # so that the argmax varies with the context
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def write_random_head(folder: Path, *, hidden_size: int = HIDDEN, seed: int = 7) -> Path:
    """A random head that fits write_target's model unless told another width."""
    torch.manual_seed(seed)
    config = HeadConfig(
        hidden_size=hidden_size,
        intermediate_size=INTERMEDIATE,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        vocab_size=258,
    )
    write_head(folder, EagleHead(config))
    return folder
