"""What only a real GPU can show; none has run this yet. `pytest tests/test_gpu.py`, seconds."""

import pytest
import torch
from answers import drafter_of, run
from tiny import FAMILIES, prompt_tokens, random_model
from torch.nn.functional import rms_norm, scaled_dot_product_attention

from eagle_fsd.decoding.masks import additive_mask
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import RootDrafter
from eagle_fsd.engine.attention import RotaryAttention, folded_attention
from eagle_fsd.engine.folded import Folded
from eagle_fsd.engine.lean import RmsNorm
from eagle_fsd.models.generate import Request, complete

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("B", "N"), [(1, 60), (1, 1), (3, 1)])
def test_folded_attention_is_attention(dtype, B, N):
    torch.manual_seed(0)
    query = torch.randn(B, 8, N, 64, device="cuda", dtype=dtype)
    key, value = (torch.randn(B, 2, 77, 64, device="cuda", dtype=dtype) for _ in range(2))
    seen_NK = torch.rand(N, 77, device="cuda") < 0.7
    seen_NK[:, 0] = True
    ours, _ = folded_attention(None, query, key, value, additive_mask(seen_NK, dtype, 4))
    whole = [part.repeat_interleave(4, dim=1).double() for part in (key, value)]
    want = scaled_dot_product_attention(query.double(), *whole, attn_mask=seen_NK)
    close = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(ours.double(), want.transpose(1, 2), atol=close, rtol=close)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_norm_is_torch_s(dtype):
    x_ND, weight_D = torch.randn(60, 4096, device="cuda"), torch.rand(4096, device="cuda")
    want_ND = rms_norm(x_ND.to(dtype).double(), [4096], weight_D.to(dtype).double(), 1e-5)
    ours_ND = RmsNorm(weight_D.to(dtype), 1e-5)(x_ND.to(dtype))
    torch.testing.assert_close(ours_ND.double(), want_ND, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral_sliding", "gemma3"])
def test_exact_answers_are_plain_s_in_float32(family):
    """And attention is really folded: what cannot be exchanged is left as it was, slower."""
    target = Target(random_model(FAMILIES[family](), seed=0).cuda(), engine=Folded())
    assert target.masks.keywords["repeats"] == 2
    lean = {isinstance(layer.self_attn.forward, RotaryAttention) for layer in target._body.layers}
    assert lean == {family != "gemma3"}
    prompt = prompt_tokens(41)
    want = run(target, RootDrafter(), prompt).tokens
    for name in ("ngram", "eagle:7x3x4", "hybrid:7x3x4", "language_model:7x3x4"):
        assert run(target, drafter_of(name, target), prompt).tokens == want, name
    pair = complete(target, [Request(prompt, 24), Request(prompt[:7], 24)], batch_size=2)
    assert want in [request.tokens for request in pair]
    assert not torch.backends.cuda.cudnn_sdp_enabled()
