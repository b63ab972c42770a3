"""A tiny target with a byte tokenizer and a chat template, and its head, as folders on disk."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AddedToken, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

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
    byte_tokenizer().save_pretrained(folder)
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


def byte_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<s>": 0, "</s>": 1} | {char: i for i, char in enumerate(alphabet, start=2)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = CHAT_TEMPLATE
    return fast


# as Qwen 3's: what was thought is left out once the conversation goes on
REASONING_TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'].split('</think>')[-1] if "
    "m['role'] == 'assistant' else m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


def write_reasoning_target(
    folder: Path, *, special: bool = False, opened: bool = False, eos: int = 1
) -> Path:
    """A target that answers every prompt by "<think>1</think>42</s>" and would go on with "xxx":
    each of its tokens depends on the last alone.

    Args:
        special: its marks are special tokens, which texts leave out.
        opened: its template writes the begin mark into the prompt.
        eos: the end token of its generation config.
    """
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken(mark, special=special) for mark in ("<think>", "</think>")])
    opening = "assistant\n<think>" if opened else "assistant\n"
    tokenizer.chat_template = REASONING_TEMPLATE.replace(
        "assistant\n{% endif", f"{opening}{{% endif"
    )
    tokenizer.save_pretrained(folder)
    said = tokenizer("\n<think>1</think>42</s>xx").input_ids
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 264}
    config = LlamaConfig(
        **SIZES | sizes, num_hidden_layers=2, bos_token_id=0, eos_token_id=eos, pad_token_id=1
    )
    model = LlamaForCausalLM(config)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    model.model.embed_tokens.weight.data = torch.eye(len(tokenizer), 264)
    model.lm_head.weight.data = torch.zeros(len(tokenizer), 264)
    for token, following in zip(said, said[1:], strict=False):
        model.lm_head.weight.data[following, token] = 1.0
    model.save_pretrained(folder)
    return folder


def write_random_head(folder: Path, *, seed: int = 7, **changes) -> Path:
    """A random head that fits write_target's model unless told other sizes."""
    torch.manual_seed(seed)
    head = build_head(HeadConfig(**SIZES | changes)).bfloat16()
    if head.d2t is not None:
        R = len(head.d2t)
        head.set_draft_tokens(torch.arange(R) * SIZES["vocab_size"] // R)
    write_head(folder, head)
    return folder


class Touch:
    """Unpickling it makes a file: the code that a hostile checkpoint would run."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)
