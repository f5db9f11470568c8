#pragma once

#include <ATen/Context.h>

namespace ddaebm {

// Whether float32 convolutions and products may be rounded to TF32, for its lifetime.
class AllowTf32 {
 public:
  explicit AllowTf32(bool allow) { set(allow, allow); }
  ~AllowTf32() { set(convolutions_, products_); }
  AllowTf32(const AllowTf32&) = delete;
  AllowTf32& operator=(const AllowTf32&) = delete;

 private:
  static void set(bool convolutions, bool products) {
    at::globalContext().setAllowTF32CuDNN(convolutions);
    at::globalContext().setAllowTF32CuBLAS(products);
  }
  bool convolutions_ = at::globalContext().allowTF32CuDNN();
  bool products_ = at::globalContext().allowTF32CuBLAS();
};

}  // namespace ddaebm
