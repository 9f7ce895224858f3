// JsonArrayFile: a file that is a whole JSON array after every append.
//
// The closing bracket is part of each write and is written over by the next one: one pwrite per
// append, so that only a kill in the middle of the kernel's copying could leave it open; the
// launcher closes what a rank that was killed then left (runtime/observe/timeline/timeline_file.h).
// Threads: one. A forked child has no part in it.
#pragma once

#include <string>
#include <string_view>

#include "collectives/base/status.h"
#include "collectives/host/fork_guard.h"

namespace rueda::timeline {

class JsonArrayFile {
 public:
  // Empties the file if it exists. The error names the path.
  static Result<JsonArrayFile> create(const std::string& path);
  // events: one or more, each on a line of its own, separated by ",\n". After an error the file is
  // as it was.
  Status append(std::string_view events);

 private:
  host::GuardedFd fd_;
  std::string path_;
  std::string scratch_;
  size_t end_ = 0;  // of the last event
  bool empty_ = true;
};

// "…" with quotes, as JSON wants it; bytes that are not UTF-8 become '?'.
std::string json_quoted(const std::string& text);

}  // namespace rueda::timeline
