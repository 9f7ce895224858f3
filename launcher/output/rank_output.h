// One rank's output on its way from bytes to what the user sees: whole lines on the console, a copy
// in files if asked for, and the last words for the report at the end.
//
// Borrows the console, which outlives it. One thread.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/output/console.h"
#include "launcher/output/last_words.h"
#include "launcher/output/output_copies.h"

namespace rueda::launcher {

// Whoever takes the bytes that a rank writes.
class OutputTaker {
 public:
  virtual ~OutputTaker() = default;
  virtual void take(Stream stream, std::string_view bytes) = 0;
  // The stream has ended; nothing is taken of it afterwards. May be told twice.
  virtual void end(Stream stream) = 0;
};

class RankOutput : public OutputTaker {
 public:
  RankOutput(Rank rank, Console* console);

  // Its number from now on; of a line that has begun as well.
  void be(Rank rank) { rank_ = rank; }
  // What the rank writes goes there, too. Borrowed.
  void copy_to(OutputCopies* copies) { copies_ = copies; }
  void take(Stream stream, std::string_view bytes) override;
  void end(Stream stream) override;
  // Both streams have.
  bool ended() const { return ended_[0] && ended_[1]; }
  std::vector<std::string> last_words() const { return words_.lines(); }

 private:
  LineSplitter::Emit printer(Stream stream);

  Rank rank_;
  Console* const console_;
  LineSplitter splitters_[2];
  OutputCopies* copies_ = nullptr;
  LastWords words_;
  bool ended_[2] = {false, false};
};

}  // namespace rueda::launcher
