// What the tag transport's bookkeeping is made of: lists, pools, queues by tag, dead ranges of
// tags.
#include <catch2/catch.hpp>

#include <map>
#include <random>
#include <set>

#include "collectives/transport/expired_tags.h"
#include "collectives/transport/tag_table.h"
#include "collectives/transport/unexpected.h"

namespace rueda::transport {
namespace {

struct Item : Link {
  int number = 0;
};

std::vector<int> numbers(const List<Item>& list) {
  std::vector<int> result;
  for (Item* item = list.front(); item != nullptr; item = list.after(item))
    result.push_back(item->number);
  return result;
}

TEST_CASE("a list keeps its order, whoever leaves or is replaced", "[queues]") {
  Item items[5];
  List<Item> list;
  CHECK(list.front() == nullptr);
  for (int i = 0; i < 5; ++i) items[i].number = i;
  for (int i = 1; i < 4; ++i) list.push_back(&items[i]);
  list.push_front(&items[0]);
  CHECK(numbers(list) == std::vector<int>{0, 1, 2, 3});
  items[2].unlink();
  CHECK_FALSE(items[2].linked());
  CHECK(numbers(list) == std::vector<int>{0, 1, 3});
  list.replace(&items[3], &items[4]);
  CHECK(numbers(list) == std::vector<int>{0, 1, 4});
  CHECK_FALSE(items[3].linked());
  CHECK(list.pop_front() == &items[0]);
  items[1].unlink();
  items[4].unlink();
  CHECK(list.empty());
}

TEST_CASE("a pool makes no more than are in use at a time, and they stay where they are",
          "[queues]") {
  Pool<Item> pool;
  std::set<Item*> first;
  for (int i = 0; i < 100; ++i) first.insert(pool.take());
  CHECK(first.size() == 100);
  CHECK(pool.in_use() == 100);
  for (Item* item : first) pool.give_back(item);
  CHECK(pool.in_use() == 0);
  std::set<Item*> second;
  for (int i = 0; i < 100; ++i) second.insert(pool.take());
  CHECK(second == first);
}

TEST_CASE("queues are found by their tag while anything is in them", "[queues]") {
  std::mt19937_64 random(3);
  TagTable table;
  std::map<Tag, std::vector<Unexpected*>> model;
  UnexpectedPool pool(1 << 20);
  for (int step = 0; step < 20'000; ++step) {
    // As tags are: a process set, a call, a few low bits.
    const Tag tag = (random() % 3) << 48 | (random() % 40) << 8 | random() % 2;
    if (random() % 2 == 0) {
      Unexpected* message = pool.take(random() % 100, 0);
      table.get(tag)->unexpected.push_back(message);
      model[tag].push_back(message);
    } else if (TagQueues* queues = table.find(tag)) {
      REQUIRE(queues->tag == tag);
      REQUIRE(queues->unexpected.front() == model[tag].front());
      pool.give_back(queues->unexpected.pop_front());
      table.drop_if_empty(queues);
      model[tag].erase(model[tag].begin());
      if (model[tag].empty()) model.erase(tag);
    } else {
      REQUIRE(model.count(tag) == 0);
    }
    REQUIRE(table.tags() == model.size());
  }
  size_t seen = 0;
  table.for_each([&](TagQueues& queues) {
    ++seen;
    REQUIRE(model.count(queues.tag) == 1);
    if (queues.tag % 2 == 0) return;
    while (!queues.unexpected.empty()) pool.give_back(queues.unexpected.pop_front());
    model.erase(queues.tag);
  });
  CHECK(seen > model.size());
  CHECK(table.tags() == model.size());
  for (const auto& [tag, messages] : model) REQUIRE(table.find(tag) != nullptr);
  table.for_each([&](TagQueues& queues) {
    while (!queues.unexpected.empty()) pool.give_back(queues.unexpected.pop_front());
  });
  CHECK(table.tags() == 0);
}

TEST_CASE("memory of unexpected messages is used again, and not more is kept than was said",
          "[queues]") {
  UnexpectedPool pool(256 << 10);
  Unexpected* first = pool.take(5000, 3);
  CHECK(first->meta == 3);
  CHECK(first->body().size() == 5000);
  pool.give_back(first);
  CHECK(pool.take(4097, 0) == first);
  pool.give_back(first);
  std::vector<Unexpected*> many;
  for (int i = 0; i < 100; ++i) many.push_back(pool.take(UnexpectedPool::kMostBytes, 0));
  for (Unexpected* message : many) pool.give_back(message);
  CHECK(pool.kept_bytes() <= 256 << 10);
  CHECK(pool.kept_bytes() > 128 << 10);
}

TEST_CASE("ranges of dead tags are exact, in whatever order they come", "[queues]") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    // Both ends of the numbers, so that neighbours of 0 and of the last one are met.
    const Tag base = seed % 3 == 0 ? 0 : seed % 3 == 1 ? ~Tag{0} - 63 : Tag{1} << 48;
    ExpiredTags tags;
    bool dead[64] = {};
    CHECK_FALSE(tags.contains(base));
    for (int i = 0; i < 12; ++i) {
      const auto first = static_cast<unsigned>(random() % 64);
      const auto last = std::min(63u, first + static_cast<unsigned>(random() % 8));
      tags.add(base + first, base + last);
      for (unsigned tag = first; tag <= last; ++tag) dead[tag] = true;
      size_t ranges = 0;
      for (unsigned tag = 0; tag < 64; ++tag) {
        REQUIRE(tags.contains(base + tag) == dead[tag]);
        ranges += dead[tag] && (tag == 0 || !dead[tag - 1]) ? 1 : 0;
      }
      REQUIRE(tags.ranges() == ranges);
    }
  }
}

TEST_CASE("what expires from the same begin on stays one range", "[queues]") {
  ExpiredTags tags;
  for (Tag call = 1; call < 1000; ++call) tags.add(Tag{7} << 48, (Tag{7} << 48) + call);
  for (Tag call = 0; call < 1000; ++call) tags.add((Tag{8} << 48) + call, (Tag{8} << 48) + call);
  CHECK(tags.ranges() == 2);
}

}  // namespace
}  // namespace rueda::transport
