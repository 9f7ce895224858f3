// EventFile: a file that is whole after every append, whatever its form, and can lose its
// beginning. In any form:
//
//   - each append is one write behind what is there, so that a killed writer leaves all but, at
//     most, the last append readable
//   - keep_from() writes the rest of the file anew and gives that its name: at no moment is there
//     less
//
// Threads: one. A forked child has no part in it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "collectives/base/status.h"
#include "collectives/host/fork_guard.h"
#include "runtime/observe/timeline/timeline_file.h"

namespace rueda::timeline {

class EventFile {
 public:
  virtual ~EventFile() = default;
  // text: whole events, as a Layout made them. After an error the file is as it was.
  virtual Status append(std::string_view text) = 0;
  // Where the next append will begin; empty while appended text waits in memory.
  virtual std::optional<uint64_t> boundary() const = 0;
  // Leaves out what lies before a boundary and puts `head` there instead: where that ends now.
  virtual Result<uint64_t> keep_from(uint64_t boundary, std::string_view head) = 0;
  // Writes what waits in memory.
  virtual Status end() { return {}; }
};

// Empties the file if it exists. The error names the path.
Result<std::unique_ptr<EventFile>> create_event_file(const TimelineFile& file);

// The file itself, for those that know its form.
class WrittenFile {
 public:
  static Result<WrittenFile> create(const std::string& path);
  // After an error the file ends at `at`; so it does in what end_with() adds.
  Status write(std::string_view bytes, uint64_t at);
  // The bytes [from, to) behind `head`, and `tail` behind them, are the file from now on.
  Status rewrite(std::string_view head, uint64_t from, uint64_t to, std::string_view tail);
  void end_with(std::string_view bytes, uint64_t at);

 private:
  Status failed(uint64_t needed, int why) const;
  host::GuardedFd fd_;
  std::string path_;  // absolute, without links: the process may change its folder
};

}  // namespace rueda::timeline
