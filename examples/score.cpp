// Scores every row of a table by a trained run: score RUN TABLE.csv
#include <cstdio>

#include <ddaebm/ddaebm.h>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: score RUN TABLE.csv\n");
    return 2;
  }
  try {
    ddaebm::Model model = ddaebm::Model::load(argv[1], torch::kCPU);
    const auto threshold = ddaebm::read_threshold(argv[1]);  // where `ddaebm ood` has kept one
    const torch::Tensor rows = ddaebm::read_rows(argv[2]);   // [N, D], in the data's own units
    const auto answers = ddaebm::answer(model, rows, threshold.value_or(ddaebm::Threshold{}));
    for (size_t i = 0; i < answers.log_density.size(); ++i) {  // higher means more likely
      std::printf("%.6f%s\n", answers.log_density[i],
                  !threshold      ? ""
                  : answers.in[i] ? " in"
                                  : " out");
    }
  } catch (const ddaebm::Error& error) {  // what a user can mend, in one line
    std::fprintf(stderr, "score: %s\n", error.what());
    return 2;
  }
}
