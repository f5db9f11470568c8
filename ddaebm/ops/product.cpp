#include <algorithm>

#include <dlfcn.h>

#include <ATen/Parallel.h>

#include "ddaebm/ops/dense_kernels.h"

namespace ddaebm::ops::kernels {
namespace {

using torch::Tensor;

// oneDNN's product of float32 matrices, row-major, 0 where it succeeds. Debian's LibTorch brings
// the library along; by it, products of a few hundred rows take a tenth less time than by OpenBLAS,
// and it knows the instructions of processors that are younger than itself. PyTorch's own LibTorch
// hides it, and has MKL.
using Sgemm = int (*)(char, char, int64_t, int64_t, int64_t, float, const float*, int64_t,
                      const float*, int64_t, float, float*, int64_t);
Sgemm onednn() {
  static const auto found = reinterpret_cast<Sgemm>(dlsym(RTLD_DEFAULT, "dnnl_sgemm"));
  return found;
}

// How a matrix lies in memory: by rows ('N') or by columns ('T'), which begin `step` numbers apart.
struct Layout {
  char kind = 0;  // neither
  int64_t step = 0;
};
Layout layout(const Tensor& m) {
  if (m.stride(1) == 1 && m.stride(0) >= m.size(1)) return {'N', m.stride(0)};
  if (m.stride(0) == 1 && m.stride(1) >= m.size(0)) return {'T', m.stride(1)};
  return {};
}

bool by_onednn(const Tensor& a, const Tensor& b, Tensor& out) {
  const Layout of_a = layout(a);
  const Layout of_b = layout(b);
  if (onednn() == nullptr || a.scalar_type() != torch::kFloat || b.scalar_type() != torch::kFloat ||
      a.numel() == 0 || b.numel() == 0 || of_a.kind == 0 || of_b.kind == 0) {
    return false;
  }
  return onednn()(of_a.kind, of_b.kind, a.size(0), b.size(1), a.size(1), 1.0F, a.data_ptr<float>(),
                  of_a.step, b.data_ptr<float>(), of_b.step, 0.0F, out.data_ptr<float>(),
                  b.size(1)) == 0;
}

}  // namespace

Tensor product(const Tensor& a, const Tensor& b) {
  if (!a.is_cpu()) return a.mm(b);
  TORCH_CHECK(a.size(1) == b.size(0), "a product of [", a.sizes(), "] and [", b.sizes(), "]");
  auto out = torch::empty({a.size(0), b.size(1)}, a.options());
  if (by_onednn(a, b, out)) return out;
  constexpr int64_t kWorthSharing = 500000;  // multiplications a thread
  const int64_t a_row = a.size(1) * b.size(1);
  const int64_t grain = kWorthSharing / std::max<int64_t>(a_row, 1) + 1;
  at::parallel_for(0, a.size(0), grain, [&](int64_t first, int64_t last) {
    const at::AutoDispatchBelowADInplaceOrView plain;  // a thread has a state of its own
    auto rows = out.slice(0, first, last);
    at::mm_out(rows, a.slice(0, first, last), b);
  });
  return out;
}

}  // namespace ddaebm::ops::kernels
