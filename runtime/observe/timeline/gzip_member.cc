#include "runtime/observe/timeline/gzip_member.h"

#include <dlfcn.h>
#include <zlib.h>

#include <array>
#include <cstring>

namespace rueda::timeline {
namespace {

constexpr const char* kLibrary = "libz.so.1";
constexpr int kLevel = 6;
constexpr int kRawDeflate = -15;  // with a window of 32 KiB
// Until the length of the member: no name, no time, an extra field of 12 bytes.
constexpr std::array<char, 16> kHead = {'\x1f', '\x8b', 8,  4, 0,   0,   0, 0,
                                        0,      '\xff', 12, 0, 'R', 'u', 8, 0};
constexpr size_t kHeader = kHead.size() + sizeof(uint64_t);
constexpr size_t kTrailer = 2 * sizeof(uint32_t);

template <typename Number>
void put(Number number, char* at) {
  for (size_t i = 0; i < sizeof(Number); ++i) at[i] = static_cast<char>(number >> (8 * i));
}

uint64_t length_at(const char* at) {
  uint64_t length = 0;
  for (size_t i = 0; i < sizeof(length); ++i)
    length |= static_cast<uint64_t>(static_cast<unsigned char>(at[i])) << (8 * i);
  return length;
}

// The few calls that are needed, under their own names.
struct Calls {
  void* library = nullptr;
  bool complete = true;

  template <typename Function>
  void find(Function** function, const char* name) {
    *function = reinterpret_cast<Function*>(dlsym(library, name));
    complete = complete && *function != nullptr;
  }

  decltype(::deflateInit2_)* begin = nullptr;
  decltype(::deflateBound)* bound = nullptr;
  decltype(::deflate)* run = nullptr;
  decltype(::deflateReset)* reset = nullptr;
  decltype(::deflateEnd)* end = nullptr;
  decltype(::crc32)* checksum = nullptr;
};

class Deflater final : public Gzip {
 public:
  explicit Deflater(const Calls& calls) : calls_(calls) {}
  ~Deflater() override {
    if (begun_) calls_.end(&stream_);
  }
  bool begin() {
    begun_ = calls_.begin(&stream_, kLevel, Z_DEFLATED, kRawDeflate, 8, Z_DEFAULT_STRATEGY,
                          ZLIB_VERSION, static_cast<int>(sizeof(stream_))) == Z_OK;
    return begun_;
  }

  Status append_member(std::string_view text, std::string* out) override {
    const size_t at = out->size();
    const size_t most = calls_.bound(&stream_, text.size());
    out->resize(at + kHeader + most + kTrailer);
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    stream_.avail_in = static_cast<uInt>(text.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out->data() + at + kHeader);
    stream_.avail_out = static_cast<uInt>(most);
    const bool done = calls_.run(&stream_, Z_FINISH) == Z_STREAM_END;
    const size_t length = kHeader + (most - stream_.avail_out) + kTrailer;
    if (calls_.reset(&stream_) != Z_OK || !done) {
      out->resize(at);
      return {Code::kInternal, "zlib cannot compress a part of the timeline"};
    }
    out->resize(at + length);
    char* const member = out->data() + at;
    std::memcpy(member, kHead.data(), kHead.size());
    put(static_cast<uint64_t>(length), member + kHead.size());
    const auto* const bytes = reinterpret_cast<const Bytef*>(text.data());
    const auto checksum = calls_.checksum(0, bytes, static_cast<uInt>(text.size()));
    put(static_cast<uint32_t>(checksum), member + length - kTrailer);
    put(static_cast<uint32_t>(text.size()), member + length - sizeof(uint32_t));
    return {};
  }

 private:
  const Calls calls_;
  z_stream stream_ = {};
  bool begun_ = false;
};

}  // namespace

std::string_view whole_members(std::string_view bytes) {
  size_t at = 0;
  while (bytes.size() - at >= kHeader &&
         std::memcmp(bytes.data() + at, kHead.data(), kHead.size()) == 0) {
    const uint64_t length = length_at(bytes.data() + at + kHead.size());
    if (length < kHeader + kTrailer || length > bytes.size() - at) break;
    at += length;
  }
  return bytes.substr(0, at);
}

Result<std::unique_ptr<Gzip>> Gzip::open() {
  Calls calls;
  calls.library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);  // stays
  if (calls.library != nullptr) {
    calls.find(&calls.begin, "deflateInit2_");
    calls.find(&calls.bound, "deflateBound");
    calls.find(&calls.run, "deflate");
    calls.find(&calls.reset, "deflateReset");
    calls.find(&calls.end, "deflateEnd");
    calls.find(&calls.checksum, "crc32");
  }
  if (calls.library != nullptr && calls.complete) {
    auto deflater = std::make_unique<Deflater>(calls);
    if (deflater->begin()) return std::unique_ptr<Gzip>(std::move(deflater));
  }
  return unavailable(std::string("a timeline is compressed by zlib, and ") + kLibrary +
                     " cannot be used here: leave out the .gz");
}

}  // namespace rueda::timeline
