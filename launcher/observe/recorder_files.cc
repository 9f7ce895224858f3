#include "launcher/observe/recorder_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "collectives/base/file_status.h"
#include "collectives/base/memory_file.h"
#include "collectives/base/utf8.h"
#include "launcher/output/replace_file.h"

namespace rueda::launcher {
namespace {

constexpr std::string_view kTrailer = "rueda flight recorder, known to its agent:\n";
constexpr size_t kMostTrailer = size_t{1} << 20;

const char* const kLives[] = {"running", "silent", "dead", "left"};

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// The value behind "key " at the beginning of a line; moves behind the line.
std::string take_line(std::string_view* text, std::string_view key) {
  if (!text->starts_with(key)) return "";
  const size_t end = std::min(text->find('\n'), text->size());
  std::string value(text->substr(key.size(), end - key.size()));
  text->remove_prefix(std::min(end + 1, text->size()));
  return value;
}

}  // namespace

Result<FlightMemory> FlightMemory::make() {
  RUEDA_ASSIGN_OR_RETURN(UniqueFd fd,
                         memory_file("rueda-flight", "cannot make a flight recorder's memory"));
  if (ftruncate(fd.get(), flight::kTotalBytes) != 0)
    return errno_status("cannot make a flight recorder's memory", errno);
  // A rank that shrank it would make its agent trip over missing pages.
  fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  void* at = mmap(nullptr, flight::kTotalBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return errno_status("cannot map a flight recorder's memory", errno);
  return FlightMemory(std::move(fd), static_cast<std::byte*>(at));
}

FlightMemory::FlightMemory(FlightMemory&& other) noexcept
    : fd_(std::move(other.fd_)), base_(std::exchange(other.base_, nullptr)) {}

FlightMemory::~FlightMemory() {
  if (base_ != nullptr) munmap(base_, flight::kTotalBytes);
}

std::string flight_file_name(Rank rank) { return "flight.rank" + std::to_string(rank) + ".bin"; }

Status write_flight_file(const std::string& folder, const RankRecord& record, ByteView memory,
                         int64_t now_ns, int64_t shift_ns) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string path = folder + "/" + flight_file_name(record.rank);
  std::string trailer(kTrailer);
  trailer += "rank " + std::to_string(record.rank) + "\nnow " + std::to_string(now_ns) +
             (shift_ns == 0 ? "" : "\nshift " + std::to_string(shift_ns)) + "\nlife " +
             kLives[static_cast<int>(record.life)] + "\nstate " + one_line(record.state) +
             "\nstacks\n" + record.stacks;
  const ByteView parts[] = {memory, std::as_bytes(std::span(trailer))};
  return replace_file(path, parts, "the flight recorder");
}

Result<RankRecord> parse_flight_file(ByteView bytes, int64_t* now_ns) {
  if (bytes.size() < flight::kTotalBytes + kTrailer.size() ||
      bytes.size() > flight::kTotalBytes + kMostTrailer) {
    return Status(Code::kDataLoss,
                  "it has " + std::to_string(bytes.size()) +
                      " bytes, which no flight recorder's file of this version has");
  }
  std::string_view text(reinterpret_cast<const char*>(bytes.data()) + flight::kTotalBytes,
                        bytes.size() - flight::kTotalBytes);
  if (!text.starts_with(kTrailer))
    return Status(Code::kDataLoss, "it is no flight recorder's file");
  text.remove_prefix(kTrailer.size());
  const auto number = [&](std::string_view key) {
    const std::string value = take_line(&text, key);
    int64_t out = -1;
    std::from_chars(value.data(), value.data() + value.size(), out);
    return out;
  };
  RankRecord record;
  const int64_t rank = number("rank ");
  if (rank < 0 || rank > INT32_MAX) return Status(Code::kDataLoss, "it does not say whose it is");
  record.rank = static_cast<Rank>(rank);
  *now_ns = number("now ");
  const int64_t shift = text.starts_with("shift ") ? number("shift ") : 0;
  const std::string life = take_line(&text, "life ");
  for (size_t i = 0; i < std::size(kLives); ++i) {
    if (life == kLives[i]) record.life = static_cast<RankRecord::Life>(i);
  }
  record.state = printable_text(take_line(&text, "state "));
  if (text.starts_with("stacks\n")) record.stacks = std::string(text.substr(7));
  auto flight = flight::read_flight(bytes.first(flight::kTotalBytes));
  if (flight.ok()) {
    record.flight = std::move(flight).value();
    flight::shift_times(&*record.flight, shift);
  } else if (flight.status().code() != Code::kFailedPrecondition) {
    return flight.status();
  }
  return record;
}

Result<FlightFiles> read_flight_files(const std::string& folder) {
  FlightFiles files;
  std::error_code error;
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("flight.rank") && name.ends_with(".bin"))
      paths.push_back(entry.path().string());
  }
  if (error)
    return Status(Code::kNotFound, "cannot read the folder '" + folder + "': " + error.message());
  if (paths.empty()) {
    return Status(Code::kNotFound,
                  "'" + folder +
                      "' has no flight recorder's files (flight.rank<N>.bin); they are "
                      "written with ruedarun --flight-recorder FOLDER");
  }
  std::sort(paths.begin(), paths.end());
  for (const std::string& path : paths) {
    std::ifstream in(path, std::ios::binary);
    std::vector<uint64_t> aligned((flight::kTotalBytes + kMostTrailer) / sizeof(uint64_t) + 1);
    in.read(reinterpret_cast<char*>(aligned.data()),
            static_cast<std::streamsize>(aligned.size() * sizeof(uint64_t)));
    int64_t now = 0;
    auto record = parse_flight_file(
        std::as_bytes(std::span(aligned)).first(static_cast<size_t>(in.gcount())), &now);
    if (!record.ok()) {
      files.problems.push_back(path + ": " + record.status().message());
      continue;
    }
    files.now_ns = std::max(files.now_ns, now);
    files.ranks.push_back(std::move(record).value());
  }
  std::sort(files.ranks.begin(), files.ranks.end(),
            [](const RankRecord& a, const RankRecord& b) { return a.rank < b.rank; });
  return files;
}

}  // namespace rueda::launcher
