// JsonArrayFile: a file that is a whole JSON array after every append.
//
// The closing bracket is part of each write and is written over by the next one: one pwrite per
// append, so that only a kill in the middle of the kernel's copying could leave it open; the
// launcher closes what a rank that was killed then left (runtime/observe/timeline/timeline_file.h).
#pragma once

#include <string>
#include <string_view>

#include "runtime/observe/timeline/event_file.h"

namespace rueda::timeline {

class JsonArrayFile final : public EventFile {
 public:
  // Empties the file if it exists. The error names the path.
  static Result<JsonArrayFile> create(const std::string& path);
  // events: one or more, each on a line of its own, separated by ",\n".
  Status append(std::string_view events) override;
  std::optional<uint64_t> boundary() const override { return end_; }
  Result<uint64_t> keep_from(uint64_t boundary, std::string_view head) override;

 private:
  explicit JsonArrayFile(WrittenFile file) : file_(std::move(file)) {}
  WrittenFile file_;
  std::string scratch_;
  uint64_t end_ = 0;  // of the last event
  bool empty_ = true;
};

// "…" with quotes, as JSON wants it; bytes that are not UTF-8 become '?'.
std::string json_quoted(std::string_view text);

}  // namespace rueda::timeline
