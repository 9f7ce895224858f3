// SimMessages: a SimChannel of ranks on several hosts.
//
//   a host's ranks see in memory who of them has entered batch n; its first rank then sends the
//   host's data of batch n to the first of each other host, and lets its own host's ranks see when
//   the data of all hosts have come. With one rank on each host: everybody sends to everybody
//
//       host 0                            host 1
//       rank 1 --entered--> rank 0 --data of n--> rank 2 <--entered-- rank 3
//       rank 1 <---all----- rank 0 <--data of n-- rank 2 ----all----> rank 3
//
//   a last word is a message from each rank to each other, on the same host too
//
// Data arrive in their order, last words in theirs; those of a generation that has not begun here
// are kept, and data of one that has ended are dropped.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "tests/simulation/sim_channel.h"

namespace rueda::testing {

class SimMessages final : public SimChannel {
 public:
  SimMessages(SimWorld* world, Rank rank, int ranks_per_host, Doors doors);

 private:
  struct Data {
    uint64_t generation = 0;
    std::string text;  // what the batch is for its sender
  };
  // In memory of one host; only grows.
  struct Mark {
    uint64_t generation = 0;
    uint64_t batches = 0;
    auto operator<=>(const Mark&) const = default;
  };

  void say_entered() override;
  void say_last_word() override;
  void on_begin() override;
  void check_data(uint64_t number, const std::string& text) override;

  Rank first_of(Rank host) const { return host * ranks_per_host_; }
  Rank host_of(Rank rank) const { return rank / ranks_per_host_; }
  bool is_first() const { return first_of(host_of(rank_)) == rank_; }
  // f(rank): other ranks of this host.
  template <typename F>
  void for_neighbours(const F& f) const;
  SimMessages* at(Rank rank) const { return static_cast<SimMessages*>(&doors_.peer(rank)); }

  void see_entered(Rank neighbour, Mark mark);
  void see_all(Mark mark);
  void receive(Rank host, Data data);
  void receive_last_word(Rank from, LastWord word);
  void move_on();
  void send_data();
  void take_data(Rank host);
  uint64_t least_heard(Rank first, Rank end) const;

  const Rank ranks_per_host_;
  const Rank hosts_;
  std::vector<Mark> entered_;              // by rank: neighbours
  Mark all_;                               // what this host's first rank has heard from all hosts
  uint64_t sent_ = 0;                      // batches of this generation
  uint64_t announced_ = 0;                 // likewise, to the neighbours
  std::vector<std::deque<Data>> came_;     // by host: not looked at
  std::vector<std::deque<Data>> pending_;  // by host: of batches that have not begun to run
};

}  // namespace rueda::testing
