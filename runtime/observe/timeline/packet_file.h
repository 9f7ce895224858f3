// PacketFile: packets of Perfetto's Trace message, one behind the other, compressed or not.
//
// Those to be compressed wait in memory until they are 64 KiB or one second old, since short
// members compress badly: that much a killed process may lose.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "runtime/observe/timeline/event.h"
#include "runtime/observe/timeline/event_file.h"
#include "runtime/observe/timeline/gzip_member.h"

namespace rueda::timeline {

class PacketFile final : public EventFile {
 public:
  // Empties the file if it exists. The error names the path.
  static Result<PacketFile> create(const TimelineFile& file);
  Status append(std::string_view packets) override;
  std::optional<uint64_t> boundary() const override;
  Result<uint64_t> keep_from(uint64_t boundary, std::string_view head) override;
  Status end() override;

 private:
  explicit PacketFile(WrittenFile file) : file_(std::move(file)) {}
  WrittenFile file_;
  std::unique_ptr<Gzip> gzip_;  // null: not compressed
  std::string waiting_;         // to be compressed
  Nanos waits_since_ = 0;
  uint64_t end_ = 0;
};

}  // namespace rueda::timeline
