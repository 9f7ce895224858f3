#include "attention/decode_shares.h"

namespace rueda::attention {

std::vector<DecodeSpan> spans_of(const DecodeSpec& s) {
  std::vector<DecodeSpan> spans;
  for (int64_t b = 0; b < s.batch; ++b) {
    const int64_t length = s.lengths[index(b)], end = here_of(s, length);
    const int64_t first_sees = s.causal ? here_of(s, length - s.queries + 1) : end;
    int64_t begin = 0;
    const auto add = [&](int64_t from, int64_t to, int64_t left) {
      if (from >= to) return;
      const int64_t common = left < 0 ? std::clamp(first_sees, from, to) : from;
      spans.push_back({b, from, to, left, common});
    };
    if (s.left >= 0) {
      const int64_t global = here_of(s, std::min(length, s.global_tokens));
      add(0, global, -1);
      begin = std::max(global, here_of(s, std::max<int64_t>(0, length - s.queries - s.left)));
    }
    add(begin, end, s.left);
  }
  return spans;
}

}  // namespace rueda::attention
