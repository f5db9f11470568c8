#include "ddaebm/io/report.h"

#include <map>
#include <vector>

#include <nlohmann/json.hpp>

#include "ddaebm/error.h"
#include "ddaebm/io/file.h"
#include "ddaebm/io/markup.h"
#include "ddaebm/io/metrics_lines.h"
#include "ddaebm/io/plot.h"

namespace ddaebm {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

// What each number of an evaluation means.
const std::vector<std::pair<std::string, std::string>>& meanings() {
  static const std::vector<std::pair<std::string, std::string>> all = {
      {"kl", "KL(data ‖ model density) on a 400×400 grid, nats; 0 is perfect"},
      {"js", "Jensen–Shannon divergence of samples and data, nats; 0 is perfect"},
      {"hq", "share of samples within four deviations of a mode; 1 is perfect"},
      {"fid",
       "Fréchet distance of 2048 Inception features of samples and training images; 0 is perfect"},
      {"inception_score", "exp KL(classes of a sample ‖ of all samples); higher is better"},
      {"inception_score_10", "the same, mean over ten parts of the samples"},
      {"inception_score_10_deviation", "its deviation over the parts"},
      {"fid768",
       "Fréchet distance of 768 Inception features of samples and training images; 0 is perfect"},
      {"modes", "modes that samples reach"},
      {"modes_kl", "KL(modes of samples ‖ uniform), nats; about .02 is as good as it gets"},
      {"classifier_accuracy", "of the classifier that counts modes, on MNIST's test set"},
      {"mmd", "squared maximum mean discrepancy of samples and data; 0 is perfect"},
      {"held_out_score", "mean log-density by the energy of rows not trained on"},
      {"validation_score", "the same of rows to choose by"},
      {"sample_score", "the same of samples"},
      {"log_z", "log of the energy's normaliser, by annealed importance sampling"},
      {"log_z_error", "its standard deviation"},
      {"log_z_reverse", "the same by chains that go back; agrees where both are right"},
      {"log_likelihood", "mean log-density of rows not trained on, normalised, nats"},
      {"log_likelihood_error", "its standard deviation"}};
  return all;
}

// name -> points (`over` / unit, value), over all lines that have both.
using SeriesByName = std::map<std::string, std::vector<std::pair<double, double>>>;
SeriesByName series_of(const std::vector<Json>& lines, const char* over, double unit = 1) {
  SeriesByName series;
  for (const Json& json : lines) {
    if (!json.contains(over) || !json[over].is_number()) continue;
    const double x = json[over].get<double>() / unit;
    for (const auto& [name, value] : json.items()) {
      if (value.is_number()) series[name].emplace_back(x, value.get<double>());
    }
  }
  return series;
}

// A file of JSON, or null where it is not there or is none.
Json read_json(const fs::path& path) {
  if (!fs::exists(path)) return {};
  auto json = Json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Json();
}

// Histograms: black on white, which dark pages turn round.
std::string embedded(const fs::path& picture, const char* words) {
  if (!fs::exists(picture)) return {};
  return fmt::format(
      "<figure class=plot><img alt=\"{}\" src=\"data:image/png;base64,{}\"></figure>", words,
      base64(read_file(picture)));
}

// What `ddaebm eval --energies` wrote.
std::string energies_section(const fs::path& run_folder, const Json& evaluation) {
  if (!evaluation.contains("energies")) return {};
  std::string rows;
  try {
    for (const Json& set : evaluation.at("energies")) {
      rows += fmt::format("<tr><td>{}<td>{:.5g}<td>{:.4g}<td>{:.4f}\n",
                          escape(set.at("name").get<std::string>()), set.at("mean").get<double>(),
                          set.at("deviation").get<double>(), set.at("auroc").get<double>());
    }
  } catch (const Json::exception&) {
    return {};
  }
  return fmt::format(
      "<section><h2>Energies</h2><p>E(x, 0) of held-out data, of what the generator makes of them "
      "after one step of diffusion, and of data with noise.</p>\n<table><tr><th>data<th>mean<th>"
      "deviation<th>AUROC of real against it\n{}</table>{}</section>\n",
      rows, embedded(run_folder / "energies.png", "Histograms of E of each set"));
}

// What `ddaebm eval --log-z` wrote.
std::string calibration_section(const fs::path& run_folder, const Json& evaluation) {
  std::string rows;
  try {
    for (const auto& [name, words] : std::vector<std::pair<const char*, const char*>>{
             {"log_z", "log Z by chains from a Gaussian; 0 where E is calibrated"},
             {"log_z_error", "its standard deviation"},
             {"log_z_reverse", "log Z by chains back to the Gaussian"},
             {"energy_observed", "mean E of held-out data"},
             {"energy_expected", "mean E of points drawn from exp(E)"},
             {"log_likelihood", "mean log-likelihood of held-out data, nats"}}) {
      rows += fmt::format("<tr><td>{}<td>{:.5g}\n", words, evaluation.at(name).get<double>());
    }
  } catch (const Json::exception&) {
    return {};
  }
  return fmt::format(
      "<section><h2>Calibration</h2><p>Is E the data's log-density?</p>\n<table>{}</table>{}"
      "</section>\n",
      rows, embedded(run_folder / "calibration.png", "E observed and E expected"));
}

// What `ddaebm ood` wrote.
std::string ood_section(const fs::path& run_folder) {
  const Json json = read_json(run_folder / "ood.json");
  if (json.is_null()) return {};
  const auto number = [](const Json& from) {
    return fmt::format("<td>{:.4f}<br><small>{:.4f} to {:.4f}</small></td>",
                       from.at("value").get<double>(), from.at("low").get<double>(),
                       from.at("high").get<double>());
  };
  std::string rows;
  try {
    for (const Json& set : json.at("out")) {
      for (const char* scores : {"clean", "noised", "typical", "profile"}) {
        if (!set.contains(scores)) continue;
        const Json& found = set.at(scores);
        rows +=
            fmt::format("<tr><td>{}<td>{}<td>{}{}{}{}\n", escape(set.at("data").get<std::string>()),
                        scores, set.at("count").get<int64_t>(), number(found.at("auroc")),
                        number(found.at("aupr")), number(found.at("fpr95")));
      }
    }
    return fmt::format(
        "<section><h2>Other data</h2><p>How well the score tells {} ({} data, iteration {}) from "
        "other data; below, where {:g} % of bootstrap resamples lie.</p>\n"
        "<table><tr><th>data<th>scores<th>count<th>AUROC<th>AUPR<th>FPR at 95 % TPR\n{}</table>{}"
        "</section>\n",
        escape(json.at("in").get<std::string>()), json.at("in_count").get<int64_t>(),
        json.at("iteration").get<int64_t>(), 100 * json.at("coverage").get<double>(), rows,
        embedded(run_folder / "ood.png", "Histograms of the scores of each set"));
  } catch (const Json::exception&) {
    return {};  // not written by `ddaebm ood`
  }
}

constexpr const char* kStyle = R"(
:root{--ink:#1c2430;--paper:#fff;--grid:#dfe3e8;--soft:#5b6675;--card:#f6f7f9}
@media (prefers-color-scheme:dark){:root{--ink:#e8ebef;--paper:#14181d;--grid:#333b45;--soft:#9aa5b1;--card:#1d232a}
polyline,circle,path[stroke]{filter:brightness(1.45)}.plot img{filter:invert(.91) hue-rotate(180deg)}}
@media print{:root{--ink:#000;--paper:#fff;--grid:#ccc;--soft:#444;--card:#fff}section{break-inside:avoid}}
*{box-sizing:border-box}body{margin:0 auto;max-width:72rem;padding:1.2rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}h1{font-size:1.5rem;margin:.2em 0}h2{font-size:1.1rem;margin:1.6em 0 .5em}
p,figcaption{color:var(--soft);margin:.3em 0}figure{margin:0}img{width:100%;height:auto;image-rendering:pixelated;border-radius:6px}
.numbers{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.7rem}
.numbers div{background:var(--card);border-radius:6px;padding:.7rem}.numbers b{display:block;font-size:1.4rem}
.numbers small{color:var(--soft);display:block;line-height:1.3}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(26rem,100%),1fr));gap:1rem}svg{width:100%;height:auto}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.3rem .6rem;border-bottom:1px solid var(--grid)}
summary{cursor:pointer;color:var(--soft)}.plot img{display:block;max-width:46rem;margin:.8rem auto}
.panels{display:flex;justify-content:space-around;color:var(--soft)}
pre{background:var(--card);padding:.8rem;border-radius:6px;overflow:auto;font-size:.85rem})";

}  // namespace

void write_report(const fs::path& run_folder) {
  const auto lines = read_metrics(run_folder / "metrics.jsonl");
  const auto series = series_of(lines, "iteration");
  const std::string name = fs::absolute(run_folder).lexically_normal().filename().string();
  std::string body = fmt::format("<h1>{}</h1>\n", escape(name));
  const auto iterations = series.find("iteration");
  if (iterations != series.end()) {
    body += fmt::format("<p>{} iterations done</p>\n", iterations->second.back().second);
  }

  const Json evaluation = read_json(run_folder / "evaluation.json");
  std::string numbers;
  for (const auto& [key, meaning] : meanings()) {
    const auto found = series.find(key);
    double value = 0;
    if (found != series.end()) {
      value = found->second.back().second;
    } else if (evaluation.contains(key) && evaluation[key].is_number()) {
      value = evaluation[key].get<double>();  // asked for after training
    } else {
      continue;
    }
    numbers += fmt::format("<div>{}<b>{:.4g}</b><small>{}</small></div>\n", escape(key), value,
                           escape(meaning));
  }
  if (!numbers.empty()) body += "<section class=numbers>" + numbers + "</section>\n";

  const fs::path picture = run_folder / "density.png";
  if (fs::exists(picture)) {
    body += fmt::format(
        "<section><h2>Density, data, samples</h2><figure><img alt=\"The model's density beside "
        "data "
        "beside samples\" src=\"data:image/png;base64,{}\"><div class=panels><span>density "
        "exp E(x, 0)</span><span>data</span><span>samples</span></div></figure></section>\n",
        base64(read_file(picture)));
  }

  if (fs::exists(run_folder / "samples.png")) {
    body += fmt::format(
        "<section><h2>Samples, data</h2><figure><img alt=\"Generated images beside images of the "
        "data\" src=\"data:image/png;base64,{}\"><div class=panels><span>samples</span>"
        "<span>data</span></div></figure></section>\n",
        base64(read_file(run_folder / "samples.png")));
  }

  body += energies_section(run_folder, evaluation);
  body += calibration_section(run_folder, evaluation);
  body += ood_section(run_folder);

  // FID is compared between programs by the time taken and by the images seen.
  const auto fid_chart = [&](const char* axis, const char* over, double unit) {
    const auto all = series_of(lines, over, unit);
    std::string charts;
    for (const auto& [key, title] : {std::pair("fid", "FID"), std::pair("fid768", "FID-768")}) {
      const auto found = all.find(key);
      if (found == all.end() || found->second.size() < 2) continue;
      charts +=
          line_chart(fmt::format("{} over {}", title, axis), axis, {{key, found->second}}, true);
    }
    return charts;
  };
  const auto chart = [&](const char* title, const std::vector<std::string>& keys, bool log_y) {
    std::vector<Series> curves;
    for (const auto& key : keys) {
      const auto found = series.find(key);
      if (found != series.end() && found->second.size() > 1) curves.push_back({key, found->second});
    }
    return curves.empty() ? std::string() : line_chart(title, "iteration", curves, log_y);
  };
  body += "<section><h2>Training</h2><div class=charts>\n" +
          chart("Quality (lower is better)", {"kl", "js", "mmd"}, true) +
          fid_chart("minutes", "seconds", 60) + fid_chart("thousand images seen", "images", 1000) +
          chart("KL of modes", {"modes_kl"}, true) + chart("High-quality share", {"hq"}, false) +
          chart("Mean log-density", {"held_out_score", "sample_score"}, false) +
          chart("E on real and generated points", {"energy_real", "energy_fake"}, false) +
          chart("Energy's loss", {"energy", "penalty"}, false) +
          chart("Generator's loss",
                {"generator", "reconstruction", "kl_to_prior", "latent", "fake_energy"}, false) +
          chart("Step size", {"lr"}, false) + "</div></section>\n";

  if (fs::exists(run_folder / "config.toml")) {
    body += fmt::format(
        "<section><h2>Settings</h2><details><summary>config.toml</summary><pre>{}</pre>"
        "</details></section>\n",
        escape(read_file(run_folder / "config.toml")));
  }
  write_file(run_folder / "report.html",
             fmt::format(
                 "<!doctype html>\n<html lang=en><head><meta charset=utf-8>\n"
                 "<meta name=viewport content=\"width=device-width,initial-scale=1\">\n"
                 "<title>{} · ddaebm</title>\n<style>{}</style></head>\n<body>\n{}</body></html>\n",
                 escape(name), kStyle, body));
}

}  // namespace ddaebm
