#include "launcher/agent/store_streams.h"

#include <algorithm>

#include "proto/store_codec.h"
#include "runtime/rendezvous/store_frame.h"

namespace rueda::launcher {
namespace {

using rendezvous::frame_length;
using rendezvous::kFrameHeaderBytes;
using rendezvous::kMaxFrameBytes;

// Of the whole frame at the beginning; 0: there is none yet. kNone: what is there is no frame.
constexpr size_t kNone = ~size_t{0};
size_t frame_at(std::string_view bytes) {
  if (bytes.size() < kFrameHeaderBytes) return 0;
  const size_t length = frame_length(std::string(bytes.substr(0, kFrameHeaderBytes)));
  if (length > kMaxFrameBytes) return kNone;
  return bytes.size() < kFrameHeaderBytes + length ? 0 : kFrameHeaderBytes + length;
}

}  // namespace

void StoreStreams::from_rank(MemberId member, std::string_view bytes, bool end, const Send& send) {
  Stream& stream = streams_[member];
  if (stream.raw) {
    send(member, bytes, end);
    if (end) streams_.erase(member);
    return;
  }
  stream.request += bytes;
  size_t used = 0;
  for (;;) {
    const std::string_view rest = std::string_view(stream.request).substr(used);
    const size_t size = frame_at(rest);
    if (size == 0) break;
    wire::StoreRequest request;
    if (size == kNone ||
        !wire::decode(rest.substr(kFrameHeaderBytes, size - kFrameHeaderBytes), &request).ok()) {
      stream.raw = true;
      break;
    }
    stream.unanswered.emplace_back(request.id, rest.substr(0, size));
    stream.bytes += size;
    used += size;
  }
  if (stream.unanswered.size() > kMostRequests || stream.bytes > kMostBytes) stream.raw = true;
  const std::string whole = stream.request.substr(0, stream.raw ? std::string::npos : used);
  stream.request.erase(0, whole.size());
  if (stream.raw) stream.unanswered.clear();
  if (!whole.empty() || end) send(member, whole, end);
  if (end) streams_.erase(member);
}

std::string StoreStreams::from_store(MemberId member, std::string_view bytes, bool end) {
  const auto found = streams_.find(member);
  if (found == streams_.end() || found->second.raw) return std::string(bytes);
  Stream& stream = found->second;
  stream.answer += bytes;
  size_t used = 0;
  for (;;) {
    const std::string_view rest = std::string_view(stream.answer).substr(used);
    const size_t size = frame_at(rest);
    if (size == 0 || size == kNone) break;
    wire::StoreReply reply;
    if (wire::decode(rest.substr(kFrameHeaderBytes, size - kFrameHeaderBytes), &reply).ok()) {
      const auto asked = std::ranges::find_if(
          stream.unanswered, [&](const auto& one) { return one.first == reply.id; });
      if (asked != stream.unanswered.end()) {
        stream.bytes -= asked->second.size();
        stream.unanswered.erase(asked);
      }
    }
    used += size;
  }
  std::string whole = stream.answer.substr(0, end ? std::string::npos : used);
  stream.answer.erase(0, whole.size());
  if (end) streams_.erase(found);
  return whole;
}

std::vector<MemberId> StoreStreams::ask_again(const Send& send) {
  std::vector<MemberId> broken;
  for (auto& [member, stream] : streams_) {
    stream.answer.clear();
    if (stream.raw) {
      broken.push_back(member);
      continue;
    }
    for (const auto& [id, frame] : stream.unanswered) send(member, frame, false);
  }
  for (const MemberId member : broken) streams_.erase(member);
  return broken;
}

}  // namespace rueda::launcher
