#include "runtime/observe/timeline/packet_file.h"

#include <utility>

#include "collectives/host/monotonic.h"

namespace rueda::timeline {
namespace {

constexpr size_t kMember = 64 << 10;           // bytes before they are compressed
constexpr Nanos kLongestWait = 1'000'000'000;  // of what is not so many yet

}  // namespace

Result<PacketFile> PacketFile::create(const TimelineFile& file) {
  std::unique_ptr<Gzip> gzip;
  if (file.form == Form::kCompressedPackets) {
    auto opened = Gzip::open();
    if (!opened.ok()) {
      const std::string why = opened.status().message();
      return opened.status().with_message("cannot write the timeline '" + file.path + "': " + why);
    }
    gzip = std::move(opened).value();
  }
  RUEDA_ASSIGN_OR_RETURN(WrittenFile made, WrittenFile::create(file.path));
  PacketFile result(std::move(made));
  result.gzip_ = std::move(gzip);
  return result;
}

Status PacketFile::append(std::string_view packets) {
  if (gzip_ == nullptr) {
    RUEDA_RETURN_IF_ERROR(file_.write(packets, end_));
    end_ += packets.size();
    return {};
  }
  const Nanos now = host::monotonic_ns();
  if (waiting_.empty()) waits_since_ = now;
  waiting_ += packets;
  if (waiting_.size() < kMember && now - waits_since_ < kLongestWait) return {};
  return end();
}

Status PacketFile::end() {
  if (waiting_.empty()) return {};
  std::string member;
  RUEDA_RETURN_IF_ERROR(gzip_->append_member(waiting_, &member));
  waiting_.clear();
  RUEDA_RETURN_IF_ERROR(file_.write(member, end_));
  end_ += member.size();
  return {};
}

std::optional<uint64_t> PacketFile::boundary() const {
  if (!waiting_.empty()) return std::nullopt;
  return end_;
}

Result<uint64_t> PacketFile::keep_from(uint64_t boundary, std::string_view head) {
  RUEDA_RETURN_IF_ERROR(end());
  std::string member;
  if (gzip_ != nullptr) {
    RUEDA_RETURN_IF_ERROR(gzip_->append_member(head, &member));
    head = member;
  }
  RUEDA_RETURN_IF_ERROR(file_.rewrite(head, boundary, end_, ""));
  end_ = head.size() + end_ - boundary;
  return head.size();
}

}  // namespace rueda::timeline
