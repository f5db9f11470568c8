#include "ddaebm/methods/ddgan.h"

#include <algorithm>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include "ddaebm/diffusion/sampler.h"
#include "ddaebm/error.h"

namespace ddaebm {
namespace {

constexpr size_t kDiscriminator = 0;
constexpr size_t kGenerator = 1;
constexpr int64_t kPairsOfX1 = 4;

// Draws and their mirror images, the same in every program.
torch::Tensor fixed_noise(const std::vector<int64_t>& event, const torch::TensorOptions& options) {
  std::vector<int64_t> shape = {kPairsOfX1};
  shape.insert(shape.end(), event.begin(), event.end());
  const auto half =
      at::randn(shape, at::detail::createCPUGenerator(1), torch::TensorOptions(torch::kDouble));
  return torch::cat({half, -half}).to(options);
}

}  // namespace

Ddgan::Ddgan(const Schedule& schedule, const DdganConfig& config,
             std::shared_ptr<EnergyNet> discriminator, std::shared_ptr<GeneratorNet> generator,
             int64_t latent, std::vector<int64_t> event, const torch::TensorOptions& options)
    : process_(schedule, options),
      config_(config),
      discriminator_(std::move(discriminator)),
      generator_(std::move(generator)),
      latent_(latent),
      event_(std::move(event)),
      options_(options),
      x1_noise_(fixed_noise(event_, options)),
      module_(std::make_shared<torch::nn::Module>("ddgan")) {
  module_->register_module("discriminator", discriminator_);
  module_->register_module("generator", generator_);
  module_->to(options.device(), c10::typeMetaToScalarType(options.dtype()));
}

const std::vector<Player>& Ddgan::players() const {
  static const std::vector<Player> players = {{"discriminator", {"discriminator"}},
                                              {"generator", {"generator"}}};
  return players;
}

const std::vector<std::string>& Ddgan::loss_names() const {
  static const std::vector<std::string> names = {"discriminator", "generator", "penalty", "real",
                                                 "fake"};
  return names;
}

Ddgan::Draws Ddgan::draw(const torch::Tensor& x0, Random& random) const {
  const int64_t n = x0.size(0);
  const auto like_x = [&] { return random.normal(x0.sizes(), options_); };
  Draws draws;
  draws.t = random.integers(process_.steps(), {n});
  draws.eps_t = like_x();
  draws.eps_next = like_x();
  draws.z = random.normal({n, latent_}, options_);
  draws.eps_fake = like_x();
  return draws;
}

Ddgan::Draws Ddgan::Draws::slice(int64_t first, int64_t last) const {
  const auto cut = [&](const torch::Tensor& all) { return all.slice(0, first, last); };
  return {cut(t), cut(eps_t), cut(eps_next), cut(z), cut(eps_fake)};
}

Ddgan::Pairs Ddgan::pairs(const torch::Tensor& x0, const Draws& draws) {
  const Steps at = process_.at(draws.t, x0.dim());
  const auto x_t = at.diffuse(x0, draws.eps_t);
  const auto x_next = at.advance(x_t, draws.eps_next);
  const auto guess = generator_->forward(x_next, draws.z, draws.t);
  const auto fake = at.posterior_sample(guess, x_next, draws.eps_fake, /*noise_at_t0=*/false);
  return {torch::cat({x_t, x_next}, 1), torch::cat({fake, x_next}, 1)};
}

Ddgan::Judgement Ddgan::discriminator_loss(const torch::Tensor& x0, const Draws& draws) {
  Pairs both;
  {
    const torch::NoGradGuard no_grad;
    both = pairs(x0, draws);
  }
  Judgement out;
  out.penalty = torch::zeros({}, options_);
  if (config_.gamma > 0) {
    auto [value, gradient] = discriminator_->value_and_gradient(both.real, draws.t);
    out.real = value;
    // In x_t alone, the first half of the pair.
    const auto of_x_t = gradient.narrow(1, 0, x0.size(1));
    out.penalty = 0.5 * config_.gamma * sum_event(of_x_t.square()).mean();
  } else {
    out.real = discriminator_->forward(both.real, draws.t);
  }
  out.fake = discriminator_->forward(both.fake, draws.t);
  out.loss = at::softplus(-out.real).mean() + at::softplus(out.fake).mean() + out.penalty;
  return out;
}

torch::Tensor Ddgan::generator_loss(const torch::Tensor& x0, const Draws& draws) {
  return at::softplus(-discriminator_->forward(pairs(x0, draws).fake, draws.t)).mean();
}

torch::Tensor Ddgan::step(const torch::Tensor& x0, const torch::Tensor& /*progress*/,
                          Random& random, const Update& update) {
  // Each player sees draws of its own, as in the authors' code.
  const Draws of_discriminator = draw(x0, random);
  const Draws of_generator = draw(x0, random);
  const int64_t n = x0.size(0);
  const int64_t at_once = micro_batch == 0 ? n : std::min(micro_batch, n);
  auto total = torch::zeros({static_cast<int64_t>(loss_names().size())}, options_);
  const auto for_parts = [&](const Draws& draws, const auto& body) {
    for (int64_t first = 0; first < n; first += at_once) {
      const int64_t last = std::min(first + at_once, n);
      const auto share = static_cast<double>(last - first) / static_cast<double>(n);
      total = total +
              share * body(x0.slice(0, first, last), draws.slice(first, last), share, last == n);
    }
  };
  const auto zero = torch::zeros({}, options_);
  for_parts(of_discriminator, [&](const auto& x, const Draws& part, double share, bool last) {
    const Judgement it = discriminator_loss(x, part);
    update(kDiscriminator, it.loss * share, last);
    return torch::stack({it.loss, zero, it.penalty, it.real.mean(), it.fake.mean()}).detach();
  });
  for_parts(of_generator, [&](const auto& x, const Draws& part, double share, bool last) {
    const auto loss = generator_loss(x, part);
    update(kGenerator, loss * share, last);
    return torch::stack({zero, loss, zero, zero, zero}).detach();
  });
  return total;
}

torch::Tensor Ddgan::log_density(const torch::Tensor& x) {
  const auto t = torch::zeros({x.size(0)}, options_.dtype(torch::kLong));
  const Steps at = process_.at(t, x.dim());
  auto total = torch::zeros({x.size(0)}, options_);
  for (int64_t i = 0; i < x1_noise_.size(0); ++i) {
    const auto x1 = at.advance(x, x1_noise_[i].expand_as(x));
    total = total + discriminator_->forward(torch::cat({x, x1}, 1), t);
  }
  return total / x1_noise_.size(0);
}

torch::Tensor Ddgan::sample(int64_t n, Random& random) {
  const torch::NoGradGuard no_grad;
  std::vector<int64_t> shape = {n};
  shape.insert(shape.end(), event_.begin(), event_.end());
  const Denoiser denoise = [&](const torch::Tensor& x_next, const torch::Tensor& t) {
    return generator_->forward(x_next, random.normal({n, latent_}, options_), t);
  };
  return ddaebm::sample_path(process_, denoise, random.normal(shape, options_),
                             /*noise_at_t0=*/false, random)
      .back();
}

namespace {

// The body of DDGAN's discriminator is what became the DDAEBM paper's encoder: with a latent of
// one, the head of its mean is D. The other head has no part in it.
struct ImageDiscriminator : EnergyNet {
  explicit ImageDiscriminator(std::shared_ptr<EncoderNet> body)
      : body_(register_module("body", std::move(body))) {}
  torch::Tensor forward(const torch::Tensor& pair, const torch::Tensor& t) override {
    const auto halves = pair.chunk(2, 1);
    return body_->forward(halves[0], halves[1], t).mean.squeeze(1);
  }
  std::shared_ptr<EncoderNet> body_;
};

struct DdganSettings : MethodSettings {
  ScheduleConfig diffusion;
  MlpConfig net;
  ImageNetConfig image_net;
  DdganConfig game;

  void visit(Fields& f) override {
    f.section("diffusion", diffusion);
    f.section("net", net);
    f.section("image_net", image_net);
    f.section("game", game);
  }
  std::unique_ptr<Method> build(const std::vector<int64_t>& event,
                                const torch::TensorOptions& options) const override {
    if (event.size() == 1) {
      const auto pair_networks = make_vector_networks(2 * event[0], diffusion.steps, net);
      const auto networks = make_vector_networks(event[0], diffusion.steps, net);
      return std::make_unique<Ddgan>(Schedule(diffusion), game, pair_networks.energy,
                                     networks.generator, net.latent, event, options);
    }
    const ImageShape image = image_shape(event);
    at::globalContext().setAllowTF32CuDNN(image_net.precision != Precision::float32);
    at::globalContext().setAllowTF32CuBLAS(image_net.precision != Precision::float32);
    ImageNetConfig one_output = image_net;
    one_output.latent = 1;
    const auto discriminator = std::make_shared<ImageDiscriminator>(
        make_image_encoder(image, diffusion.steps, one_output));
    const auto networks = make_image_networks(image, diffusion.steps, image_net);
    return std::make_unique<Ddgan>(Schedule(diffusion), game, discriminator, networks.generator,
                                   image_net.latent, event, options);
  }
};

}  // namespace

std::unique_ptr<MethodSettings> ddgan_settings() { return std::make_unique<DdganSettings>(); }

}  // namespace ddaebm
