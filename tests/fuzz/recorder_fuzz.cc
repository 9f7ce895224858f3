// A flight recorder's memory, damaged anyhow: read without going astray, and explained. The reader
// gets memory of exactly its size, so a sanitizer sees a byte beyond it.
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/base/utf8.h"
#include "launcher/observe/status_report.h"
#include "tests/fuzz/input.h"

namespace rueda::fuzz {
namespace {

using namespace flight;

class Memory {
 public:
  Memory() : bytes_(new std::byte[kTotalBytes]()) {
    Header header = {};
    header.magic = kMagic;
    header.version = kVersion;
    header.header_bytes = sizeof(Header);
    header.total_bytes = kTotalBytes;
    header.layout = layout_hash();
    header.size = 2;
    header.pid = 1;
    std::memcpy(bytes_.get(), &header, sizeof(header));
  }
  ByteView view() const { return {bytes_.get(), kTotalBytes}; }
  void put(size_t at, std::string_view bytes) {
    const size_t count = std::min(bytes.size(), kTotalBytes - at);
    if (count == 0) return;
    std::vector<std::byte> before(bytes_.get() + at, bytes_.get() + at + count);
    changes_.emplace_back(at, std::move(before));
    std::memcpy(bytes_.get() + at, bytes.data(), count);
  }
  // As it was: clearing all of it each time would take most of the time.
  void restore() {
    for (; !changes_.empty(); changes_.pop_back())
      std::memcpy(bytes_.get() + changes_.back().first, changes_.back().second.data(),
                  changes_.back().second.size());
  }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::vector<std::pair<size_t, std::vector<std::byte>>> changes_;
};

void change(Input* input, Memory* memory) {
  const auto what = input->number<uint8_t>();
  const size_t index = what / 8 % 4;  // the same few again and again, so that they meet
  switch (what % 8) {
    case 0: memory->put(input->number<uint8_t>() % sizeof(Header), input->bytes(8)); break;
    case 1: memory->put(offsetof(Header, submitted), input->bytes(7 * kWord)); break;
    case 2: memory->put(kMailOffset, input->bytes(32)); break;
    case 3: memory->put(kSitesOffset + index * sizeof(Site), input->bytes(24)); break;
    case 4:
      memory->put(kTemplatesOffset + index * sizeof(Record), input->bytes(sizeof(Record)));
      break;
    case 5:
      memory->put(kPlanOffset + index * sizeof(PlanEntry), input->bytes(sizeof(PlanEntry)));
      break;
    case 6: memory->put(input->number<uint32_t>() % kTotalBytes, input->bytes(8)); break;
    default: memory->put(kRecordsOffset + index * sizeof(Record), input->bytes(sizeof(Record)));
  }
}

bool is_printable(const std::string& text) {
  return is_valid_utf8(text) && std::none_of(text.begin(), text.end(), [](char c) {
           return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
         });
}

launcher::RankRecord look(const Memory& memory, Rank rank) {
  launcher::RankRecord record;
  record.rank = rank;
  const std::string mail = read_mail(memory.view());
  expect(mail.size() <= kMailBytes && is_valid_utf8(mail), "mail is bounded and UTF-8");
  expect(waiting_since(memory.view()).size() <= 2 * kRecords, "no more wait than there are");
  auto snapshot = read_flight(memory.view());
  if (!snapshot.ok()) return record;
  expect(snapshot.value().operations.size() <= kRecords + kPlanEntries * kTemplates,
         "there are no more operations than records");
  for (const Operation& operation : snapshot.value().operations) {
    expect(is_printable(operation.name) && is_printable(operation.site), "texts can be printed");
    expect(is_valid(operation.kind), "kinds exist");
    expect(operation.shape.size() <= kMaxDims, "shapes are bounded");
  }
  record.flight = std::move(snapshot).value();
  return record;
}

}  // namespace
}  // namespace rueda::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rueda;
  static fuzz::Memory memories[2];
  fuzz::Input input(data, size);
  for (int changes = 0; changes < 64 && !input.empty(); ++changes)
    fuzz::change(&input, &memories[input.number<uint8_t>() % 2]);
  std::vector<launcher::RankRecord> ranks;
  for (Rank rank = 0; rank < 2; ++rank) ranks.push_back(fuzz::look(memories[rank], rank));
  for (const std::string& line : launcher::explain(ranks, 1'000'000'000))
    fuzz::expect(fuzz::is_printable(line), "a line is a line of UTF-8");
  const launcher::JobStatus job{"job", "train.py", 1'000'000'000, ranks};
  fuzz::expect(is_valid_utf8(launcher::status_json(job)), "JSON is UTF-8");
  fuzz::expect(is_valid_utf8(launcher::status_text(job)), "what is shown is UTF-8");
  for (fuzz::Memory& memory : memories) memory.restore();
  return 0;
}
