// List: objects in a row that are linked through themselves. Nothing is allocated; an object is in
// one list at most and leaves it in constant time, without knowing which it is.
//
//   head <-> first <-> ... <-> last <-> head
//
// Ownership: borrows what is in it. A link must have left its list when it ends. Threads: one.
#pragma once

#include <utility>

namespace rueda::transport {

class Link {
 public:
  Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  bool linked() const { return next_ != nullptr; }
  void unlink() {
    prev_->next_ = next_;
    next_->prev_ = prev_;
    prev_ = next_ = nullptr;
  }

 private:
  template <typename T>
  friend class List;
  void put_before(Link* other) {
    prev_ = other->prev_;
    next_ = other;
    prev_->next_ = this;
    next_->prev_ = this;
  }
  Link* prev_ = nullptr;
  Link* next_ = nullptr;
};

// T: derived from Link.
template <typename T>
class List {
 public:
  List() { head_.prev_ = head_.next_ = &head_; }
  bool empty() const { return head_.next_ == &head_; }
  // Null where there is none.
  T* front() const { return at(head_.next_); }
  T* after(const T* item) const { return at(static_cast<const Link*>(item)->next_); }
  void push_back(T* item) { static_cast<Link*>(item)->put_before(&head_); }
  void push_front(T* item) { static_cast<Link*>(item)->put_before(head_.next_); }
  T* pop_front() {
    T* first = front();
    static_cast<Link*>(first)->unlink();
    return first;
  }
  // `item` takes the place of `old`, which leaves.
  void replace(T* old, T* item) {
    static_cast<Link*>(item)->put_before(old);
    static_cast<Link*>(old)->unlink();
  }

 private:
  T* at(Link* link) const { return link == &head_ ? nullptr : static_cast<T*>(link); }
  Link head_;
};

}  // namespace rueda::transport
