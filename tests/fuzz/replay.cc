// For compilers without libFuzzer: runs every file of the folders it is given once, then changed
// copies of them, as many as RUEDA_FUZZ_CHANGES says (default 2,000), from a fixed seed.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "tests/fuzz/input.h"

namespace {

using Bytes = std::vector<uint8_t>;

Bytes changed(Bytes bytes, const std::vector<Bytes>& corpus, std::mt19937_64* dice) {
  const auto below = [&](size_t bound) { return static_cast<size_t>((*dice)() % bound); };
  for (size_t changes = 1 + below(4); changes > 0; --changes) {
    const size_t at = below(bytes.size() + 1);
    const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    switch (below(5)) {
      case 0: bytes.insert(place, static_cast<uint8_t>((*dice)())); break;
      case 1: bytes.resize(at); break;
      case 2: {  // the end of another one
        const Bytes& other = corpus[below(corpus.size())];
        bytes.resize(at);
        const size_t from = below(other.size() + 1);
        bytes.insert(bytes.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
        break;
      }
      default:
        if (at < bytes.size()) bytes[at] ^= static_cast<uint8_t>(1u << below(8));
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Bytes> corpus;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      std::ifstream file(entry.path(), std::ios::binary);
      corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER...\n", argv[0]);
    return 2;
  }
  for (const Bytes& bytes : corpus) LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  const char* const wish = std::getenv("RUEDA_FUZZ_CHANGES");
  const long changes = wish != nullptr ? std::strtol(wish, nullptr, 10) : 2000;
  std::mt19937_64 dice(1);
  for (long i = 0; i < changes; ++i) {
    const Bytes bytes = changed(corpus[dice() % corpus.size()], corpus, &dice);
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::printf("%zu inputs and %ld changed ones: no finding\n", corpus.size(), changes);
  return 0;
}
