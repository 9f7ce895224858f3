// Planted mistakes, each of which the tests have to find.
#pragma once

namespace rueda::testing {

enum class Bug {
  kNone,
  // ---- of any group
  kMostInsteadOfLeast,
  kRunBeforeAllHaveEntered,
  kBackBeforeItsBatchesEnded,
  // ---- between hosts
  kRunOnLastWordAlone,  // it says that its sender has entered the batch, but is not the data
  kOldDataCounts,       // of a generation that has ended
  kOldLastWordCounts,
  kDropsWhatIsEarly,   // of a generation that has not begun here
  kForgetsOneMember,   // who is not told the last word
  kKeepsLossToItself,  // who has lost a peer tells no other
};

}  // namespace rueda::testing
