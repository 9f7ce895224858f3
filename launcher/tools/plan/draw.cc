#include <algorithm>

#include "launcher/tools/plan/picture.h"

namespace rueda::plan {
namespace {

// Positions at which a long sequence is looked at: all, or a spread that meets no stride.
std::vector<int64_t> samples_of(int64_t length, int64_t count) {
  std::vector<int64_t> samples;
  uint64_t state = 1;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = i * length / count, end = (i + 1) * length / count;
    state = state * 6364136223846793005u + 1442695040888963407u;
    samples.push_back(begin +
                      static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(end - begin)));
  }
  return samples;
}

bool in_run(int64_t position, int64_t begin, int64_t step, int64_t count) {
  const int64_t from = position - begin;
  return from >= 0 && from % step == 0 && from / step < count;
}

std::vector<size_t> inside(const std::vector<int64_t>& samples, int64_t begin, int64_t step,
                           int64_t count) {
  std::vector<size_t> found;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (in_run(samples[i], begin, step, count)) found.push_back(i);
  }
  return found;
}

}  // namespace

Picture draw(const PlanOptions& o, const Schedule& schedule, int64_t most_cells) {
  Picture picture;
  picture.cells = std::min(o.length, most_cells);
  const int64_t per_cell = o.length <= most_cells ? 1 : std::min<int64_t>(4, o.length / most_cells);
  const std::vector<int64_t> samples = samples_of(o.length, picture.cells * per_cell);
  const auto cells = static_cast<size_t>(picture.cells), side = static_cast<size_t>(per_cell);
  const size_t ranks = schedule.ranks.size();
  std::vector<std::vector<int>> counts(static_cast<size_t>(schedule.steps));
  for (auto& step : counts) step.assign(cells * cells * ranks, 0);
  picture.owner.assign(cells, -1);
  for (size_t rank = 0; rank < ranks; ++rank) {
    std::vector<int64_t> tokens = schedule.ranks[rank].tokens;
    std::sort(tokens.begin(), tokens.end());
    for (size_t row = 0; row < cells; ++row) {
      if (std::binary_search(tokens.begin(), tokens.end(), samples[row * side]))
        picture.owner[row] = static_cast<int>(rank);
    }
    for (const Tile& t : schedule.ranks[rank].tiles) {
      if (o.head < t.head_begin || o.head >= t.head_end ||
          (o.head - t.head_begin) % t.head_step != 0)
        continue;
      const auto keys = inside(samples, t.k, t.k_step, t.k_count);
      for (const size_t i : inside(samples, t.q, t.q_step, t.q_count)) {
        for (const size_t j : keys) {
          const int64_t ahead = samples[j] - samples[i];
          if (o.causal && ahead > 0) continue;
          if ((o.left >= 0 && -ahead > o.left) || (o.right >= 0 && ahead > o.right)) continue;
          ++counts[static_cast<size_t>(t.step)][((i / side) * cells + j / side) * ranks + rank];
        }
      }
    }
  }
  for (const auto& count : counts) {
    Panel panel;
    for (size_t cell = 0; cell < cells * cells; ++cell) {
      const auto begin = count.begin() + static_cast<int64_t>(cell * ranks);
      const auto most = std::max_element(begin, begin + static_cast<int64_t>(ranks));
      int sum = 0;
      for (size_t rank = 0; rank < ranks; ++rank) sum += begin[static_cast<int64_t>(rank)];
      panel.rank.push_back(sum == 0 ? -1 : static_cast<int>(most - begin));
      panel.share.push_back(std::min(1.0, double(sum) / double(side * side)));
    }
    picture.panels.push_back(std::move(panel));
  }
  return picture;
}

std::string as_text(const Picture& picture) {
  constexpr char kNames[] = "0123456789abcdefghijklmnopqrstuvwxyz";
  const auto name = [&](int rank) { return rank < 0 ? '.' : rank < 36 ? kNames[rank] : '#'; };
  const auto cells = static_cast<size_t>(picture.cells);
  std::string text;
  for (size_t step = 0; step < picture.panels.size(); ++step) {
    text += step == 0 ? "\nstep 0: own keys\n" : "\nstep " + std::to_string(step) + "\n";
    for (size_t row = 0; row < cells; ++row) {
      text += name(picture.owner[row]);
      text += "  ";
      for (size_t column = 0; column < cells; ++column)
        text += name(picture.panels[step].rank[row * cells + column]);
      text += '\n';
    }
  }
  return text +
         "\nRows are queries, behind the rank that has them; columns are keys; a digit is the "
         "rank\n"
         "that computes there.\n";
}

}  // namespace rueda::plan
