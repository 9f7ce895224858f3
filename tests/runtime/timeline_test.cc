#include "runtime/timeline.h"

#include <catch2/catch.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <fstream>
#include <sstream>

#include "proto/utf8.h"

namespace rueda::testing {
namespace {

using runtime::json_quoted;
using runtime::Timeline;

// Reads one JSON value strictly; only says whether it is one.
class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}
  bool whole() {
    const bool good = value();
    space();
    return good && at_ == text_.size();
  }

 private:
  void space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool take(char c) {
    space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool string() {
    if (!take('"')) return false;
    for (; at_ < text_.size(); ++at_) {
      const auto c = static_cast<unsigned char>(text_[at_]);
      if (c < 0x20) return false;
      if (c == '"') return ++at_, true;
      if (c != '\\') continue;
      if (++at_ >= text_.size()) return false;
      if (text_[at_] == 'u') {
        for (int i = 0; i < 4; ++i) {
          if (++at_ >= text_.size() || !std::isxdigit(static_cast<unsigned char>(text_[at_])))
            return false;
        }
      } else if (std::string_view("\"\\/bfnrt").find(text_[at_]) == std::string_view::npos) {
        return false;
      }
    }
    return false;
  }
  bool list(char end, bool named) {
    if (take(end)) return true;
    do {
      if (named && !(string() && take(':'))) return false;
      if (!value()) return false;
    } while (take(','));
    return take(end);
  }
  bool value() {
    space();
    if (at_ >= text_.size()) return false;
    if (text_[at_] == '"') return string();
    if (take('{')) return list('}', true);
    if (take('[')) return list(']', false);
    const size_t begin = at_;
    if (text_[at_] == '-') ++at_;
    while (at_ < text_.size() &&
           (std::isdigit(static_cast<unsigned char>(text_[at_])) || text_[at_] == '.'))
      ++at_;
    return at_ > begin;
  }

  std::string_view text_;
  size_t at_ = 0;
};

class Folder {
 public:
  Folder() {
    char name[] = "timeline_test.XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    path_ = name;
  }
  ~Folder() {
    for (const std::string& file : files_) unlink(file.c_str());
    rmdir(path_.c_str());
  }
  std::string file(const std::string& name) {
    files_.push_back(path_ + "/" + name);
    return files_.back();
  }

 private:
  std::string path_;
  std::vector<std::string> files_;
};

std::string read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

bool exists(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0;
}

const std::string kHostile[] = {"plain",
                                "with \"quotes\" and \\",
                                "line\nbreak\ttab\x01\x7f",
                                "\xff\xfe not text",
                                "cut \xe2\x82",
                                "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x92\x83",
                                "\xed\xa0\x80",
                                "{rank}",
                                "",
                                "</script>%s%n"};

TEST_CASE("any bytes become a JSON string in UTF-8", "[timeline]") {
  for (const std::string& text : kHostile) {
    const std::string quoted = json_quoted(text);
    INFO(quoted);
    CHECK(JsonReader(quoted).whole());
    CHECK(wire::is_valid_utf8(quoted));
  }
  CHECK(json_quoted("a\"b\\c\n") == "\"a\\\"b\\\\c\\u000a\"");
  CHECK(json_quoted("\xff\x41\xe2\x82") == "\"?A??\"");
  CHECK(json_quoted("\xe2\x82\xac") == "\"\xe2\x82\xac\"");
  CHECK(json_quoted(std::string(1, '\0')) == "\"\\u0000\"");
}

TEST_CASE("a closed timeline is one JSON array, whatever the tensors are called", "[timeline]") {
  Folder folder;
  const std::string path = folder.file("trace.json");
  {
    Timeline timeline = std::move(Timeline::open(path, 0)).value();
    REQUIRE(timeline.enabled());
    const auto now = std::chrono::steady_clock::now();
    for (const std::string& name : kHostile) {
      timeline.phase(name, "NEGOTIATE_ALLREDUCE", now, now + std::chrono::microseconds(5), 16, 0);
      timeline.phase(name, "ALLREDUCE", now, now + std::chrono::microseconds(7), 16, 0);
    }
  }
  const std::string text = read(path);
  CHECK(JsonReader(text).whole());
  CHECK(wire::is_valid_utf8(text));
  CHECK(text.find("\"dur\":7") != std::string::npos);
  CHECK(text.find("start_time_since_epoch_in_micros") != std::string::npos);
}

TEST_CASE("a timeline without events is valid too", "[timeline]") {
  Folder folder;
  const std::string path = folder.file("empty.json");
  { REQUIRE(Timeline::open(path, 0).ok()); }
  CHECK(JsonReader(read(path)).whole());
}

TEST_CASE("only rank 0 writes, unless each rank has its own file", "[timeline]") {
  Folder folder;
  const std::string shared = folder.file("all.json");
  CHECK_FALSE(Timeline::open(shared, 1)->enabled());
  CHECK_FALSE(exists(shared));
  const std::string own = folder.file("of-3.json");
  std::string pattern = own;
  pattern.replace(pattern.find("3.json"), 1, "{rank}");
  CHECK(Timeline::open(pattern, 3)->enabled());
  CHECK(exists(own));
  CHECK_FALSE(Timeline::open("", 0)->enabled());
}

TEST_CASE("a file that cannot be written is an error that names it", "[timeline]") {
  const auto timeline = Timeline::open("no/such/folder/trace.json", 0);
  REQUIRE_FALSE(timeline.ok());
  CHECK(timeline.status().message().find("no/such/folder/trace.json") != std::string::npos);
  CHECK(timeline.status().message().find("RUEDA_TIMELINE") != std::string::npos);
}

}  // namespace
}  // namespace rueda::testing
