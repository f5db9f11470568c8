// The Python module: a trained run as an object that takes and gives NumPy arrays.

#include <memory>
#include <mutex>
#include <optional>

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "ddaebm/error.h"
#include "ddaebm/train/model.h"
#include "ddaebm/train/ood.h"

namespace py = pybind11;

namespace {

using Doubles = py::array_t<double, py::array::c_style | py::array::forcecast>;

template <class T>
py::array_t<T> to_numpy(const torch::Tensor& tensor) {
  const auto values = tensor.contiguous();
  py::array_t<T> array(values.sizes().vec());
  std::copy_n(values.data_ptr<T>(), values.numel(), array.mutable_data());
  return array;
}

class Run {
 public:
  Run(const std::string& folder, const std::string& device)
      : model_(ddaebm::Model::load(folder, ddaebm::parse_device(device))) {
    threshold_ = ddaebm::read_threshold(folder);
  }

  const std::vector<int64_t>& event() const { return model_.event(); }
  std::optional<double> threshold() const {
    return threshold_ ? std::optional(threshold_->score) : std::nullopt;
  }

  py::array_t<double> score(const Doubles& x) {
    const auto rows = view_of(x);
    torch::Tensor scores;
    {
      const Alone alone(mutex_);
      scores = model_.log_density(rows);
    }
    return to_numpy<double>(scores);
  }

  py::array_t<bool> is_in(const Doubles& x) {
    if (!threshold_) {
      ddaebm::fail("this run has no threshold; keep one with `ddaebm ood --false-alarm`");
    }
    const auto rows = view_of(x);
    ddaebm::Answers found;
    {
      const Alone alone(mutex_);
      found = ddaebm::answer(model_, rows, *threshold_);
    }
    py::array_t<bool> in(static_cast<py::ssize_t>(found.in.size()));
    std::copy(found.in.begin(), found.in.end(), in.mutable_data());
    return in;
  }

  py::array_t<float> sample(int64_t n, uint64_t seed) {
    if (n < 1) ddaebm::fail("sample({}): expected one at least", n);
    torch::Tensor samples;
    {
      const Alone alone(mutex_);
      samples = model_.sample(n, seed);
    }
    return to_numpy<float>(samples);
  }

 private:
  // Other threads of Python may run meanwhile, but not with this model.
  struct Alone {
    explicit Alone(std::mutex& mutex) : lock(mutex) {}
    py::gil_scoped_release others_may_run;
    std::lock_guard<std::mutex> lock;
  };

  // The model only reads it.
  static torch::Tensor view_of(const Doubles& x) {
    const std::vector<int64_t> shape(x.shape(), x.shape() + x.ndim());
    return torch::from_blob(const_cast<double*>(x.data()), shape, torch::kDouble);
  }

  ddaebm::Model model_;
  std::optional<ddaebm::Threshold> threshold_;
  std::mutex mutex_;
};

}  // namespace

PYBIND11_MODULE(_ddaebm, m) {
  m.attr("__version__") = DDAEBM_VERSION;
  // What a user can mend, in a line.
  py::register_exception<ddaebm::Error>(m, "Error", PyExc_ValueError);
  py::class_<Run>(m, "Run", "A trained run: the averaged weights of its newest checkpoint.")
      .def_property_readonly("event", &Run::event, "Shape of one datum, such as [2].")
      .def_property_readonly("threshold", &Run::threshold,
                             "Of scores, where `ddaebm ood --false-alarm` has kept one; else None. "
                             "is_in answers, by this or by the profile.")
      .def("score", &Run::score, py::arg("x"),
           "Log-density of x [N, ...] in the data's own units (images in -1 to 1): float64 [N]; up "
           "to "
           "a constant unless the energy is calibrated or a flow. Higher means more likely.")
      .def(
          "is_in", &Run::is_in, py::arg("x"),
          "Whether each of x [N, ...] is like the training data, as `ddaebm score` answers: by the "
          "profile where `ddaebm ood` was given a --reference, else by the threshold: bool [N].")
      .def("sample", &Run::sample, py::arg("n"), py::arg("seed") = 0,
           "n samples, float32 [n, ...]; the same seed draws the same.");
  m.def(
      "load",
      [](const std::string& run, const std::string& device) {
        return std::make_unique<Run>(run, device);
      },
      py::arg("run"), py::arg("device") = "cpu", "Opens a run folder.");
}
