// What the user sees: the ranks' lines and ruedarun's own, on our stdout and stderr.
//
// One thread. When stdout and stderr are the same file or pipe they share one queue, so that no
// line is torn by the other stream.
#pragma once

#include <poll.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/output/line_folder.h"
#include "launcher/output/output_format.h"
#include "launcher/output/output_sink.h"

namespace rueda::launcher {

class Console {
 public:
  // Looks at descriptors 1 and 2. `timestamp`: the time stands before every piece.
  // `colour_allowed`: NO_COLOR is not set. `fold`: the same line of several ranks is printed once;
  // nothing: on a terminal. Never without prefixes, which say whose it is.
  Console(bool prefix, bool timestamp, bool colour_allowed, int num_ranks,
          std::optional<bool> fold);

  // Only these ranks' output is printed; empty: everybody's.
  void show_only(std::set<Rank> ranks);
  void print(Rank rank, Stream stream, const Piece& piece);
  // "ruedarun: text", on stderr. What a terminal would obey is left out: parts of it may come from
  // ranks.
  void say(const std::string& text);

  // Somebody reads what say() writes as it comes.
  bool on_terminal() const { return place(Stream::kStderr).style.terminal; }
  bool keeps_redraws(Stream stream) const { return place(stream).style.terminal; }
  // Our reader is slower than the ranks: read no more from them for now.
  bool congested() const;
  bool stdout_closed() const { return place(Stream::kStdout).sink->broken(); }
  bool pending() const;
  void add_to_poll(std::vector<pollfd>* fds) const;
  void flush();
  // When flush() has lines to print that wait for equal ones; nothing when there are none.
  std::optional<LineFolder::TimePoint> next_deadline() const;
  // No more output is to come: none waits any longer.
  void release_lines();

  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

 private:
  struct Place {
    OutputStyle style;
    std::shared_ptr<OutputSink> sink;   // shared when both streams are one file
    std::shared_ptr<bool> redraw_open;  // belongs to the sink's cursor
    bool folds = false;
  };
  void print_line(const LineFolder::Line& line);
  const Place& place(Stream stream) const { return places_[static_cast<int>(stream)]; }

  Place places_[2];
  const bool timestamp_;
  const int num_ranks_;
  std::set<Rank> shown_;
  LineFolder folder_;
  LineFolder::Print printer_;
  std::string scratch_;
};

}  // namespace rueda::launcher
