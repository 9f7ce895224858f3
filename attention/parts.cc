#include "attention/parts.h"

#include <algorithm>
#include <utility>

#include "collectives/base/types.h"

namespace rueda::attention {
namespace {

constexpr int64_t kMessages = 4;
// Whole blocks of the kernel: smaller messages cost more than what they hide.
constexpr int64_t kFewestRows = 192;
// Keys of a panel of the kernel: rows that are cut elsewhere leave some of it empty.
constexpr int64_t kPanelRows = 64;

int64_t heads_of(const Part& part) { return part.head_end - part.head_begin; }
int64_t rows_of(const Part& part) { return part.end - part.begin; }

std::pair<Part, Part> halves(const Part& part) {
  Part first = part, second = part;
  if (heads_of(part) > 1) {
    first.head_end = second.head_begin = part.head_begin + heads_of(part) / 2;
  } else {
    first.end = second.begin = part.begin + ceil_div(rows_of(part), 2 * kPanelRows) * kPanelRows;
  }
  return {first, second};
}

}  // namespace

std::vector<Part> parts_of(const Part& whole, int64_t chunk) {
  const int64_t heads = heads_of(whole), rows = rows_of(whole);
  const bool usual = chunk == 0;
  if (usual) chunk = ceil_div(rows, std::clamp<int64_t>(rows / kFewestRows, 1, kMessages));
  if (heads == 0 || chunk >= rows) return {whole};
  std::vector<Part> parts;
  const int64_t room = chunk * heads;  // rows of one head
  if (room >= rows) {
    const auto count = static_cast<Rank>(ceil_div(heads, room / rows));
    for (Rank i = 0; i < count; ++i) {
      const int64_t begin = whole.head_begin + split_begin(heads, i, count);
      parts.push_back({begin, begin + split_rows(heads, i, count), whole.begin, whole.end});
    }
    return parts;
  }
  int64_t some = ceil_div(rows, ceil_div(rows, room));
  if (usual) some = ceil_div(some, kPanelRows) * kPanelRows;
  for (int64_t head = whole.head_begin; head < whole.head_end; ++head) {
    for (int64_t row = whole.begin; row < whole.end; row += some)
      parts.push_back({head, head + 1, row, std::min(row + some, whole.end)});
  }
  return parts;
}

std::vector<Part> tapered(std::vector<Part> parts) {
  for (int times = 0; times < 2 && !parts.empty(); ++times) {
    const Part last = parts.back();
    if (heads_of(last) * rows_of(last) < 2 * kFewestRows) break;
    const auto [first, second] = halves(last);
    parts.back() = first;
    parts.push_back(second);
  }
  return parts;
}

}  // namespace rueda::attention
