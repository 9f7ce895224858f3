#include "runtime/rendezvous/store_journal.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "proto/store_codec.h"

namespace rueda::rendezvous {
namespace {

// Of one entry: how many bytes follow, whose request it is or how many members, which epoch began.
struct Head {
  uint64_t bytes = 0;
  uint64_t member = 0;
  uint64_t epoch = 0;  // kAnswered: none; it is an answer
};
constexpr uint64_t kAnswered = ~uint64_t{0};

std::string bytes_of(const StoreJournal::Entry& entry) {
  std::string body;
  if (entry.answered) {
    body = wire::encode(*entry.answered);
  } else if (entry.epoch == 0) {
    body = wire::encode(entry.request);
  } else {
    body.assign(reinterpret_cast<const char*>(entry.members.data()),
                entry.members.size() * sizeof(uint64_t));
  }
  const Head head = {body.size(), entry.member, entry.answered ? kAnswered : entry.epoch};
  return std::string(reinterpret_cast<const char*>(&head), sizeof(head)) + body;
}

bool write_at(int fd, uint64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    offset += static_cast<uint64_t>(wrote);
    bytes.remove_prefix(static_cast<size_t>(wrote));
  }
  return true;
}

// The whole entries at the beginning; `used`: their bytes.
std::vector<StoreJournal::Entry> parse(std::string_view rest, uint64_t* used) {
  std::vector<StoreJournal::Entry> entries;
  *used = 0;
  for (Head head; rest.size() >= sizeof(head);) {
    std::memcpy(&head, rest.data(), sizeof(head));
    if (head.bytes > rest.size() - sizeof(head)) break;
    const std::string_view body = rest.substr(sizeof(head), head.bytes);
    StoreJournal::Entry entry;
    entry.member = head.member;
    if (head.epoch == kAnswered) {
      if (!wire::decode(body, &entry.answered.emplace()).ok()) break;
    } else if (head.epoch != 0) {
      entry.epoch = head.epoch;
      entry.members.resize(body.size() / sizeof(uint64_t));
      std::memcpy(entry.members.data(), body.data(), entry.members.size() * sizeof(uint64_t));
    } else if (!wire::decode(body, &entry.request).ok()) {
      break;
    }
    entries.push_back(std::move(entry));
    rest.remove_prefix(sizeof(head) + head.bytes);
    *used += sizeof(head) + head.bytes;
  }
  return entries;
}

std::string read_all(int fd) {
  struct stat info = {};
  if (fstat(fd, &info) != 0) return {};
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got =
        pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace

// What was half written goes.
StoreJournal::StoreJournal(Files files) : files_(files) {
  parse(read_all(fd()), &bytes_);
  bytes_rewritten_ = bytes_;
  [[maybe_unused]] const int ignored = ftruncate(fd(), static_cast<off_t>(bytes_));
}

std::vector<StoreJournal::Entry> StoreJournal::read() const {
  uint64_t used = 0;
  return parse(read_all(fd()), &used);
}

// Where there is no memory left, the store that comes after does not know of it.
void StoreJournal::add(const Entry& entry) {
  const std::string bytes = bytes_of(entry);
  if (write_at(fd(), bytes_, bytes))
    bytes_ += bytes.size();
  else [[maybe_unused]]
    const int ignored = ftruncate(fd(), static_cast<off_t>(bytes_));
}

void StoreJournal::rewrite(const std::vector<Entry>& all) {
  const uint32_t next = (files_.current->load() & 1U) ^ 1U;
  const int fd = files_.fds[next];
  if (ftruncate(fd, 0) != 0) return;
  std::string bytes;
  for (const Entry& entry : all) bytes += bytes_of(entry);
  if (!write_at(fd, 0, bytes)) return;
  files_.current->store(next);
  [[maybe_unused]] const int ignored = ftruncate(files_.fds[next ^ 1U], 0);
  bytes_ = bytes_rewritten_ = bytes.size();
}

}  // namespace rueda::rendezvous
