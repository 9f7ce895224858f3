#include "runtime/observe/timeline/timeline_file.h"

#include <protozero/varint.hpp>

#include "runtime/observe/timeline/gzip_member.h"

namespace rueda::timeline {
namespace {

constexpr std::string_view kBegin = "[\n";
constexpr std::string_view kRank = "{rank}";
constexpr std::string_view kCompressed = ".gz";
constexpr char kPacket = 0x0a;  // Trace.packet, a message

// Where the extension begins; that of a compressed file has two dots.
size_t extension_of(const std::string& path) {
  const size_t name = path.find_last_of('/') + 1;  // 0 where there is none
  const bool is_compressed = form_of(path) == Form::kCompressedPackets;
  const size_t end = path.size() - (is_compressed ? kCompressed.size() : 0);
  const size_t dot = path.substr(0, end).find_last_of('.');
  return dot == std::string::npos || dot <= name ? end : dot;
}

}  // namespace

Form form_of(std::string_view path) {
  const bool is_compressed = path.ends_with(kCompressed);
  if (is_compressed) path.remove_suffix(kCompressed.size());
  if (!path.ends_with(".pftrace") && !path.ends_with(".perfetto-trace")) return Form::kJson;
  return is_compressed ? Form::kCompressedPackets : Form::kPackets;
}

std::optional<TimelineFile> timeline_file(const std::string& path, bool all_ranks, Rank rank) {
  if (path.empty() || path == "DYNAMIC") return std::nullopt;
  TimelineFile file{path, true, form_of(path)};
  const size_t mark = path.find(kRank);
  if (mark != std::string::npos) {
    file.path.replace(mark, kRank.size(), std::to_string(rank));
    return file;
  }
  if (!all_ranks) {
    if (rank != 0) return std::nullopt;
    file.all_ranks = false;
    return file;
  }
  file.path.insert(extension_of(path), ".rank" + std::to_string(rank));
  return file;
}

std::string_view whole_events(std::string_view text) {
  if (!text.starts_with(kBegin)) return {};
  text.remove_prefix(kBegin.size());
  if (text.ends_with(kTimelineEnd)) {
    text.remove_suffix(kTimelineEnd.size());
    return text;
  }
  // Only lines that have ended were written as a whole.
  const size_t end = text.find_last_of('\n');
  text = text.substr(0, end == std::string_view::npos ? 0 : end);
  while (!text.empty() &&
         (text.back() == ',' || text.back() == '\n' || text.back() == ']' || text.back() == '\0')) {
    text.remove_suffix(1);
  }
  return text;
}

std::string_view whole_packets(std::string_view bytes) {
  const char* at = bytes.data();
  const char* const end = at + bytes.size();
  while (at != end && *at == kPacket) {
    const char* next = at + 1;
    try {
      const uint64_t length = protozero::decode_varint(&next, end);
      if (length > static_cast<uint64_t>(end - next)) break;
      at = next + length;
    } catch (const protozero::exception&) {
      break;
    }
  }
  return bytes.substr(0, static_cast<size_t>(at - bytes.data()));
}

std::string_view whole_part(Form form, std::string_view bytes) {
  if (form == Form::kJson) return whole_events(bytes);
  return form == Form::kPackets ? whole_packets(bytes) : whole_members(bytes);
}

}  // namespace rueda::timeline
