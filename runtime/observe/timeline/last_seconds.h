// LastSeconds: where a file may be cut so that it keeps the last seconds of what is written to it.
//
// The file is left to grow to twice as much and is cut then, so each byte is copied once at most.
// Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "runtime/observe/timeline/event.h"

namespace rueda::timeline {

class LastSeconds {
 public:
  // kept: 0: everything.
  explicit LastSeconds(Nanos kept) : kept_(kept) {}

  // What is written behind this place has been recorded since then.
  void note(Nanos now, uint64_t place) {
    if (kept_ == 0 || (!places_.empty() && now - places_.back().time < kept_ / kPlaces)) return;
    places_.push_back({now, place});
  }

  // Where to cut, if it is time to; at the end it is if there is more than asked for.
  std::optional<uint64_t> cut(Nanos now, bool is_end) {
    if (places_.empty() || now - places_.front().time < (is_end ? kept_ : 2 * kept_))
      return std::nullopt;
    size_t old = 0;  // places that are old enough
    while (old < places_.size() && now - places_[old].time >= kept_) ++old;
    if (old <= 1) return std::nullopt;  // the first one is where it begins
    places_.erase(places_.begin(), places_.begin() + static_cast<int64_t>(old) - 1);
    return places_.front().place;
  }

  // What lay at `from` lies at `to` now, and what lay behind it behind that.
  void moved(uint64_t from, uint64_t to) {
    for (Place& known : places_) known.place = known.place - from + to;
  }

 private:
  static constexpr Nanos kPlaces = 64;  // that are known of the time that is kept

  struct Place {
    Nanos time;
    uint64_t place;
  };
  const Nanos kept_;
  std::deque<Place> places_;
};

}  // namespace rueda::timeline
