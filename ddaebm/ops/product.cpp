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

// A matrix, or each of a batch, in memory: by rows ('N') or by columns ('T'), which begin `step`
// numbers apart.
struct Layout {
  char kind = 0;  // neither
  int64_t step = 0;
};
Layout layout(const Tensor& m) {
  if (m.stride(-1) == 1 && m.stride(-2) >= m.size(-1)) return {'N', m.stride(-2)};
  if (m.stride(-2) == 1 && m.stride(-1) >= m.size(-2)) return {'T', m.stride(-1)};
  return {};
}

// Products of oneDNN's, where it is there and takes these.
class ByOnednn {
 public:
  ByOnednn(const Tensor& a, const Tensor& b, const Tensor& out)
      : a_(a), b_(b), out_(out), of_a_(layout(a)), of_b_(layout(b)), of_out_(layout(out)) {}

  bool possible() const {
    const auto is_float = [](const Tensor& m) { return m.scalar_type() == torch::kFloat; };
    return onednn() != nullptr && is_float(a_) && is_float(b_) && is_float(out_) &&
           a_.numel() > 0 && b_.numel() > 0 && of_a_.kind != 0 && of_b_.kind != 0 &&
           of_out_.kind == 'N';
  }
  // The i-th of a batch, added to `beta` times what is there.
  bool make(int64_t i, float beta) const {
    const auto of = [i](const Tensor& m) {
      return m.data_ptr<float>() + (m.dim() == 3 ? i * m.stride(0) : 0);
    };
    return onednn()(of_a_.kind, of_b_.kind, a_.size(-2), b_.size(-1), a_.size(-1), 1.0F, of(a_),
                    of_a_.step, of(b_), of_b_.step, beta, of(out_), of_out_.step) == 0;
  }

 private:
  const Tensor &a_, &b_, &out_;
  Layout of_a_, of_b_, of_out_;
};

}  // namespace

Tensor product(const Tensor& a, const Tensor& b) {
  if (!a.is_cpu()) return a.mm(b);
  TORCH_CHECK(a.size(1) == b.size(0), "a product of [", a.sizes(), "] and [", b.sizes(), "]");
  auto out = torch::empty({a.size(0), b.size(1)}, a.options());
  const ByOnednn by_onednn(a, b, out);
  if (by_onednn.possible() && by_onednn.make(0, 0.0F)) return out;
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

void products(const Tensor& out, const Tensor& a, const Tensor& b, Into into) {
  const ByOnednn by_onednn(a, b, out);
  if (a.is_cpu() && by_onednn.possible()) {
    at::parallel_for(0, a.size(0), 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const bool made = by_onednn.make(i, into == Into::sum ? 1.0F : 0.0F);
        TORCH_CHECK(made, "oneDNN has not made a product of [", a.sizes(), "] and [", b.sizes(),
                    "]");
      }
    });
  } else if (into == Into::sum) {
    out.baddbmm_(a, b);
  } else {
    Tensor to = out;
    at::bmm_out(to, a, b);
  }
}

Tensor products(const Tensor& a, const Tensor& b) {
  auto out = torch::empty({a.size(0), a.size(1), b.size(2)}, a.options());
  products(out, a, b);
  return out;
}

}  // namespace ddaebm::ops::kernels
