// RevocationModel: the step plan's protocol, small enough to look at every state. One generation.
//
// Each rank has one word that only it writes: how many batches it has entered, and whether it has
// revoked. Peers see it later. The transitions below are all that a rank may do, in any order:
//
//   enter     not revoked                                 word.entered + 1
//   revoke    at any time                                 word.revoked, for good
//   observe   a peer's word as it is now, or was          never an older one than before
//   run       every rank is seen to have entered batch n  n is the next; user memory is written
//   withdraw  every rank is seen to have revoked, and     M = the least word; batches >= M are
//             all batches < M have run here               given back, and the rank is out
//   crash     at any time                                 nothing more from this rank
//
// Invariants: a batch that runs anywhere was entered everywhere; no batch runs on one rank that
// another has withdrawn; all ranks withdraw from the same M, each when it has run all before;
// without a crash every end has the same batches run on all ranks, and after a revocation exactly M
// of them.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <string>

namespace rueda::testing {

// Planted mistakes, each of which the tests have to find.
enum class Bug { kNone, kMostInsteadOfLeast, kRunBeforeAllHaveEntered, kBackBeforeItsBatchesEnded };

struct RevocationModel {
  static constexpr int kMaxRanks = 6;
  struct Word {
    int32_t entered = 0;
    bool revoked = false;
    auto operator<=>(const Word&) const = default;
  };
  int size = 0;
  std::array<Word, kMaxRanks> words{};
  std::array<std::array<Word, kMaxRanks>, kMaxRanks> seen{};  // [observer][writer]
  std::array<int32_t, kMaxRanks> ran{};
  std::array<int32_t, kMaxRanks> withdrawn{-1, -1, -1, -1, -1, -1};  // M, once known
  std::array<bool, kMaxRanks> crashed{};
  auto operator<=>(const RevocationModel&) const = default;

  bool may_enter(int rank) const { return !crashed[rank] && !words[rank].revoked; }
  void enter(int rank) { see_own(rank, {words[rank].entered + 1, false}); }

  bool may_revoke(int rank) const { return !crashed[rank] && !words[rank].revoked; }
  void revoke(int rank) { see_own(rank, {words[rank].entered, true}); }

  bool may_observe(int rank, int writer, Word word) const {
    return !crashed[rank] && seen[rank][writer] <= word && word.entered <= words[writer].entered &&
           (!word.revoked || word == words[writer]);
  }
  void observe(int rank, int writer, Word word) { seen[rank][writer] = word; }

  bool may_run(int rank, Bug bug) const {
    const int32_t n = ran[rank];
    if (crashed[rank] || n >= words[rank].entered) return false;
    if (withdrawn[rank] >= 0 && n >= withdrawn[rank]) return false;
    return bug == Bug::kRunBeforeAllHaveEntered || least_seen(rank) > n;
  }
  void run(int rank) { ++ran[rank]; }

  bool may_withdraw(int rank, Bug bug) const {
    if (crashed[rank] || withdrawn[rank] >= 0) return false;
    if (!std::all_of(seen[rank].begin(), seen[rank].begin() + size,
                     [](const Word& word) { return word.revoked; })) {
      return false;
    }
    return bug == Bug::kBackBeforeItsBatchesEnded || ran[rank] >= last_common(rank, bug);
  }
  int32_t last_common(int rank, Bug bug) const {
    return bug == Bug::kMostInsteadOfLeast ? most_seen(rank) : least_seen(rank);
  }
  void withdraw(int rank, int32_t first) { withdrawn[rank] = first; }

  // "" or what must never be.
  std::string broken() const {
    int32_t all_entered = words[0].entered;
    for (int r = 0; r < size; ++r) all_entered = std::min(all_entered, words[r].entered);
    for (int r = 0; r < size; ++r) {
      if (ran[r] > all_entered) return "a batch ran that some rank had not entered";
      if (withdrawn[r] > ran[r]) return "a rank was back before its batches had run";
      for (int s = 0; s < size; ++s) {
        if (withdrawn[r] >= 0 && ran[s] > withdrawn[r]) return "a batch ran that a rank withdrew";
        if (withdrawn[r] >= 0 && withdrawn[s] >= 0 && withdrawn[r] != withdrawn[s])
          return "two ranks withdrew from different batches on";
      }
    }
    return "";
  }
  // "" or why this must not be the end of a run without crashes.
  std::string wrong_end() const {
    for (int r = 0; r < size; ++r) {
      if (ran[r] != ran[0]) return "a batch ran on one rank only";
      if (words[r].revoked != words[0].revoked) return "one rank only left the plan";
      if (words[r].revoked && withdrawn[r] != ran[r]) return "a batch entered by all did not run";
      if (!words[r].revoked && ran[r] != words[r].entered) return "a batch is stuck";
    }
    return "";
  }

 private:
  void see_own(int rank, Word word) {
    words[rank] = word;
    seen[rank][rank] = word;
  }
  int32_t least_seen(int rank) const {
    int32_t least = INT32_MAX;
    for (int r = 0; r < size; ++r) least = std::min(least, seen[rank][r].entered);
    return least;
  }
  int32_t most_seen(int rank) const {
    int32_t most = 0;
    for (int r = 0; r < size; ++r) most = std::max(most, seen[rank][r].entered);
    return most;
  }
};

}  // namespace rueda::testing
