// Numbers of elements of the gradients of well-known models, computed by formula: nothing is
// downloaded. Source: the models' published layer tables; the totals are checked by a test.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/base/status.h"

namespace rueda::bench {

// "resnet50, resnet101, gpt2-small, bert-large, vgg16"
std::string gradient_set_names();

// In the order of the forward pass. InvalidArgument lists the names.
Result<std::vector<uint64_t>> gradient_counts(const std::string& name);

}  // namespace rueda::bench
