#include "launcher/output/line_folder.h"

#include <algorithm>
#include <iterator>

namespace rueda::launcher {
namespace {

constexpr int kMostLooked = 64;  // lines of the same text

}  // namespace

// The first line of this text that the rank may join; held_.end(): none.
std::map<LineFolder::Place, LineFolder::Held>::iterator LineFolder::joinable(Rank rank,
                                                                             const Writer& writer,
                                                                             const Key& key) {
  const auto same = places_.find(key);
  if (same == places_.end()) return held_.end();
  int looked = 0;
  for (auto it = same->second.upper_bound(writer.joint);
       it != same->second.end() && looked < kMostLooked; ++it, ++looked) {
    const auto found = held_.find(*it);
    if (found->second.line.ranks != std::vector<Rank>{rank}) return found;
  }
  return held_.end();
}

// Moves what the writer has written alone before this line. False: there is no room in the order.
bool LineFolder::make_way(Writer* writer, std::map<Place, Held>::iterator to) {
  std::deque<Place>& alone = writer->alone;
  const auto first = std::upper_bound(alone.begin(), alone.end(), to->first);
  Place before = to == held_.begin() ? gone_ : std::prev(to)->first;
  const Place step = (to->first - before) / static_cast<Place>(alone.end() - first + 1);
  if (first != alone.end() && before + step / 2 <= before) return false;
  for (auto it = first; it != alone.end(); ++it) {
    auto moved = held_.extract(*it);
    const Key key{moved.mapped().line.stream, moved.mapped().line.text};
    forget(key, *it);
    moved.key() = before += step;
    moved.mapped().since = to->second.since;  // nobody waits longer for that
    places_[key].insert(before);
    held_.insert(std::move(moved));
  }
  return true;
}

void LineFolder::add(Rank rank, Stream stream, std::string_view text, std::string time,
                     TimePoint now) {
  Writer& writer = writers_[rank];
  const Key key{stream, std::string(text)};
  const auto joins = joinable(rank, writer, key);
  if (joins != held_.end() && make_way(&writer, joins)) {
    std::vector<Rank>& ranks = joins->second.line.ranks;
    if (ranks.size() == 1) settle(&writers_[ranks.front()], joins->first);
    ranks.insert(std::upper_bound(ranks.begin(), ranks.end(), rank), rank);
    writer.joint = joins->first;
    writer.alone.clear();
    return;
  }
  newest_ += 1;
  places_[key].insert(newest_);
  writer.alone.push_back(newest_);
  held_.emplace(newest_, Held{{stream, key.second, std::move(time), {rank}}, now});
  bytes_ += text.size();
}

void LineFolder::forget(const Key& key, Place place) {
  const auto same = places_.find(key);
  same->second.erase(place);
  if (same->second.empty()) places_.erase(same);
}

// The line at this place is no longer the writer's to move, nor what it has written before.
void LineFolder::settle(Writer* writer, Place place) {
  std::deque<Place>& alone = writer->alone;
  alone.erase(alone.begin(), std::upper_bound(alone.begin(), alone.end(), place));
  writer->joint = std::max(writer->joint, place);
}

void LineFolder::release_first(const Print& print) {
  const auto first = held_.begin();
  const Place place = gone_ = first->first;
  const Line line = std::move(first->second.line);
  held_.erase(first);
  bytes_ -= line.text.size();
  forget({line.stream, line.text}, place);
  for (const Rank rank : line.ranks) settle(&writers_[rank], place);
  print(line);
}

void LineFolder::release_due(TimePoint now, const Print& print) {
  while (!held_.empty()) {
    const Held& first = held_.begin()->second;
    const bool complete = static_cast<int>(first.line.ranks.size()) >= num_ranks_;
    if (!complete && now - first.since < kWindow && bytes_ <= kMaxHeld) break;
    release_first(print);
  }
}

void LineFolder::release_rank(Rank rank, const Print& print) {
  const auto found = writers_.find(rank);
  if (found == writers_.end()) return;
  const Writer& writer = found->second;
  const Place last = writer.alone.empty() ? writer.joint : writer.alone.back();
  while (!held_.empty() && held_.begin()->first <= last) release_first(print);
}

void LineFolder::release_all(const Print& print) {
  while (!held_.empty()) release_first(print);
}

std::optional<LineFolder::TimePoint> LineFolder::next_deadline() const {
  if (held_.empty()) return std::nullopt;
  return held_.begin()->second.since + kWindow;
}

}  // namespace rueda::launcher
