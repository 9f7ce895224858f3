// Trains a small network on handwritten digits, data-parallel: the job of train_digits.py in C++.
//
//   ruedarun -np 2 train_digits [--data FILE] [--epochs N]
//
// What makes it data-parallel is marked [1] to [5]; the rest would be the same on one rank.
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "rueda/rueda.hpp"

namespace {

constexpr int kPixels = 64, kHidden = 64, kClasses = 10;
constexpr int kBatch = 16;  // per rank
constexpr float kLearningRate = 0.02f, kMomentum = 0.9f;
constexpr int kWarmUpEpochs = 3;

struct Digits {
  std::vector<float> pixels;  // count x 64, 0 to 1
  std::vector<int> labels;    // count
  int count() const { return static_cast<int>(labels.size()); }
  const float* image(int i) const { return &pixels[static_cast<std::size_t>(i) * kPixels]; }
};

// Lines of 64 pixel values (0 to 16) and the label, separated by commas, gzipped.
Digits load_digits(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) throw std::runtime_error("cannot open " + path);
  Digits digits;
  char line[1024];
  while (gzgets(file, line, sizeof line) != nullptr) {
    const char *at = line, *end = line + std::strcspn(line, "\r\n");
    int values[kPixels + 1], n = 0;
    for (; n <= kPixels && at < end; ++n) {
      const auto [stop, problem] = std::from_chars(at, end, values[n]);
      if (problem != std::errc()) break;
      at = stop + (stop < end && *stop == ',' ? 1 : 0);
    }
    if (n != kPixels + 1 || at != end || values[kPixels] < 0 || values[kPixels] >= kClasses) {
      gzclose(file);
      throw std::runtime_error(path + ": line " + std::to_string(digits.count() + 1) +
                               " is not 64 pixels and a label");
    }
    for (int i = 0; i < kPixels; ++i) digits.pixels.push_back(static_cast<float>(values[i]) / 16);
    digits.labels.push_back(values[kPixels]);
  }
  gzclose(file);
  if (digits.count() == 0) throw std::runtime_error(path + " is empty");
  return digits;
}

// One parameter tensor with what training keeps beside it.
struct Parameter {
  std::string name;
  std::vector<float> value, gradient, velocity;
  Parameter(std::string its_name, std::size_t count)
      : name(std::move(its_name)), value(count), gradient(count), velocity(count) {}
};

// y = W x + b, W stored as outputs x inputs.
struct Linear {
  int inputs, outputs;
  Parameter weight, bias;

  Linear(const std::string& name, int in, int out, std::mt19937& random)
      : inputs(in),
        outputs(out),
        weight(name + ".weight", static_cast<std::size_t>(in * out)),
        bias(name + ".bias", static_cast<std::size_t>(out)) {
    std::normal_distribution<float> normal(0.0f, std::sqrt(2.0f / static_cast<float>(in)));
    for (float& w : weight.value) w = normal(random);
  }
  void forward(const float* x, float* y) const {
    for (int o = 0; o < outputs; ++o) {
      y[o] = std::inner_product(x, x + inputs, &weight.value[o * inputs], bias.value[o]);
    }
  }
  // Adds this sample's share to the gradients; writes dLoss/dx where somebody wants it.
  void backward(const float* x, const float* dy, float* dx) {
    if (dx != nullptr) std::fill_n(dx, inputs, 0.0f);
    for (int o = 0; o < outputs; ++o) {
      bias.gradient[o] += dy[o];
      for (int i = 0; i < inputs; ++i) {
        weight.gradient[o * inputs + i] += dy[o] * x[i];
        if (dx != nullptr) dx[i] += dy[o] * weight.value[o * inputs + i];
      }
    }
  }
};

// Two layers with a rectifier between them.
struct Network {
  Linear first, second;
  explicit Network(std::mt19937& random)
      : first("fc1", kPixels, kHidden, random), second("fc2", kHidden, kClasses, random) {}

  std::vector<Parameter*> parameters() {
    return {&first.weight, &first.bias, &second.weight, &second.bias};
  }
  void forward(const float* image, float* hidden, float* scores) const {
    first.forward(image, hidden);
    for (int i = 0; i < kHidden; ++i) hidden[i] = std::max(hidden[i], 0.0f);
    second.forward(hidden, scores);
  }
};

// Turns scores into dLoss/dscores of the mean cross-entropy; returns this sample's loss.
float softmax_loss(float* scores, int label, int batch) {
  const float highest = *std::max_element(scores, scores + kClasses);
  float sum = 0;
  for (int c = 0; c < kClasses; ++c) sum += scores[c] = std::exp(scores[c] - highest);
  for (int c = 0; c < kClasses; ++c) scores[c] /= sum;
  const float loss = -std::log(std::max(scores[label], 1e-30f));
  scores[label] -= 1.0f;
  for (int c = 0; c < kClasses; ++c) scores[c] /= static_cast<float>(batch);
  return loss;
}

// One step on this rank's samples; returns their mean loss.
float train_step(rueda::Context& hvd, Network& net, const Digits& digits, const int* samples,
                 float learning_rate) {
  for (Parameter* p : net.parameters()) std::fill(p->gradient.begin(), p->gradient.end(), 0.0f);
  float hidden[kBatch][kHidden], scores[kBatch][kClasses], loss = 0;
  for (int b = 0; b < kBatch; ++b) {
    net.forward(digits.image(samples[b]), hidden[b], scores[b]);
    loss += softmax_loss(scores[b], digits.labels[samples[b]], kBatch) / kBatch;
  }
  float dhidden[kBatch][kHidden];
  for (int b = 0; b < kBatch; ++b) net.second.backward(hidden[b], scores[b], dhidden[b]);

  // [3] Gradients are averaged over the ranks. The last layer's travel while the first layer's are
  // still being computed.
  std::vector<rueda::Request> pending;
  const auto average = [&](Parameter& p) {
    pending.push_back(hvd.allreduce_async(p.gradient, rueda::ReduceOp::kAverage, {.name = p.name}));
  };
  average(net.second.weight);
  average(net.second.bias);
  for (int b = 0; b < kBatch; ++b) {
    for (int i = 0; i < kHidden; ++i) dhidden[b][i] *= hidden[b][i] > 0 ? 1.0f : 0.0f;
    net.first.backward(digits.image(samples[b]), dhidden[b], nullptr);
  }
  average(net.first.weight);
  average(net.first.bias);
  for (const rueda::Request& work : pending) work.wait();

  for (Parameter* p : net.parameters()) {
    for (std::size_t i = 0; i < p->value.size(); ++i) {
      p->velocity[i] = kMomentum * p->velocity[i] + p->gradient[i];
      p->value[i] -= learning_rate * p->velocity[i];
    }
  }
  return loss;
}

// Right answers among this rank's share of samples[0..n).
std::int64_t count_correct(const rueda::Context& hvd, const Network& net, const Digits& digits,
                           const std::vector<int>& samples) {
  std::int64_t correct = 0;
  for (std::size_t i = hvd.rank(); i < samples.size(); i += hvd.size()) {
    float hidden[kHidden], scores[kClasses];
    net.forward(digits.image(samples[i]), hidden, scores);
    const auto guess = std::max_element(scores, scores + kClasses) - scores;
    correct += guess == digits.labels[samples[i]] ? 1 : 0;
  }
  return correct;
}

// FNV-1a over the bits of all parameters: equal hashes, equal models.
std::uint64_t parameter_hash(Network& net) {
  std::uint64_t hash = 14695981039346656037u;
  for (const Parameter* p : net.parameters()) {
    for (const float value : p->value) {
      hash = (hash ^ std::bit_cast<std::uint32_t>(value)) * 1099511628211u;
    }
  }
  return hash;
}

int run(const std::string& data, int epochs) {
  const Digits digits = load_digits(data);
  rueda::Context hvd = rueda::init();  // [1]

  std::vector<int> train, test;  // every fifth digit is for the test
  for (int i = 0; i < digits.count(); ++i) (i % 5 == 0 ? test : train).push_back(i);

  std::mt19937 random(100 + hvd.rank());  // every rank starts elsewhere ...
  Network net(random);
  for (Parameter* p : net.parameters()) {  // [2] ... and gets rank 0's parameters
    hvd.broadcast(p->value, 0, {.name = p->name});
  }

  const int steps = static_cast<int>(train.size()) / (kBatch * hvd.size());
  if (steps == 0) throw std::runtime_error("more ranks than there are digits for");
  for (int epoch = 0; epoch < epochs; ++epoch) {
    std::shuffle(train.begin(), train.end(), std::mt19937(1000 + epoch));
    std::vector<float> loss(1);
    for (int step = 0; step < steps; ++step) {
      // [4] A batch is size times as large, so is the learning rate, reached after a warm-up.
      const float done = static_cast<float>(epoch * steps + step) / static_cast<float>(steps);
      const float warm = std::min(1.0f, done / kWarmUpEpochs);
      const float scale = 1.0f + warm * static_cast<float>(hvd.size() - 1);
      const int* samples = &train[(step * hvd.size() + hvd.rank()) * kBatch];  // this rank's shard
      loss[0] += train_step(hvd, net, digits, samples, kLearningRate * scale) / steps;
    }
    hvd.allreduce(loss, rueda::ReduceOp::kAverage, {.name = "loss"});
    if (hvd.rank() == 0) std::printf("epoch %2d  loss %.4f\n", epoch + 1, loss[0]);
  }

  // [5] Metrics are summed over the ranks' shares.
  std::vector<std::int64_t> correct{count_correct(hvd, net, digits, test)};
  hvd.allreduce(correct, rueda::ReduceOp::kSum, {.name = "correct"});
  const double accuracy = static_cast<double>(correct[0]) / static_cast<double>(test.size());

  const std::vector<std::int64_t> mine{static_cast<std::int64_t>(parameter_hash(net))};
  const std::vector<std::int64_t> hashes = hvd.allgather(mine, {.name = "hashes"});
  const bool equal = std::count(hashes.begin(), hashes.end(), hashes[0]) == hvd.size();
  if (hvd.rank() == 0) {
    std::printf("test accuracy %.4f\n", accuracy);
    for (int rank = 0; rank < hvd.size(); ++rank) {
      std::printf("parameter hash rank %d %016llx\n", rank,
                  static_cast<unsigned long long>(hashes[rank]));
    }
    if (!equal) std::fprintf(stderr, "the ranks' parameters differ\n");
  }
  return equal ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
  std::string data = RUEDA_DIGITS;
  int epochs = 20;
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i];
    if (i + 1 < argc && option == "--data") {
      data = argv[i + 1];
    } else if (i + 1 < argc && option == "--epochs" && std::atoi(argv[i + 1]) > 0) {
      epochs = std::atoi(argv[i + 1]);
    } else {
      throw std::runtime_error("usage: train_digits [--data FILE] [--epochs N]");
    }
  }
  return run(data, epochs);
} catch (const std::exception& error) {
  std::fprintf(stderr, "train_digits: %s\n", error.what());
  return 1;
}
