#include "runtime/timeline.h"

#include <cerrno>

#include <spdlog/fmt/fmt.h>

#include "proto/utf8.h"

namespace rueda::runtime {
namespace {

int64_t microseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time).count();
}

}  // namespace

std::string json_quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : wire::clean_text(text, std::string::npos)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\u{:04x}", byte);
    } else {
      result += c;
    }
  }
  return result + "\"";
}

void Timeline::Close::operator()(std::FILE* file) const {
  std::fputs("\n]\n", file);
  std::fclose(file);
}

Result<Timeline> Timeline::open(const std::string& path, Rank rank) {
  Timeline timeline;
  const size_t mark = path.find("{rank}");
  if (path.empty() || (mark == std::string::npos && rank != 0)) return timeline;
  std::string name = path;
  if (mark != std::string::npos) name.replace(mark, 6, std::to_string(rank));
  timeline.file_.reset(std::fopen(name.c_str(), "we"));
  if (timeline.file_ == nullptr)
    return errno_status("cannot write the timeline '" + name + "' (RUEDA_TIMELINE)", errno);
  const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  fmt::print(
      timeline.file_.get(),
      "[\n{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,\"args\":{{\"name\":\"rank {}\","
      "\"start_time_since_epoch_in_micros\":{}}}}}",
      rank, std::chrono::duration_cast<std::chrono::microseconds>(since_epoch).count());
  return timeline;
}

int Timeline::row(const std::string& tensor) {
  const auto [it, is_new] = rows_.try_emplace(tensor, static_cast<int>(rows_.size()) + 1);
  if (is_new) {
    fmt::print(file_.get(),
               ",\n{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{},\"args\":{{\"name\":{}}}}}",
               it->second, json_quoted(tensor));
  }
  return it->second;
}

void Timeline::phase(const std::string& tensor, const std::string& name, Time begin, Time end,
                     int64_t bytes, int64_t batch) {
  if (!enabled()) return;
  const int pid = row(tensor);
  fmt::print(file_.get(),
             ",\n{{\"name\":{},\"ph\":\"X\",\"pid\":{},\"tid\":0,\"ts\":{},\"dur\":{},"
             "\"args\":{{\"bytes\":{},\"batch\":{}}}}}",
             json_quoted(name), pid, microseconds(begin - origin_), microseconds(end - begin),
             bytes, batch);
}

}  // namespace rueda::runtime
