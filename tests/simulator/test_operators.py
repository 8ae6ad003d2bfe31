"""Operators give the CPU's numbers, and run, fall back or fail as the operator table of the installed torch says."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
import torch.nn.functional as F

from mps_trainer.check.table import Support, always_falls_back, operator_table
from mps_trainer.simulator import simulated_mps

# Each is a line of Python over the tensors of `inputs()`. Where the result depends on a, b, p, k or s, its gradient is
# compared too.
ELEMENTWISE = """
a.abs()              a.neg()              a.sign()             a.sgn()              a.ceil()
a.floor()            a.round()            a.round(decimals=1)  a.trunc()            a.frac()
a.exp()              a.exp2()             a.expm1()            p.log()              p.log2()
p.log10()            p.log1p()            p.sqrt()             p.rsqrt()            a.square()
a.sin()              a.cos()              a.tan()              a.sinh()             a.cosh()
a.tanh()             u.asin()             u.acos()             a.atan()             a.asinh()
(p+1).acosh()        (u/2).atanh()        a.erf()              a.erfc()             (u/2).erfinv()
a.sigmoid()          a.reciprocal()       a.isnan()            a.isinf()            a.isfinite()
p.lgamma()           p.digamma()          torch.special.i0(a)  torch.special.i1(a)  torch.special.i0e(a)
torch.special.ndtr(a)  torch.special.log_ndtr(a)  torch.special.ndtri(u)  torch.special.entr(p)  torch.special.erfcx(a)
torch.special.polygamma(1,p)  torch.special.bessel_j0(a)  torch.special.airy_ai(a)
torch.special.zeta(p.detach()+1,2.0)
torch.sinc(a)        a.logit(0.1)         a.nan_to_num()       a.deg2rad()          a.rad2deg()
a.signbit()          i.bitwise_not()      m.logical_not()      a.positive()         a.clamp(-0.5,0.5)
a.clamp_min(0)       a.clamp_max(b)       a.pow(2)             p.pow(b)             torch.pow(2,a)
a.add(b,alpha=2)     a.sub(b)             torch.rsub(a,1)      a.mul(b)             a.div(p)
a.div(p,rounding_mode='floor')  a.div(p,rounding_mode='trunc')  a.remainder(p)  a.fmod(p)
a.detach().floor_divide(p.detach())
torch.true_divide(i,2)  a.atan2(b)        torch.hypot(a,b)     torch.logaddexp(a,b)  torch.logaddexp2(a,b)
a.maximum(b)         a.minimum(b)         a.fmax(b)            a.fmin(b)            a.copysign(b)
a.nextafter(b)       a.xlogy(p)           torch.special.xlog1py(a,p)  a.lerp(b,0.3)  a.lerp(b,p)
torch.addcmul(a,b,p,value=2)  torch.addcdiv(a,b,p)  a.detach().heaviside(b.detach())
torch.ldexp(a,i)     torch.frexp(a)[0]
a.eq(b)              a.ne(b)              a.lt(b)              a.le(0)              a.gt(b)
a.ge(0)              a.isclose(b)         m.logical_and(a>0)   m.logical_or(a>0)    m.logical_xor(a>0)
i.bitwise_and(3)     i.bitwise_or(3)      i.bitwise_xor(i+1)   i<<1                 i>>1
torch.gcd(i,i+2)     torch.lcm(i,i+2)     torch.where(m,a,b)   a.masked_fill(m,2.0)  torch.complex(a,b).abs()
torch.view_as_real(torch.polar(p,a))  torch.complex(a,b).angle()  a.to(torch.float16)  a.to(torch.int32)  a.bfloat16()
"""
REDUCTIONS = """
a.sum()              a.sum(1)             a.sum((0,1),keepdim=True)  a.mean()       a.mean(0)
a.prod()             a.prod(1)            a.amax(1)            a.amin(0)            a.max()
a.min()              a.max(1)             a.min(0)             a.argmax(1)          a.argmin()
a.std()              a.std(1,unbiased=False)  a.var(0)         torch.var_mean(a,1)  torch.std_mean(a,0)
a.norm()             a.norm(1,dim=1)      torch.linalg.vector_norm(a,3,1)  torch.linalg.norm(s)  a.logsumexp(1)
a.cumsum(1)          a.cumprod(0)         a.cummax(1)          a.cummin(0)          a.logcumsumexp(1)
a.median()           a.median(1)          a.nanmedian()        a.quantile(0.5,dim=1)  a.mode(1)
a.nansum()           a.nanmean()          m.any()              m.all(1)             m.count_nonzero()
a.sort(1)            a.argsort(0)         a.topk(2)            a.kthvalue(2)        i.unique()
i.flatten().bincount()  a.histc(4,-1,1)   a.aminmax(dim=1)     a.diff()             torch.cdist(a,b)
torch.trapezoid(a)   a.renorm(2,0,1.0)    torch.pdist(a)       i.sum()              m.sum()
"""
SHAPING = """
a.t()                a.transpose(0,1).contiguous()  a.permute(1,0).clone()  a.reshape(-1)  a.view(4,3)
a.flatten()          a.unsqueeze(1)       a[:,None].squeeze(1)  a.expand(2,3,4)     a.repeat(2,1)
a.tile(2)            a.repeat_interleave(2,1)  a.flip(0)       a.roll(1,1)          torch.rot90(a)
torch.cat([a,b],1)   torch.stack([a,b])   torch.hstack([a,b])  torch.vstack([a,b])  a.chunk(2,1)
a.split([1,3],1)     a.unbind(1)          a.select(1,2)        a.narrow(1,1,2)      a[1:,::2]
a[:,r]               a[m]                 a[r,r]               a.index_select(1,r)  a.gather(1,i)
a.scatter(1,i,b)     a.scatter_add(1,i,b)  a.scatter_reduce(1,i,b,'amax')  a.index_add(1,r,s)  a.index_fill(1,r,2.0)
a.index_copy(1,r,s)  a.masked_select(m)   a.masked_scatter(m,b)  a.take_along_dim(i,1)  a.take(r)
a.index_put((r,r),b[0,:3])  a.put(r,b[0,:3])  a.clone().index_put_((r,),b,accumulate=True)  a.tril()  a.triu(1)
a.diag()             a[0].diag()          a.diagonal()         a.diag_embed()       torch.block_diag(a,b)
a.unfold(1,2,1)      torch.meshgrid(a[0],b[0],indexing='ij')  torch.cartesian_prod(a[0],b[0])  a.nonzero()
torch.tril_indices(3,3,device=a.device)  torch.arange(5,device=a.device)  torch.linspace(0,1,5,device=a.device)
torch.eye(3,device=a.device)  torch.full((2,2),3.0,device=a.device)  torch.zeros_like(a)  torch.ones_like(a)
torch.logspace(0,1,5,device=a.device)  torch.bucketize(a,b[0].sort()[0].detach())  torch.searchsorted(r,i)
"""
PRODUCTS = """
a@b.t()              torch.mm(a,b.t())    a.mv(b[0])           a[0].dot(b[0])       torch.outer(a[0],b[0])
torch.bmm(a[None],b.t()[None])  torch.addmm(s,a,b.t())  torch.addmv(a[:,0],a,b[0])  torch.addr(a,a[:,0],b[0])
torch.baddbmm(s[None],a[None],b.t()[None])  torch.einsum('ij,kj->ik',a,b)  torch.tensordot(a,b,2)  torch.kron(a,b)
torch.linalg.cross(s,s.t())  torch.linalg.inv(s)  torch.linalg.det(s)  torch.linalg.solve(s,a)  s.logdet()
torch.linalg.cholesky(s)  torch.linalg.solve_triangular(s,a,upper=True)  torch.linalg.lu_factor(s)[0]
torch.linalg.qr(s)   torch.linalg.eigh(s)[0]  torch.linalg.eigvals(s).abs()  torch.linalg.svdvals(s)
torch.linalg.matrix_exp(s)  torch.linalg.matrix_power(s,3)  torch.linalg.pinv(s)  torch.trace(s)
torch.fft.fft(a).abs()  torch.fft.rfft(a).real  torch.fft.irfft(torch.fft.rfft(a))  torch.fft.fft2(a).abs()
"""
NETWORKS = """
F.relu(a)            F.gelu(a)            F.gelu(a,approximate='tanh')  F.silu(a)   F.mish(a)
F.elu(a)             F.selu(a)            F.celu(a)            F.leaky_relu(a)      F.softplus(a)
F.hardtanh(a)        F.hardswish(a)       F.hardsigmoid(a)     F.softsign(a)        F.hardshrink(a)
F.softshrink(a)      F.tanhshrink(a)      F.threshold(a,0,1)   F.logsigmoid(a)      F.glu(a)
F.relu6(a)           F.prelu(a,b[0,:1])   F.softmax(a,1)       F.log_softmax(a,1)   F.softmin(a,0)
F.layer_norm(a,(4,),b[0],b[1])  F.group_norm(k,3)  F.batch_norm(k,None,None,training=True)  F.rms_norm(a,(4,),b[0])
F.instance_norm(k)   F.local_response_norm(k,2)  F.normalize(a)  F.linear(a,b)      F.bilinear(a,b,k[0,:,:4,:4])
F.conv1d(k[:,0],k[:,:,0,:3].repeat(1,2,1))  F.conv2d(k,k[:,:,:2,:2])  F.conv_transpose2d(k,k[:,:,:2,:2].transpose(0,1))
F.conv3d(k[None],k[None,:,:2,:2,:2])  F.max_pool2d(k,2)  F.max_pool2d(k,2,return_indices=True)  F.avg_pool2d(k,2)
F.max_pool1d(k[0],2)  F.avg_pool1d(k[0],2)  F.lp_pool2d(k,2,2)  F.adaptive_avg_pool2d(k,3)  F.adaptive_max_pool2d(k,2)
F.adaptive_avg_pool1d(k[0],2)  F.max_pool3d(k,2)  F.avg_pool3d(k,2)  F.adaptive_avg_pool3d(k,2)  F.pad(k,(1,1,0,2))
F.pad(k[0],(1,1),mode='circular')  F.pad(k,(1,1,1,1),mode='reflect')  F.pad(k,(1,1,1,1),mode='replicate')
F.interpolate(k,scale_factor=2)  F.interpolate(k,size=(4,5),mode='bilinear')  F.interpolate(k,size=4,mode='area')
F.interpolate(k,size=(4,5),mode='bicubic')  F.interpolate(k,size=(4,5),mode='bilinear',antialias=True)
F.grid_sample(k,k[:,:2].permute(0,2,3,1).tanh(),align_corners=False)
F.pixel_shuffle(k[:,:,None,:].repeat(1,4,1,1,1),1)
F.unfold(k,2)        F.fold(F.unfold(k,2),(6,6),2)  F.embedding(i,b.t())  F.embedding_bag(i,b.t())  F.one_hot(i,5)
F.cross_entropy(a,r)  F.nll_loss(F.log_softmax(a,1),r)  F.mse_loss(a,b)  F.l1_loss(a,b)  F.smooth_l1_loss(a,b)
F.huber_loss(a,b)    F.kl_div(F.log_softmax(a,1),F.softmax(b,1))  F.binary_cross_entropy(u,m.float())
F.poisson_nll_loss(a,p)
F.binary_cross_entropy_with_logits(a,m.float())  F.hinge_embedding_loss(a,m*2-1)  F.soft_margin_loss(a,m*2.0-1)
F.multi_margin_loss(a,r)  F.multilabel_margin_loss(a,i)  F.cosine_similarity(a,b)  F.pairwise_distance(a,b)
F.gaussian_nll_loss(a,b,p)  F.triplet_margin_loss(a,b,p)  F.channel_shuffle(k,3)
F.scaled_dot_product_attention(a[None],b[None],p[None])
"""


def split(text: str) -> list[str]:
    return [case for line in text.strip().splitlines() for case in re.split(r"\s{2,}", line.strip())]


CASES = [case for text in (ELEMENTWISE, REDUCTIONS, SHAPING, PRODUCTS, NETWORKS) for case in split(text)]

# The CPU takes another way here than hardware, which has no one kernel for it: the sums are rounded in another order.
ROUNDED = {
    "F.scaled_dot_product_attention(a[None],b[None],p[None])",
    "torch.tensordot(a,b,2)",
    "torch.linalg.solve(s,a)",
    "torch.linalg.det(s)",
    "s.logdet()",
    "a.renorm(2,0,1.0)",
}


# Composite operators that choose by device in their midst: what a build for a Mac chooses has to be put in its place.
CHOSEN_BY_DEVICE = {
    "aten::conj_physical_",
    "aten::convolution_backward_overrideable",
    "aten::convolution_overrideable",
    "aten::copy_",
    "aten::kaiser_window",
    "aten::kaiser_window.beta",
    "aten::kaiser_window.periodic",
    "aten::ldexp.Tensor",
    "aten::ldexp.out",
    "aten::ldexp_",
    "aten::lstm.input",
    "aten::scaled_dot_product_attention",
}


def inputs(device: str) -> dict[str, torch.Tensor]:
    """a, b: any numbers; p: positive; u: from 0 to 1; k: images; s: a positive definite matrix; i: indices shaped so;
    r: three indices; m: a mask."""
    generator = torch.Generator().manual_seed(0)

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator)

    root = draw(3, 3)
    floats = {
        "a": draw(3, 4),
        "b": draw(3, 4),
        "p": draw(3, 4).abs() + 0.1,
        "u": torch.rand(3, 4, generator=generator),
        "k": draw(3, 3, 6, 6),
        "s": root @ root.t() + torch.eye(3),
    }
    others = {
        "i": torch.randint(0, 3, (3, 4), generator=generator),
        "r": torch.tensor([2, 0, 1]),
        "m": torch.rand(3, 4, generator=generator) > 0.5,
    }
    return {
        **{name: tensor.to(device).requires_grad_() for name, tensor in floats.items()},
        **{name: tensor.to(device) for name, tensor in others.items()},
    }


def results_and_gradients(case: str, device: str) -> list[torch.Tensor]:
    given = inputs(device)
    found = eval(case, {"torch": torch, "F": F, **given})
    results = [found] if isinstance(found, torch.Tensor) else list(found)
    total = sum((result * result).sum() for result in results if result.requires_grad)
    if isinstance(total, torch.Tensor):
        total.backward()
    gradients = [tensor.grad for tensor in given.values() if tensor.grad is not None]
    return [*(result.detach() for result in results), *gradients]


def compare(case: str, on_cpu: list[torch.Tensor], on_mps: list[torch.Tensor]) -> None:
    tolerance = 1e-5 if case in ROUNDED else 0
    assert len(on_cpu) == len(on_mps)
    assert {tensor.device.type for tensor in on_mps} == {"mps"}
    for expected, found in zip(on_cpu, on_mps, strict=True):
        torch.testing.assert_close(found.cpu(), expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("case", CASES)
def test_operator_does_as_the_table_says_with_the_numbers_of_the_cpu(built, case):
    table = operator_table()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        on_cpu = results_and_gradients(case, "cpu")
        with simulated_mps(fallback=False) as device:
            try:
                on_mps = results_and_gradients(case, "mps")
            except NotImplementedError as error:
                name = str(error).split("'")[1]
                assert table.support(name) is Support.FAILS
            else:
                compare(case, on_cpu, on_mps)
            for operator in device.report().operators:
                if operator.fell_back:
                    assert operator.name in always_falls_back(torch.__version__)
                else:
                    assert operator.name in table.native | CHOSEN_BY_DEVICE
        with simulated_mps(fallback=True):
            compare(case, on_cpu, results_and_gradients(case, "mps"))


def test_there_are_enough_cases():
    assert len(set(CASES)) == len(CASES) >= 300


def has_kernel(name: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "MPS")


def test_every_operator_of_the_table_has_the_kernel_that_it_names(mps):
    table = operator_table()
    assert len(table.native) > 500
    assert [name for name in sorted(table.native) if not has_kernel(name)] == []


def test_no_other_operator_has_a_kernel(mps):
    table = operator_table()
    registered_by_torch_itself = {"aten::linalg_lu_solve.out"}
    others = {name for name in table.cpu | table.composite if has_kernel(name)}
    assert (
        others - CHOSEN_BY_DEVICE - registered_by_torch_itself == always_falls_back(torch.__version__) - table.native
    )
