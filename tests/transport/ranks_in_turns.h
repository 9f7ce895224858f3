// Ranks: a world whose ranks are all driven by this thread, in turns, so that every order is the
// test's choice.
#pragma once

#include <utility>

#include "tests/support/thread_world.h"
#include "tests/transport/transfer_list.h"

namespace rueda::testing {

using transport::Transfer;

inline constexpr std::chrono::seconds kPatience{300};  // ends a hanging test, decides nothing

// Who was told what.
struct Heard {
  std::vector<std::pair<Rank, Status>> ends;
  std::vector<std::pair<Rank, Status>> verdicts;
  std::vector<std::pair<Rank, std::string>> controls;
};

class Ranks {
 public:
  Ranks(Kind kind, Rank size)
      : worlds_(make_worlds(kind, size)), heard_(static_cast<size_t>(size)) {
    for (Rank rank = 0; rank < size; ++rank) {
      Heard& heard = heard_[static_cast<size_t>(rank)];
      transport::TransportEvents events;
      events.on_peer_end = [&heard](Rank peer, const Status& status) {
        heard.ends.emplace_back(peer, status);
      };
      events.on_abort = [&heard](Rank peer, const Status& verdict) {
        heard.verdicts.emplace_back(peer, verdict);
      };
      events.on_control = [&heard](Rank peer, std::string_view text) {
        heard.controls.emplace_back(peer, text);
      };
      at(rank).set_events(std::move(events));
    }
  }
  Rank size() const { return static_cast<Rank>(worlds_.size()); }
  transport::Transport& at(Rank rank) { return worlds_[static_cast<size_t>(rank)]->transport(); }
  ThreadRank& world(Rank rank) { return *worlds_[static_cast<size_t>(rank)]; }
  Heard& heard(Rank rank) { return heard_[static_cast<size_t>(rank)]; }
  void destroy(Rank rank) { worlds_[static_cast<size_t>(rank)].reset(); }

  // Gives every rank a turn. True if anything moved.
  bool turn() {
    bool moved = false;
    for (auto& world : worlds_) {
      if (world == nullptr) continue;
      moved |= world->transport().progress();
      world->transport().park(std::chrono::nanoseconds(0));
    }
    return moved;
  }
  template <typename Condition>
  bool until(Condition condition) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!condition()) {
      if (!turn() && std::chrono::steady_clock::now() > deadline) return false;
    }
    return true;
  }
  bool until_done(const TransferList& transfers) {
    return until([&] { return transfers.all_done(); });
  }

 private:
  std::vector<std::unique_ptr<ThreadRank>> worlds_;
  std::vector<Heard> heard_;
};

}  // namespace rueda::testing
