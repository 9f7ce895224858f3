#include "runtime/observe/timeline/json_array_file.h"

#include <utility>

#include <spdlog/fmt/fmt.h>

#include "collectives/base/utf8.h"

namespace rueda::timeline {

std::string json_quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : clean_text(text, std::string::npos)) {
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

Result<JsonArrayFile> JsonArrayFile::create(const std::string& path) {
  RUEDA_ASSIGN_OR_RETURN(WrittenFile made, WrittenFile::create(path));
  JsonArrayFile file(std::move(made));
  RUEDA_RETURN_IF_ERROR(file.file_.write(std::string("[") + std::string(kTimelineEnd), 0));
  file.end_ = 1;
  return file;
}

Status JsonArrayFile::append(std::string_view events) {
  if (events.empty()) return {};
  scratch_ = empty_ ? "\n" : ",\n";
  scratch_ += events;
  const uint64_t end = end_ + scratch_.size();
  scratch_ += kTimelineEnd;
  Status written = file_.write(scratch_, end_);
  if (!written.ok()) {
    file_.end_with(kTimelineEnd, end_);
    return written;
  }
  end_ = end;
  empty_ = false;
  return {};
}

Result<uint64_t> JsonArrayFile::keep_from(uint64_t boundary, std::string_view head) {
  // What is kept begins with the comma that separates it from what came before.
  const std::string begin = "[\n" + std::string(head);
  RUEDA_RETURN_IF_ERROR(file_.rewrite(begin, boundary, end_, kTimelineEnd));
  end_ = begin.size() + end_ - boundary;
  return begin.size();
}

}  // namespace rueda::timeline
