// The same line from several ranks, once: "[0-7]<stdout>: Loading data".
//
// A line waits for a moment; ranks that write the same meanwhile join it. A rank joins a line only
// behind everything it has written before, so each rank's own order stays, over both of its
// streams. What it has written alone since its last joint line is moved before the one that it
// joins, as nobody else's order is in that; otherwise lines leave in the order in which each first
// appeared. A line that all ranks have written leaves as soon as those before it have.
//
// Nothing is lost: every line leaves with every rank that wrote it. Not for pieces that redraw
// (progress bars): their rank's lines are released first, then they are printed past the folder.
// Pure; one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/output/output_format.h"

namespace rueda::launcher {

class LineFolder {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;
  static constexpr Duration kWindow = std::chrono::milliseconds(100);
  static constexpr size_t kMaxHeld = 1 << 20;  // bytes; more leave early

  struct Line {
    Stream stream = Stream::kStdout;
    std::string text;
    std::string time;         // of the first rank's
    std::vector<Rank> ranks;  // ascending
  };
  using Print = std::function<void(const Line&)>;

  explicit LineFolder(int num_ranks) : num_ranks_(num_ranks) {}

  void add(Rank rank, Stream stream, std::string_view text, std::string time, TimePoint now);
  // Whatever has waited long enough, is complete, or is too much.
  void release_due(TimePoint now, const Print& print);
  // Everything up to the rank's last line.
  void release_rank(Rank rank, const Print& print);
  void release_all(const Print& print);
  // When release_due has something to do; nothing when no line waits.
  std::optional<TimePoint> next_deadline() const;

 private:
  using Key = std::pair<Stream, std::string>;
  using Place = double;  // in the order; there is nearly always one between two
  struct Held {
    Line line;
    TimePoint since;
  };
  struct Writer {
    Place joint = 0;          // of its last line that it cannot move: joined, or gone
    std::deque<Place> alone;  // of what it has written alone since, ascending
  };
  std::map<Place, Held>::iterator joinable(Rank rank, const Writer& writer, const Key& key);
  bool make_way(Writer* writer, std::map<Place, Held>::iterator to);
  static void settle(Writer* writer, Place place);
  void forget(const Key& key, Place place);
  void release_first(const Print& print);

  int num_ranks_;
  std::map<Place, Held> held_;
  Place newest_ = 0, gone_ = 0;
  std::map<Key, std::set<Place>> places_;  // of the lines with a text
  std::map<Rank, Writer> writers_;
  size_t bytes_ = 0;
};

}  // namespace rueda::launcher
