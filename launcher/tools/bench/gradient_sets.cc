#include "launcher/tools/bench/gradient_sets.h"

#include <functional>
#include <iterator>

namespace rueda::bench {
namespace {

using Counts = std::vector<uint64_t>;

void add(Counts* counts, std::initializer_list<uint64_t> more) {
  counts->insert(counts->end(), more);
}

// He et al., "Deep Residual Learning" (2015), bottleneck blocks, table 1.
Counts resnet(std::initializer_list<int> stages) {
  Counts counts = {64 * 3 * 7 * 7, 64, 64};
  uint64_t in = 64, width = 64;
  for (const int blocks : stages) {
    for (int block = 0; block < blocks; ++block) {
      const uint64_t out = 4 * width;
      add(&counts,
          {width * in, width, width, width * width * 9, width, width, out * width, out, out});
      if (block == 0) add(&counts, {out * in, out, out});
      in = out;
    }
    width *= 2;
  }
  add(&counts, {1000 * 2048, 1000});
  return counts;
}

// Radford et al. (2019), the smallest model; the head shares the embedding.
Counts gpt2_small() {
  constexpr uint64_t d = 768;
  Counts counts = {50257 * d, 1024 * d};
  for (int layer = 0; layer < 12; ++layer) {
    add(&counts, {d, d, d * 3 * d, 3 * d, d * d, d, d, d, d * 4 * d, 4 * d, 4 * d * d, d});
  }
  add(&counts, {d, d});
  return counts;
}

// Devlin et al. (2018), the large model with its pooler, without the pre-training heads.
Counts bert_large() {
  constexpr uint64_t d = 1024;
  Counts counts = {30522 * d, 512 * d, 2 * d, d, d};
  for (int layer = 0; layer < 24; ++layer) {
    for (int projection = 0; projection < 4; ++projection) add(&counts, {d * d, d});
    add(&counts, {d, d, 4 * d * d, 4 * d, 4 * d * d, d, d, d});
  }
  add(&counts, {d * d, d});
  return counts;
}

// Simonyan and Zisserman (2014), configuration D.
Counts vgg16() {
  Counts counts;
  uint64_t in = 3;
  for (const uint64_t out : {64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512}) {
    add(&counts, {out * in * 9, out});
    in = out;
  }
  add(&counts, {4096 * 512 * 49, 4096, 4096 * 4096, 4096, 1000 * 4096, 1000});
  return counts;
}

struct Set {
  const char* name;
  std::function<Counts()> counts;
};

const Set kSets[] = {{"resnet50", [] { return resnet({3, 4, 6, 3}); }},
                     {"resnet101", [] { return resnet({3, 4, 23, 3}); }},
                     {"gpt2-small", gpt2_small},
                     {"bert-large", bert_large},
                     {"vgg16", vgg16}};

}  // namespace

std::string gradient_set_names() {
  std::string text;
  for (const Set& set : kSets) text += (text.empty() ? "" : ", ") + std::string(set.name);
  return text;
}

Result<std::vector<uint64_t>> gradient_counts(const std::string& name) {
  for (const Set& set : kSets) {
    if (name == set.name) return set.counts();
  }
  return invalid_argument("gradient set '" + name + "': expected one of " + gradient_set_names());
}

}  // namespace rueda::bench
