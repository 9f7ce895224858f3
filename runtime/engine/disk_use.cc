#include "runtime/engine/disk_use.h"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>

#include "collectives/base/unique_fd.h"

namespace rueda::engine {
namespace {

constexpr int kState = 3, kBlocked = 42;  // fields of /proc/PID/stat, from 1
constexpr size_t kMostText = 4096;        // they have some hundred bytes

// The next word, behind spaces and ends of lines; empty: there is none.
std::string_view next_word(std::string_view* text) {
  const size_t begin = text->find_first_not_of(" \n");
  if (begin == std::string_view::npos) return {};
  text->remove_prefix(begin);
  const std::string_view word = text->substr(0, text->find_first_of(" \n"));
  text->remove_prefix(word.size());
  return word;
}

std::optional<int64_t> number(std::string_view word) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

struct Text {
  char bytes[kMostText];
  size_t size = 0;
  std::string_view view() const { return {bytes, size}; }
};

void read_file(int pid, const char* name, Text* text) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
  const UniqueFd file(open(path, O_RDONLY | O_CLOEXEC));
  const ssize_t count = file.get() < 0 ? -1 : read(file.get(), text->bytes, sizeof(text->bytes));
  text->size = count < 0 ? 0 : static_cast<size_t>(count);
}

}  // namespace

std::optional<DiskUse> parse_disk_use(std::string_view stat, std::string_view io, int64_t ticks) {
  const size_t name_end = stat.rfind(')');  // the name may hold anything
  if (name_end == std::string_view::npos || ticks <= 0) return std::nullopt;
  stat.remove_prefix(name_end + 1);
  for (int field = kState; field < kBlocked; ++field) next_word(&stat);
  const std::optional<int64_t> blocked = number(next_word(&stat));
  if (!blocked) return std::nullopt;
  DiskUse use;
  use.blocked = *blocked * (1'000'000'000 / ticks);
  for (std::string_view key = next_word(&io); !key.empty(); key = next_word(&io)) {
    const int64_t value = number(next_word(&io)).value_or(0);
    if (key == "read_bytes:" || key == "write_bytes:") use.bytes += value;
  }
  return use;
}

std::optional<DiskUse> disk_use(int pid) {
  Text stat, io;
  read_file(pid, "stat", &stat);
  read_file(pid, "io", &io);
  return parse_disk_use(stat.view(), io.view(), sysconf(_SC_CLK_TCK));
}

}  // namespace rueda::engine
