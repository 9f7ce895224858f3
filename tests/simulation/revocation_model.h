// RevocationModel: the step plan's protocol, small enough to look at every state. One generation.
//
// Each rank enters batches, and once it has revoked, enters no more: how many it has entered by
// then is its last word. Its peers come to know both, later. In memory that a host's ranks share
// both are one word, so who sees that a rank has revoked sees all that it has entered. Between
// hosts a batch's data says that its sender has entered it, and the last word is a message: either
// may be the first to come.
//
//   enter      not revoked                               words[rank].entered + 1
//   revoke     at any time                               words[rank].revoked, for good
//   hear       a rank has entered so many batches        not less than was known before
//   hear last  a rank has revoked                        told; says nothing about data
//   hear late  data of the generation before comes       changes nothing
//   run        every rank is known to have entered n     n is the next; user memory is written
//   withdraw   every rank's last word is known, and      M = the least of them; batches >= M are
//              all batches < M have run here             given back, and the rank is out
//   crash      at any time                               nothing more from this rank
//   cut        at any time, one pair                     nothing more from one to the other
//   give up    a peer is lost, or one that is not says   nothing more from this rank: its
//              that it has given up                      operations end with an error
//
// Invariants: a batch that runs anywhere was entered everywhere, and its data has come from all; no
// batch runs on one rank that another has withdrawn; all ranks withdraw from the same M, each when
// it has run all before. In the end the same batches have run on all ranks, after a revocation
// exactly M of them; or, after a crash or a cut, all living ranks have given up.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "tests/simulation/bug.h"

namespace rueda::testing {

// Count: signed.
template <int kMaxRanks, typename Count>
struct RevocationModel {
  template <typename T>
  using PerRank = std::array<T, kMaxRanks>;
  static constexpr Count kNot = -1;

  struct Word {
    Count entered = 0;
    bool revoked = false;
  };
  Count size = 0;
  PerRank<Word> words{};
  PerRank<PerRank<Count>> heard{};  // [observer][writer]: batches; of itself too
  PerRank<PerRank<Count>> told = of_all(of_all(kNot));  // [observer][writer]: last word
  PerRank<PerRank<Count>> late{};  // [observer][writer]: data of the generation before, under way
  PerRank<Count> ran{};
  PerRank<Count> withdrawn = of_all(kNot);  // M, once known
  PerRank<bool> crashed{};
  PerRank<bool> gave_up{};
  PerRank<PerRank<bool>> cut{};

  bool lives(int rank) const { return !crashed[rank] && !gave_up[rank]; }

  bool may_enter(int rank) const { return lives(rank) && !words[rank].revoked; }
  void enter(int rank) { heard[rank][rank] = ++words[rank].entered; }

  bool may_revoke(int rank) const { return lives(rank) && !words[rank].revoked; }
  void revoke(int rank) {
    words[rank].revoked = true;
    told[rank][rank] = words[rank].entered;
  }

  bool may_hear(int rank, int of, Count batches) const {
    return lives(rank) && heard[rank][of] <= batches && batches <= words[of].entered;
  }
  void hear(int rank, int of, Count batches) { heard[rank][of] = batches; }

  bool may_hear_last(int rank, int of, Count batches) const {
    return lives(rank) && words[of].revoked && batches == words[of].entered;
  }
  void hear_last(int rank, int of, Count batches) { told[rank][of] = batches; }

  void hear_late(int rank, int of, Bug bug) {
    --late[rank][of];
    if (bug == Bug::kOldDataCounts) ++heard[rank][of];
  }

  bool may_run(int rank, Bug bug) const {
    const Count n = ran[rank];
    if (!lives(rank) || n >= words[rank].entered) return false;
    if (withdrawn[rank] != kNot && n >= withdrawn[rank]) return false;
    for (int of = 0; of < size && bug != Bug::kRunBeforeAllHaveEntered; ++of) {
      const bool from_word = bug == Bug::kRunOnLastWordAlone && told[rank][of] > n;
      if (heard[rank][of] <= n && !from_word) return false;
    }
    return true;
  }
  void run(int rank) { ++ran[rank]; }

  bool may_withdraw(int rank, Bug bug) const {
    if (!lives(rank) || withdrawn[rank] != kNot) return false;
    const auto& of = told[rank];
    if (std::find(of.begin(), of.begin() + size, kNot) != of.begin() + size) return false;
    return bug == Bug::kBackBeforeItsBatchesEnded || ran[rank] >= first_lost(rank, bug);
  }
  // M, where every rank's last word is known.
  Count first_lost(int rank, Bug bug) const {
    const auto [least, most] = std::minmax_element(told[rank].begin(), told[rank].begin() + size);
    return bug == Bug::kMostInsteadOfLeast ? *most : *least;
  }
  void withdraw(int rank, Count first) { withdrawn[rank] = first; }

  // A peer's end, a lost connection, or another's word.
  bool may_give_up(int rank, Bug bug) const {
    for (int of = 0; of < size && lives(rank); ++of) {
      if (crashed[of] || cut[rank][of]) return true;
      if (gave_up[of] && bug != Bug::kKeepsLossToItself) return true;
    }
    return false;
  }

  // The same with other numbers for the ranks: r becomes to[r].
  RevocationModel renamed(const PerRank<int>& to) const {
    RevocationModel other = *this;
    for (int r = 0; r < size; ++r) {
      other.words[to[r]] = words[r];
      other.ran[to[r]] = ran[r];
      other.withdrawn[to[r]] = withdrawn[r];
      other.crashed[to[r]] = crashed[r];
      other.gave_up[to[r]] = gave_up[r];
      for (int s = 0; s < size; ++s) {
        other.heard[to[r]][to[s]] = heard[r][s];
        other.told[to[r]][to[s]] = told[r][s];
        other.late[to[r]][to[s]] = late[r][s];
        other.cut[to[r]][to[s]] = cut[r][s];
      }
    }
    return other;
  }

  // "" or what must never be.
  std::string broken() const {
    Count all_entered = words[0].entered;
    for (int r = 0; r < size; ++r) all_entered = std::min(all_entered, words[r].entered);
    for (int r = 0; r < size; ++r) {
      if (ran[r] > all_entered) return "a batch ran that some rank had not entered";
      if (withdrawn[r] > ran[r]) return "a rank was back before its batches had run";
      for (int s = 0; s < size; ++s) {
        if (ran[r] > heard[r][s]) return "a batch ran without the data of a rank";
        if (withdrawn[r] != kNot && ran[s] > withdrawn[r])
          return "a batch ran that a rank withdrew";
        if (withdrawn[r] != kNot && withdrawn[s] != kNot && withdrawn[r] != withdrawn[s])
          return "two ranks withdrew from different batches on";
      }
    }
    return "";
  }
  // "" or why this must not be the end.
  std::string wrong_end() const {
    bool faulty = false;
    for (int r = 0; r < size; ++r) {
      faulty |= crashed[r];
      for (int s = 0; s < size; ++s) faulty |= cut[r][s];
    }
    for (int r = 0; r < size; ++r) {
      if (faulty && lives(r)) return "a rank waits for one that is lost";
      if (faulty) continue;
      if (ran[r] != ran[0]) return "a batch ran on one rank only";
      if (words[r].revoked != words[0].revoked) return "one rank only left the plan";
      if (words[r].revoked && withdrawn[r] != ran[r]) return "a batch entered by all did not run";
      if (!words[r].revoked && ran[r] != words[r].entered) return "a batch is stuck";
    }
    return "";
  }

 private:
  template <typename T>
  static constexpr PerRank<T> of_all(T value) {
    PerRank<T> all{};
    all.fill(value);
    return all;
  }
};

}  // namespace rueda::testing
