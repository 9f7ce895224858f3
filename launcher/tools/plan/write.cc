#include <algorithm>
#include <cstdio>
#include <map>

#include "launcher/tools/plan/picture.h"

namespace rueda::plan {
namespace {

// Of ranks 0, 1, ...; told apart by people who see few colours too, and again from the start.
constexpr const char* kColours[] = {"#0072b2", "#e69f00", "#009e73", "#cc79a7",
                                    "#56b4e9", "#d55e00", "#f0e442", "#666666"};

std::string colour(int rank) { return kColours[rank % 8]; }

template <typename... Values>
std::string format(const char* pattern, Values... values) {
  char text[512];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

std::string rectangle(double x, double y, double width, double height, const std::string& fill) {
  return format("<rect x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\" fill=\"%s\"/>\n", x, y, width,
                height, fill.c_str());
}

std::string label(double x, double y, const std::string& words, const char* more = "") {
  return format("<text x=\"%g\" y=\"%g\"%s>", x, y, more) + words + "</text>\n";
}

// The cells of one step, one path for each colour, and at their left whose tokens the rows are. In
// units of cells.
std::string cells_of(const Picture& picture, const Panel& panel) {
  const auto cells = static_cast<size_t>(picture.cells);
  std::map<std::pair<int, int>, std::string> paths;  // by rank and share in percent
  std::map<int, std::string> owners;
  for (size_t row = 0; row < cells; ++row) {
    if (picture.owner[row] >= 0) owners[picture.owner[row]] += format("M-2.2 %zuh1.5v1h-1.5z", row);
    const auto key = [&](size_t column) {
      const size_t at = row * cells + column;
      return std::pair(panel.rank[at], static_cast<int>(panel.share[at] * 100));
    };
    for (size_t begin = 0; begin < cells;) {
      size_t end = begin + 1;
      while (end < cells && key(end) == key(begin)) ++end;
      if (key(begin).first >= 0) {
        const size_t width = end - begin;
        paths[key(begin)] += format("M%zu %zuh%zuv1h-%zuz", begin, row, width, width);
      }
      begin = end;
    }
  }
  std::string text;
  for (const auto& [rank, path] : owners)
    text += "<path fill=\"" + colour(rank) + "\" d=\"" + path + "\"/>\n";
  for (const auto& [key, path] : paths) {
    text += "<path class=\"work\" fill=\"" + colour(key.first) + "\"";
    if (key.second < 100) text += format(" fill-opacity=\"%.2f\"", 0.25 + 0.0075 * key.second);
    text += " d=\"" + path + "\"/>\n";
  }
  return text;
}

}  // namespace

std::string title_of(const PlanOptions& o) {
  static constexpr const char* kLayouts[] = {"contiguous", "zigzag", "striped"};
  std::string text = o.gather_first                        ? "all-gather"
                     : o.ulysses == o.ranks && o.ranks > 1 ? "Ulysses"
                     : o.ulysses > 1                       ? "Ulysses x ring"
                                                           : "ring";
  text += std::string(", ") + kLayouts[o.layout] + " layout";
  if (o.causal) text += ", causal";
  if (o.left >= 0 || o.right >= 0)
    text += ", window " + std::to_string(o.left) + "," + std::to_string(o.right);
  if (!o.cu_seqlens.empty())
    text += ", " + std::to_string(o.cu_seqlens.size() - 1) + " packed sequences";
  for (size_t i = 0; i < o.segment_lengths.size(); ++i) {
    text += (i == 0 ? ", dilated " : " + ") + std::to_string(o.segment_lengths[i]) + "/" +
            std::to_string(o.dilation_rates[i]);
  }
  if (o.block > 0) text += ", blocks of " + std::to_string(o.block);
  if (o.backward) text += ", backward";
  return text + ": " + std::to_string(o.length) + " tokens on " + std::to_string(o.ranks) +
         " ranks";
}

std::string as_table(const Schedule& schedule) {
  std::string text = format(
      "rank   tokens  tiles  messages fwd/bwd  MB sent fwd      bwd  GFLOP fwd      bwd   MB kept  "
      "MB workspace fwd      bwd\n");
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const std::vector<int64_t>& n = schedule.ranks[rank].numbers;
    text += format("%4zu %8lld %6lld %9lld %7lld %12.3f %8.3f %10.3f %8.3f %9.3f %17.3f %8.3f\n",
                   rank, static_cast<long long>(n[1]), static_cast<long long>(n[3]),
                   static_cast<long long>(n[4]), static_cast<long long>(n[5]), double(n[6]) / 1e6,
                   double(n[7]) / 1e6, double(n[10]) / 1e9, double(n[11]) / 1e9,
                   double(n[12]) / 1e6, double(n[13]) / 1e6, double(n[14]) / 1e6);
  }
  return text + format("balance: the busiest rank has %.3f of the mean work; plan %016llx\n",
                       schedule.balance,
                       static_cast<unsigned long long>(schedule.ranks[0].numbers[0]));
}

std::string as_svg(const PlanOptions& o, const Schedule& schedule, const Picture& picture) {
  constexpr double kSide = 190, kGap = 24, kLeft = 22, kTop = 58;
  const size_t panels = picture.panels.size();
  const size_t across = std::min<size_t>(panels, 4), down = (panels + across - 1) / across;
  const double bars = 16.0 * static_cast<double>(schedule.ranks.size()) + 30;
  const double width = std::max(kLeft + static_cast<double>(across) * (kSide + kGap), 470.0);
  const double height = kTop + static_cast<double>(down) * (kSide + 2 * kGap) + bars;
  const auto cells = static_cast<size_t>(picture.cells);
  std::string svg = format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" width=\"%g\" height=\"%g\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n",
      width, height, width, height);
  svg += "<title>" + title_of(o) + "</title>\n" + rectangle(0, 0, width, height, "#ffffff");
  svg += label(kLeft, 18, title_of(o), " font-size=\"13\"");
  for (size_t rank = 0; rank < std::min<size_t>(schedule.ranks.size(), 8); ++rank) {
    const double x = kLeft + 55 * static_cast<double>(rank);
    svg += rectangle(x, 26, 10, 10, colour(static_cast<int>(rank))) +
           label(x + 13, 35, "rank " + std::to_string(rank));
  }
  for (size_t step = 0; step < panels; ++step) {
    const double x0 = kLeft + static_cast<double>(step % across) * (kSide + kGap);
    const double y0 = kTop + static_cast<double>(step / across) * (kSide + 2 * kGap);
    svg += label(x0, y0 - 5, step == 0 ? "step 0: own keys" : "step " + std::to_string(step));
    svg += rectangle(x0, y0, kSide, kSide, "#f2f2f2");
    svg += format("<g transform=\"translate(%g %g) scale(%g)\" shape-rendering=\"crispEdges\">\n",
                  x0, y0, kSide / static_cast<double>(cells));
    svg += cells_of(picture, picture.panels[step]) + "</g>\n";
  }
  // Work of each rank and step: equal lengths are balance.
  double y = kTop + static_cast<double>(down) * (kSide + 2 * kGap);
  svg += label(kLeft, y, "work by rank, steps one after another; MB sent");
  std::vector<std::vector<int64_t>> work(schedule.ranks.size(), std::vector<int64_t>(panels, 0));
  int64_t most = 1;
  for (size_t rank = 0; rank < work.size(); ++rank) {
    int64_t sum = 0;
    for (const Tile& t : schedule.ranks[rank].tiles) {
      const int64_t heads = (t.head_end - t.head_begin + t.head_step - 1) / t.head_step;
      work[rank][static_cast<size_t>(t.step)] += t.pairs * heads;
      sum += t.pairs * heads;
    }
    most = std::max(most, sum);
  }
  for (size_t rank = 0; rank < work.size(); ++rank) {
    y += 16;
    double x = kLeft;
    for (size_t step = 0; step < panels; ++step) {
      const double length = 300.0 * double(work[rank][step]) / double(most);
      if (length == 0) continue;
      svg += rectangle(x, y - 8, std::max(length - 1, 0.5), 10, colour(static_cast<int>(rank)));
      x += length;
    }
    const int64_t sent = schedule.ranks[rank].numbers[o.backward ? 7 : 6];
    svg += label(kLeft + 308, y, format("%.3f", double(sent) / 1e6));
  }
  return svg + "</svg>\n";
}

}  // namespace rueda::plan
