#include "launcher/tools/plan/options.h"

#include <CLI/CLI.hpp>
#include <fstream>

#include "rueda/rueda.h"

namespace rueda::plan {
namespace {

struct Raw {
  std::string dtype = "float32", layout = "contiguous", rotate = "auto", scheme = "ring", mask;
  std::vector<int64_t> window;
};

void describe(CLI::App* app, Raw* raw, PlanOptions* o) {
  app->name("rueda attention plan");
  app->description(
      "What each rank computes, sends and keeps in a distributed attention, without running it.\n\n"
      "  rueda attention plan --ranks 4 --length 64 --causal --layout zigzag\n"
      "  rueda attention plan --ranks 8 --length 65536 --heads 32 --kv-heads 8 --head-dim 128 "
      "--causal\n"
      "  rueda attention plan --segment-lengths 16,64 --dilation-rates 1,4 --svg dilated.svg\n"
      "  rueda attention plan --ranks 2 --causal --layout zigzag --program");
  app->add_option("-n,--ranks", o->ranks, "that share the sequence (4)")
      ->check(CLI::Range(1, 4096));
  app->add_option("--length", o->length, "tokens of the whole sequence (64)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  app->add_option("--heads", o->heads, "query heads (1)");
  app->add_option("--kv-heads", o->kv_heads, "key/value heads (as many as query heads)");
  app->add_option("--head-dim", o->head_dim, "(64)");
  app->add_option("--batch", o->batch, "(1)");
  app->add_option("--dtype", raw->dtype, "float32, bfloat16, float16 (float32)")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}));
  app->add_option("--scheme", raw->scheme, "ring, all_gather, ulysses, usp (ring)")
      ->check(CLI::IsMember({"ring", "all_gather", "ulysses", "usp"}));
  app->add_option("--ulysses-degree", o->ulysses, "of usp: ranks that exchange heads for tokens");
  app->add_option("--layout", raw->layout, "contiguous, zigzag, striped (contiguous)")
      ->check(CLI::IsMember({"contiguous", "zigzag", "striped"}));
  app->add_option("--rotate", raw->rotate, "what travels: auto, kv, q (auto: fewer bytes)")
      ->check(CLI::IsMember({"auto", "kv", "q"}));
  app->add_option("--chunk-tokens", o->chunk_tokens,
                  "at most the bytes of so many tokens in a message");
  app->add_flag("--causal", o->causal, "a query sees no later keys");
  app->add_option("--window-size", raw->window, "LEFT,RIGHT: keys near the query; -1: no limit")
      ->delimiter(',')
      ->expected(2);
  const auto list = [&](const char* name, std::vector<int64_t>* into, const char* what) {
    return app->add_option(name, *into, what)->delimiter(',');
  };
  list("--cu-seqlens", &o->cu_seqlens, "packed sequences: 0, ends of all, in tokens");
  app->add_flag("--per-sequence", o->per_sequence,
                "the layout spreads each packed sequence by itself");
  list("--segment-lengths", &o->segment_lengths, "dilated attention: pairs with --dilation-rates");
  list("--dilation-rates", &o->dilation_rates, "");
  app->add_flag("--split-heads", o->split_heads, "each dilated pair has heads of its own");
  app->add_option("--block", o->block, "block mask: tokens of a block, with --block-mask");
  app->add_option("--block-mask", raw->mask,
                  "file with a line of 0 and 1 for each block of queries")
      ->check(CLI::ExistingFile);
  app->add_flag("--backward", o->backward, "draw the backward pass");
  app->add_option("--head", o->head, "the key/value head that is drawn (0)");
  app->add_flag("--program", o->program, "print each rank's instructions behind the picture");
  app->add_option("--svg", o->svg, "write a picture here; -: to standard output");
}

Status read_mask(const std::string& path, std::vector<uint8_t>* blocks) {
  std::ifstream file(path);
  for (char c = 0; file.get(c);) {
    if (c == '0' || c == '1') blocks->push_back(c == '1' ? 1 : 0);
  }
  return blocks->empty() ? invalid_argument(path + " has no 0 and no 1") : Status{};
}

template <typename List>
int32_t index_of(const List& names, const std::string& name) {
  int32_t index = 0;
  for (const char* known : names) {
    if (name == known) return index;
    ++index;
  }
  return -1;
}

}  // namespace

Result<PlanOptions> parse_plan_options(const std::vector<std::string>& arguments) {
  PlanOptions o;
  Raw raw;
  CLI::App app;
  describe(&app, &raw, &o);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    o.help = true;
    o.text = app.help();
    return o;
  } catch (const CLI::ParseError& e) {
    return invalid_argument(e.what());
  }
  o.dtype = raw.dtype == "float32"    ? RUEDA_FLOAT32
            : raw.dtype == "bfloat16" ? RUEDA_BFLOAT16
                                      : RUEDA_FLOAT16;
  o.layout =
      index_of(std::initializer_list<const char*>{"contiguous", "zigzag", "striped"}, raw.layout);
  o.rotate = index_of(std::initializer_list<const char*>{"auto", "kv", "q"}, raw.rotate);
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  if (raw.scheme == "ulysses") o.ulysses = o.ranks;
  if (raw.scheme == "usp" && o.ulysses == 1)
    return invalid_argument("--scheme usp needs --ulysses-degree");
  o.gather_first = raw.scheme == "all_gather";
  if (o.gather_first && o.rotate == 0) o.rotate = 1;  // keys and values are what is gathered
  if (!raw.window.empty()) {
    o.left = raw.window[0];
    o.right = raw.window[1];
  }
  if (o.segment_lengths.size() != o.dilation_rates.size())
    return invalid_argument("--segment-lengths and --dilation-rates are pairs");
  if ((o.block > 0) == raw.mask.empty())
    return invalid_argument("--block and --block-mask belong together");
  if (o.block > 0) {
    RUEDA_RETURN_IF_ERROR(read_mask(raw.mask, &o.blocks));
    const auto rows = static_cast<size_t>((o.length + o.block - 1) / o.block);
    if (o.blocks.size() != rows * rows) {
      return invalid_argument(raw.mask + " has " + std::to_string(o.blocks.size()) + " blocks, " +
                              std::to_string(o.length) + " tokens need " + std::to_string(rows) +
                              " lines of " + std::to_string(rows));
    }
  }
  if (o.head < 0 || o.head >= o.kv_heads)
    return invalid_argument("--head: there are " + std::to_string(o.kv_heads) + " key/value heads");
  return o;
}

}  // namespace rueda::plan
