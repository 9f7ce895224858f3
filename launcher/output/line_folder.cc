#include "launcher/output/line_folder.h"

#include <algorithm>

namespace rueda::launcher {

void LineFolder::add(Rank rank, Stream stream, std::string_view text, std::string time,
                     TimePoint now) {
  std::deque<uint64_t>& same = numbers_[{stream, std::string(text)}];
  uint64_t& last = last_[rank];
  const auto joins = std::upper_bound(same.begin(), same.end(), last);
  if (joins != same.end()) {
    std::vector<Rank>& ranks = at(*joins).line.ranks;
    ranks.insert(std::upper_bound(ranks.begin(), ranks.end(), rank), rank);
    last = *joins;
    return;
  }
  last = first_ + held_.size();
  same.push_back(last);
  held_.push_back({{stream, std::string(text), std::move(time), {rank}}, now});
  bytes_ += text.size();
}

void LineFolder::release_first(const Print& print) {
  const Line line = std::move(held_.front().line);
  held_.pop_front();
  ++first_;
  bytes_ -= line.text.size();
  const auto same = numbers_.find({line.stream, line.text});
  same->second.pop_front();
  if (same->second.empty()) numbers_.erase(same);
  print(line);
}

void LineFolder::release_due(TimePoint now, const Print& print) {
  while (!held_.empty()) {
    const Held& first = held_.front();
    const bool complete = static_cast<int>(first.line.ranks.size()) >= num_ranks_;
    if (!complete && now - first.since < kWindow && bytes_ <= kMaxHeld) break;
    release_first(print);
  }
}

void LineFolder::release_rank(Rank rank, const Print& print) {
  const auto last = last_.find(rank);
  while (last != last_.end() && !held_.empty() && first_ <= last->second) release_first(print);
}

void LineFolder::release_all(const Print& print) {
  while (!held_.empty()) release_first(print);
}

std::optional<LineFolder::TimePoint> LineFolder::next_deadline() const {
  if (held_.empty()) return std::nullopt;
  return held_.front().since + kWindow;
}

}  // namespace rueda::launcher
