// SimWords: a SimChannel of ranks that share memory. Each has one word, that peers see late: how
// many batches it has entered, and whether it has revoked.
#pragma once

#include <vector>

#include "tests/simulation/sim_channel.h"

namespace rueda::testing {

class SimWords final : public SimChannel {
 public:
  SimWords(SimWorld* world, Rank rank, Doors doors)
      : SimChannel(world, rank, std::move(doors)), seen_(static_cast<size_t>(world->size)) {}

 private:
  struct Word {
    uint64_t generation = 0;
    uint64_t entered = 0;
    bool revoked = false;
    auto operator<=>(const Word&) const = default;
  };

  void say_entered() override { write({generation(), entered(), false}); }
  void say_last_word() override { write({generation(), entered(), true}); }
  void on_begin() override {
    write({generation(), 0, false});
    for (Rank r = 0; r < world_->size; ++r) read(r);
  }

  void write(Word word) {
    for (Rank r = 0; r < world_->size; ++r) {
      if (r == rank_) continue;
      auto* const peer = static_cast<SimWords*>(&doors_.peer(r));
      world_->after(world_->delay(), [this, peer, word] { peer->see(rank_, word); });
    }
  }
  void see(Rank writer, Word word) {
    Word& seen = seen_[static_cast<size_t>(writer)];
    if (dead_ || word <= seen) return;  // or overtaken by a newer one
    seen = word;
    read(writer);
  }
  void read(Rank writer) {
    const Word& word = seen_[static_cast<size_t>(writer)];
    if (word.generation != generation()) return;
    hear_entered(writer, word.entered);
    if (word.revoked) hear_last_word(writer, {word.generation, word.entered});
  }

  std::vector<Word> seen_;  // by writer
};

}  // namespace rueda::testing
