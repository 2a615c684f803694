import math

import pytest
import torch

from ratchet.algorithms import logprobs as module
from ratchet.algorithms.logprobs import token_logprobs


def softmax_by_hand(row, temperature):
    weights = [math.exp(x / temperature) for x in row]
    return [w / sum(weights) for w in weights]


@pytest.fixture(params=[7, 1 << 21], ids=["many-chunks", "one-chunk"])
def _chunked(request, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", request.param)


@pytest.mark.usefixtures("_chunked")
@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_logprobs_entropy_and_gradient_agree_with_plain_python(temperature):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 4, 5, dtype=torch.float64, generator=generator).mul_(3).requires_grad_()
    targets = torch.randint(5, (3, 4), generator=generator)
    upstream = torch.randn(3, 4, dtype=torch.float64, generator=generator)

    logprobs, entropy = token_logprobs(logits, targets, temperature)
    (logprobs * upstream).sum().backward()

    for i in range(3):
        for j in range(4):
            p = softmax_by_hand(logits[i, j].tolist(), temperature)
            t = int(targets[i, j])
            assert logprobs[i, j].item() == pytest.approx(math.log(p[t]), abs=1e-12)
            assert entropy[i, j].item() == pytest.approx(-sum(q * math.log(q) for q in p), abs=1e-12)
            for v in range(5):
                expected = upstream[i, j].item() * ((v == t) - p[v]) / temperature
                assert logits.grad[i, j, v].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.usefixtures("_chunked")
def test_gradient_agrees_with_finite_differences():
    logits = torch.randn(
        6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    ).requires_grad_()
    targets = torch.tensor([0, 1, 2, 3, 4, 0])
    assert torch.autograd.gradcheck(lambda x: token_logprobs(x, targets, 0.8)[0], logits)


@pytest.mark.usefixtures("_chunked")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_targets_that_share_a_distribution_equal_targets_with_a_copy_each(dtype):
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(3, 2, 5, generator=generator).mul_(3).to(dtype).requires_grad_()
    sources = torch.tensor([[0, 5, 0, 0], [2, 2, 5, 3]])  # 1 and 4 predict nothing
    targets = torch.tensor([[3, 1, 3, 0], [4, 2, 1, 0]])  # the same token from the same source, twice
    upstream = torch.randn(2, 4, generator=generator)

    logprobs, entropy = token_logprobs(logits, targets, 0.7, sources)
    (logprobs * upstream).sum().backward()
    copies = logits.detach().double().view(6, 5)[sources].requires_grad_()
    want, want_entropy = token_logprobs(copies, targets, 0.7)
    (want * upstream).sum().backward()
    want_grad = torch.zeros(6, 5, dtype=torch.float64)
    want_grad.index_add_(0, sources.view(-1), copies.grad.view(-1, 5))

    exact = dtype == torch.float64
    torch.testing.assert_close(logprobs.double(), want, rtol=0, atol=1e-12 if exact else 1e-5)
    torch.testing.assert_close(entropy.double(), want_entropy, rtol=0, atol=1e-12 if exact else 1e-5)
    # A bfloat16 gradient is rounded once, after all is summed.
    torch.testing.assert_close(
        logits.grad.double().view(6, 5), want_grad, rtol=1e-12 if exact else 2**-8, atol=1e-7
    )


@pytest.mark.usefixtures("_chunked")
def test_bfloat16_logits_give_float32_logprobs_and_a_bfloat16_gradient():
    logits = torch.randn(4, 6, generator=torch.Generator().manual_seed(3)).bfloat16().requires_grad_()
    exact = logits.detach().double().requires_grad_()
    targets = torch.tensor([0, 1, 2, 5])
    got, _ = token_logprobs(logits, targets)
    want, _ = token_logprobs(exact, targets)
    got.sum().backward()
    want.sum().backward()
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-6)
    assert logits.grad.dtype == torch.bfloat16
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=2**-8, atol=1e-9)


def test_huge_logits_do_not_overflow():
    logits = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    logprobs, entropy = token_logprobs(logits, torch.tensor([2]))
    logprobs.sum().backward()
    assert logprobs.item() == -1e4
    assert entropy.item() == 0.0
    assert logits.grad.tolist() == [[-1.0, 0.0, 1.0]]
